"""Writes answers and errors as Ollama does: the lines of /api/chat and /api/generate, and the plain object."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from api.chat.answer import Delta, TokenText
from api.chat.generation import Choice
from api.chat.logprobs import chat_logprobs
from api.chat.reader import CallDelta
from api.http.errors import shorten
from api.http.json_object import Json, generated_object
from api.http.stream import to_json
from node.text.tokenizer import Tokenizer


def error_object(_status: int, message: str, **_: str | None) -> Json:
    """Error object for JSON. The message names what is wrong; Ollama has no field for the code and the parameter."""
    return {"error": shorten(message)}


@dataclass(slots=True)
class Lines:
    """The format of a stream (see `StreamFormat`) of JSON objects, one a line."""

    quiet: Callable[[], Json]
    """The object of a line that tells nothing, for a stream that waits."""
    content_type: str = "application/x-ndjson"

    def event(self, data: Json) -> bytes:
        return to_json(data) + b"\n"

    def waiting(self, _awaited: str) -> bytes:
        return self.event(self.quiet())


def marked(part: bytes) -> tuple[str, bytes]:
    """A token that is no text, as Ollama writes it: `bytes` always are those of `token`."""
    text = part.decode(errors="replace")
    return text, text.encode()


def timestamp(seconds: float | None = None) -> str:
    """A time as Ollama writes it, RFC 3339 in UTC. `seconds`: since 1970; None: now."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Said:
    """A part of an answer, or all of it."""

    text: str = ""
    thinking: str = ""
    calls: list[Json] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    """Tokens whose log-probabilities are wanted."""

    def add(self, more: "Said") -> None:
        self.text += more.text
        self.thinking += more.thinking
        self.calls += more.calls
        self.tokens += more.tokens


@dataclass(slots=True)
class OllamaOutput:
    """The output of one request (see `Output`), and the times that its last object tells."""

    model: str
    """As requested."""
    chat: bool
    """For /api/chat; else for /api/generate."""
    stream: bool
    begun: int
    """When the request came, in nanoseconds of the monotonic clock."""
    opened: int = 0
    """When its model and its prompt were ready."""
    choice: Choice | None = None
    """Its counts of tokens are told at the end; None until the model is ready."""
    tokenizer: Tokenizer | None = None
    top_logprobs: int | None = None
    tells_context: bool = False
    """Whether the tokens of prompt and answer are told at the end, with which a client continues the conversation."""
    _call: list[CallDelta] = field(default_factory=list)
    """The increments of the unfinished call: Ollama tells each call as a whole."""
    _whole: Said = field(default_factory=Said)
    """The answer so far, unless it is streamed."""
    _reason: str = "stop"

    def grow(self, _: int, delta: Delta) -> Iterator[Json]:
        part = self._take(delta)
        if delta.finish == "length":
            self._reason = "length"
        if not self.stream:
            self._whole.add(part)
            return
        if part != Said():
            yield self.line(part)
        if delta.finish:
            yield {**self._head(Said()), **self._end()}

    def whole(self) -> Json:
        return {**self.line(self._whole), **self._end()}

    def line(self, part: Said) -> Json:
        """An increment of the answer; one without text keeps a stream alive."""
        line = {**self._head(part), "done": False}
        if self.tokenizer is not None and self.top_logprobs is not None and part.tokens:
            content: list[Json] = chat_logprobs(self.tokenizer, part.tokens, self.top_logprobs, marked)["content"]
            dropped = () if self.top_logprobs else ("top_logprobs",)
            line["logprobs"] = [{name: entry[name] for name in entry if name not in dropped} for entry in content]
        return line

    def ended(self, reason: str) -> Json:
        """The answer to a request without a prompt."""
        return {**self._head(Said()), "done": True, "done_reason": reason}

    def _head(self, part: Said) -> Json:
        said: Json = {"role": "assistant", "content": part.text} if self.chat else {"response": part.text}
        if part.thinking:
            said["thinking"] = part.thinking
        if part.calls:
            said["tool_calls"] = part.calls
        return {"model": self.model, "created_at": timestamp(), **({"message": said} if self.chat else said)}

    def _end(self) -> Json:
        """Why the answer ended, its numbers of tokens, and the durations in nanoseconds."""
        assert self.choice
        now, first = time.monotonic_ns(), round(self.choice.first_at * 1e9) or self.opened
        context = [*self.choice.request.prompt, *self.choice.answer.made]
        return {
            "done": True,
            "done_reason": self._reason,
            **({"context": context} if self.tells_context else {}),
            "total_duration": now - self.begun,
            "load_duration": self.opened - self.begun,
            "prompt_eval_count": len(self.choice.request.prompt),
            "prompt_eval_duration": first - self.opened,
            "eval_count": self.choice.answer.completion_tokens,
            "eval_duration": now - first,
        }

    def _take(self, delta: Delta) -> Said:
        """The increment with the calls that it completes, as text if no parser takes their arguments. One that is cut is left out,
        as Ollama has no place for a part of it.
        """
        part = Said(delta.text, delta.reasoning, tokens=list(delta.tokens))
        for call in delta.calls:
            self._call.append(call)
            if not call.ended:
                continue
            first, written = self._call[0], "".join(each.arguments for each in self._call)
            self._call = []
            # The arguments are parsed only once: they may be as long as the context.
            if (arguments := generated_object(written)) is not None:
                function = {"index": first.index, "name": first.name, "arguments": arguments}
                part.calls.append({"id": first.id, "function": function})
            else:
                part.text += f'{{"name": {json.dumps(first.name)}, "arguments": {written}}}'
        return part
