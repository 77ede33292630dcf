"""`cluster chat`: a conversation in the terminal. Lines that begin with a slash are commands."""

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from node.cli.answers import show
from node.cli.client import Api, Json, RequestRefused, StatusFailed
from node.cli.pictures import picture_part, with_pictures
from node.cli.terminal import complain, printable
from node.core.generation import parse_sampling

HELP = '''\
/model [ID]      go on with another model, or list the models; /load does the same
/system [TEXT]   tell the model who it is; without TEXT nothing is told
/image FILE      show the model a picture, with what you type next
/set NAME VALUE  sample so, like /set temperature 0.2; without VALUE as the model's authors propose; /set shows what is set
/stats           show how many tokens the last answer had, and how quick they were
/reset           forget the conversation
/save FILE       write the conversation as JSON, as the API takes it
/quit            end; so do /bye, /exit and Ctrl-D
"""              begin and end a text of several lines
Ctrl-C stops an answer.'''
_ENDS = ("/quit", "/bye", "/exit")
_FENCE = '"""'


@dataclass(slots=True)
class Chat:
    """One conversation. `read`: asks for a line, with a prompt; raises EOFError at the end."""

    api: Api
    model: str
    system: str = ""
    read: Callable[[str], str] = input
    pictures: list[Json] = field(default_factory=list)
    """They go with the next text."""
    _turns: list[Json] = field(default_factory=list, init=False)
    _sampling: dict[str, float] = field(default_factory=dict, init=False)
    _stats: str = field(default="", init=False)
    _saved: Path | None = field(default=None, init=False)
    """The file that this conversation has written, which it may replace."""

    def run(self) -> None:
        """Take lines until /quit or Ctrl-D. Errors of single answers are shown, and the conversation goes on."""
        with contextlib.suppress(EOFError):
            while (line := self._line()) not in _ENDS:
                try:
                    self._obey(line)
                except StatusFailed as error:
                    complain(str(error))

    # --- input --------------------------------------------------------------------------------------------------------

    def _line(self) -> str:
        """The next line, or the text between two fences. Raises EOFError."""
        shown = sys.stdin.isatty()
        try:
            line = self.read(">>> " if shown else "").strip()
            if not line.startswith(_FENCE):
                return line
            text = line.removeprefix(_FENCE)
            while not text.endswith(_FENCE):
                text += "\n" + self.read("... " if shown else "")
            return text.removesuffix(_FENCE).strip()
        except KeyboardInterrupt:
            print("\nCtrl-D or /quit ends the conversation.")
            return ""

    def _obey(self, line: str) -> None:
        name, _, value = line.partition(" ")
        value = value.strip()
        match name:
            case "":
                pass
            case "/model" | "/models" | "/load":
                self._choose(value)
            case "/system":
                self.system = value
            case "/image":
                self._show(value)
            case "/set":
                self._set(*value.split(maxsplit=1))
            case "/stats":
                print(self._stats or "There is no answer yet.")
            case "/reset" | "/clear":
                self._turns, self.pictures = [], []
            case "/save":
                self._save(value)
            case "/help" | "/?":
                print(HELP)
            case _ if name.startswith("/") and "/" not in name[1:] and "\n" not in line:
                print(f"There is no command {printable(name)}.\n{HELP}")
            case _:
                self._say(line)

    # --- commands -----------------------------------------------------------------------------------------------------

    def _choose(self, model: str) -> None:
        if model:
            self.model = model
            return
        for entry in self.api.ask("GET", "/v1/models")["data"]:
            print("*" if entry["id"] == self.model else " ", printable(entry["id"]))

    def _show(self, name: str) -> None:
        if not name:
            raise RequestRefused("Name the file: /image FILE")
        self.pictures.append(picture_part(Path(name)))
        print("It goes with what you type next.")

    def _set(self, name: str = "", written: str = "") -> None:
        try:
            if written:
                self._sampling[name] = parse_sampling(name, written)
            elif name:
                self._sampling.pop(name, None)
        except ValueError as error:
            raise RequestRefused(f"Can't be set: {error}.") from error
        for each, value in self._sampling.items():
            print(f"{each} {value:g}")

    def _save(self, name: str) -> None:
        if not name:
            raise RequestRefused("Name the file: /save FILE")
        body = {"model": self.model, **self._sampling, "messages": self._messages()}
        text = json.dumps(body, indent=2, ensure_ascii=False) + "\n"
        try:
            path = Path(name).expanduser()
            with path.open("w" if path == self._saved else "x", encoding="utf-8", errors="replace") as file:
                file.write(text)
        except OSError as error:
            raise RequestRefused(f"{path} can't be written: {error.strerror}.") from error
        except RuntimeError as error:
            raise RequestRefused(f"{name} can't be written: there is no such user.") from error
        self._saved = path
        print(f"Saved in {path}.")

    def _say(self, text: str) -> None:
        """An answer that was stopped stays in the conversation as far as it came; a failed one leaves nothing."""
        turn = {"role": "user", "content": with_pictures(text, self.pictures)}
        self.pictures = []
        answer = show(self.api, {"model": self.model, **self._sampling, "messages": [*self._messages(), turn]})
        self._stats = answer.stats or self._stats
        if answer.text or answer.finish:
            self._turns += [turn, {"role": "assistant", "content": answer.text}]

    def _messages(self) -> list[Json]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self._turns]
