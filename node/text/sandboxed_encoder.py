"""Encodes a model's texts and chats in sandboxes of the model, for the clients of a gateway."""

import asyncio
import marshal
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from node.core.errors import ModelBroken, ModelChanged, naming
from node.core.fair_turns import FairTurns
from node.core.pool import Pool
from node.model.picture_form import PictureForm
from node.text.encoder import check_length
from node.text.sandbox import Bounds, Sandbox, Sandboxes, SandboxFailed, SandboxServer
from node.text.tokenizer import Tokenizer
from node.text.tokenizer_files import CleanFolder, copies

_JOB = "node.text.tokenizer_job:make_job"
BOUNDS = Bounds(seconds=10.0, memory=2 * 2**30, reply=64 * 2**20)
"""Limits of one request; reading a tokenizer is one. The largest tokenizers take 1 s and 0.5 GB."""
LONG_TEXT = 128 * 2**10
"""Bytes of a request from which on it goes to the process for long texts: one that is as long takes some 0.1 s."""
IDLE_S = 300.0
"""Seconds after which that process is ended if there was no long text: it takes as much memory as the first."""
_MAX_WAITING = 1024
"""Maximum texts of one client that wait: all clients behind a proxy are one, and those of a load begin at once."""
_AT_ONCE = 2
"""Threads at work on a model's texts: they compete with the event loop for the GIL."""

P = ParamSpec("P")
T = TypeVar("T")


class TokenizerProcesses:
    """The processes of one model: one for all texts but long ones, so that none waits for another client's long text,
    and a second one for these, while there are some. Call `open` first.
    """

    tokenizer: Tokenizer
    """The model's tokenizer in this process. It is read once a process has read it within its limits."""

    def __init__(self, server: SandboxServer, directory: Path, pool: Pool) -> None:
        self._server = server
        self._directory = directory
        self.pool = pool
        self.threads = FairTurns("the threads for this model's texts", _AT_ONCE, _MAX_WAITING)
        self._short, self._long = (
            Sandboxes(self._start, FairTurns("this model's tokenizer", 1, _MAX_WAITING), costly=True) for _ in range(2)
        )
        self._closed = False
        self._idle: asyncio.TimerHandle | None = None
        """Ends the process for long texts."""

    @property
    def is_open(self) -> bool:
        return hasattr(self, "tokenizer")

    async def open(self) -> None:
        """Read the tokenizer. Cancelling it does not stop that, as the next request needs the tokenizer, too.

        Raises ModelBroken if the tokenizer cannot be read within the limits, ModelChanged, NotReady, Overloaded.
        """
        with self._failures_named():
            await self._short.start()

    async def close(self) -> None:
        """End the processes for good. Requests that still wait get ModelChanged."""
        self._closed = True
        if self._idle:
            self._idle.cancel()
        await asyncio.gather(self._short.close(), self._long.close())

    async def ask(self, request: bytes, client: str) -> list[int]:
        """Send a request of a client. Raises ModelBroken, ModelChanged, Overloaded, NotReady, and the job's errors."""
        is_long = len(request) >= LONG_TEXT
        try:
            with self._failures_named():
                tokens = array("I", await (self._long if is_long else self._short).ask(request, client))
                return tokens.tolist()
        finally:
            if is_long and not self._closed:
                if self._idle:
                    self._idle.cancel()
                self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._long.end)

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
        try:
            yield
        except SandboxFailed as error:
            if self._closed:
                what = f"The model in {self._directory.name} has been closed."
                raise ModelChanged(what, hint="Send the request again.") from error
            raise ModelBroken(f"The model's chat template or tokenizer failed on this text: {error}.") from error

    async def _start(self) -> Sandbox:
        async with tokenizer_sandbox(self._server, self._directory) as (sandbox, folder):
            if not self.is_open:
                self.tokenizer = await self.pool.run(Tokenizer, folder)
            controls = list(map(tuple, self.tokenizer.control_strings))
            await sandbox.ask(_request("set_control_strings", {"controls": controls}))
        return sandbox


class SandboxedEncoder:
    """The encoder of one model, for one client."""

    def __init__(self, processes: TokenizerProcesses, client: str) -> None:
        self._processes = processes
        self._client = client

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer in this process: detokenizes, and knows the model's family. It encodes no requests."""
        return self._processes.tokenizer

    async def work(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work on a long text that needs no sandbox in a thread. Raises Overloaded, and the function's exceptions."""
        async with self._processes.threads.turn(self._client):
            return await self._processes.pool.run(function, *args, **kwargs)

    async def encode(
        self, text: str, *, context: int, param: str, bos: bool = True, truncate: bool = False
    ) -> list[int]:
        """See `Encoder.encode`. Of a text of more than `context` tokens, `truncate` leaves the first ones.

        Raises ContextExceeded for such a text without `truncate`, naming `param`; ModelBroken, ModelChanged, Overloaded,
        NotReady.
        """
        if truncate:
            text, param = text[: context * self.tokenizer.max_token_chars], ""
        check_length(len(text), context, self.tokenizer.max_token_chars, param=param)
        return await self._ask("encode", context, param, text=text, bos=bos)

    async def encode_prediction(self, text: str, *, most: int) -> list[int]:
        """See `Encoder.encode_prediction`; returns the first `most` tokens. Raises as `encode` does, but for the length."""
        text = text[: most * self.tokenizer.max_token_chars]
        return await self._ask("encode_prediction", most, "", text=text) if text else []

    async def encode_fim(self, prefix: str, suffix: str, *, context: int, param: str) -> list[int]:
        """See `Encoder.encode_fim`. Raises as `encode` does."""
        check_length(len(prefix) + len(suffix), context, self.tokenizer.max_token_chars, param=param)
        return await self._ask("encode_fim", context, param, prefix=prefix, suffix=suffix)

    async def encode_pieces(self, pieces: Sequence[tuple[str, bool]], *, context: int) -> list[int]:
        """See `Encoder.encode_pieces`. Raises as `encode` does."""
        size = sum(len(text) for text, _ in pieces)
        check_length(size, context, self.tokenizer.max_token_chars, param="messages")
        return await self._ask("encode_pieces", context, "messages", pieces=pieces)

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        more: Mapping[str, Any],
        *,
        context: int,
    ) -> list[int]:
        """See `Encoder.encode_chat`; `more` is passed to the template. Raises BadRequest, and as `encode` does."""
        bounds = {"context": context, "max_token_chars": self.tokenizer.max_token_chars}
        if not self.tokenizer.template_is_code:
            chat = {"messages": messages, "tools": tools, "more": more}
            return await self._ask("encode_chat", context, "messages", **chat, **bounds)
        segments = await self.work(self.tokenizer.render, messages, tools, **more)
        check_length(sum(len(text) for text, _ in segments), **bounds, param="messages")
        return await self._ask("encode_segments", context, "messages", segments=list(map(tuple, segments)))

    async def _ask(self, name: str, most: int, param: str, **given: Any) -> list[int]:
        return await self._processes.ask(_request(name, given, most, param), self._client)


@asynccontextmanager
async def tokenizer_sandbox(server: SandboxServer, directory: Path) -> AsyncIterator[tuple[Sandbox, CleanFolder]]:
    """Start a sandbox that reads the tokenizer of a directory, and ends when an error leaves the context.

    In the context, this process may read the tokenizer from the folder, which the sandbox has cleaned.
    Raises ModelBroken, also if the sandbox fails in the context; NotReady, Overloaded.
    """
    async with copies(server.files, directory) as (private, (folder,)):
        sandbox = await Sandbox.start(server, _JOB, BOUNDS, private)
        try:
            await sandbox.ask(_request("load", {"folder": str(folder)}))
            yield sandbox, CleanFolder(folder)
        except SandboxFailed as error:
            reason = naming(error, folder)
            raise ModelBroken(f"The tokenizer of {directory.name} can't be used: {reason}.") from error
        except BaseException:
            sandbox.end()
            raise


def _request(name: str, given: dict[str, Any], most: int = 0, param: str = "") -> bytes:
    return marshal.dumps((name, given, most, param))  # JSON would block the event loop for the largest requests


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model that is loaded and ready for requests."""

    id: str
    context: int
    """Context length in tokens: prompt and answer together."""
    encoder: SandboxedEncoder
    revision: str
    """Revision of the ring's and the tokenizer's files; requests carry it."""
    sampling: Mapping[str, float] = field(default_factory=dict[str, float])
    """Sampling of requests that do not say it, as far as the model or a preset does."""
    pictures: PictureForm | None = None
    """How it takes pictures; None if it takes none."""

    @property
    def tokenizer(self) -> Tokenizer:
        """For single tokens; use `encoder` for the texts of requests."""
        return self.encoder.tokenizer
