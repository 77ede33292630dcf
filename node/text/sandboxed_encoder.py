"""Encodes a model's texts and chats in a sandbox of the model, for a gateway."""

import asyncio
import json
import marshal
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.core.errors import ModelBroken, ModelChanged, Overloaded, error_from, naming
from node.core.pool import Pool
from node.text.encoder import check_length
from node.text.sandbox import Bounds, Sandbox, SandboxFailed, SandboxServer
from node.text.tokenizer import Tokenizer
from node.text.tokenizer_files import CleanFolder, copies
from node.text.tokenizer_job import TOKENS

_JOB = "node.text.tokenizer_job:make_job"
BOUNDS = Bounds(seconds=10.0, memory=2 * 2**30, reply=64 * 2**20)
"""Limits of one request; reading a tokenizer is one. The largest tokenizers take 1 s and 0.5 GB."""
_MAX_WAITING = 256


class SandboxedEncoder:
    """The encoder of one model. Encodes one text at a time, in order of arrival. Call `open` first."""

    tokenizer: Tokenizer
    """The model's tokenizer in this process: detokenizes, and knows the model's family. Do not encode requests with
    it."""

    def __init__(self, server: SandboxServer, directory: Path, pool: Pool) -> None:
        self.pool = pool
        """Threads for work on long texts that needs no sandbox."""
        self._server = server
        self._directory = directory
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._loading: asyncio.Task[Sandbox] | None = None
        """The most recent start of the sandbox."""
        self._closed = False

    @property
    def is_open(self) -> bool:
        return hasattr(self, "tokenizer")

    async def open(self) -> None:
        """Read the tokenizer. Cancelling it does not stop that, as the next request needs the tokenizer, too.

        Raises ModelBroken if the tokenizer cannot be read within the limits, NotReady.
        """
        try:
            await self._ready()
        except SandboxFailed as error:
            raise ModelBroken(f"The tokenizer of {self._directory.name} can't be used: {error}.") from error

    async def close(self) -> None:
        """End the sandbox. Requests that still wait get ModelChanged."""
        self._closed = True
        if self._loading:
            self._loading.add_done_callback(_end)  # if this task is cancelled, too
            await asyncio.wait([self._loading])
        await asyncio.sleep(0)  # its transport closes in the next iteration of the loop

    async def encode(
        self, text: str, *, context: int, param: str, bos: bool = True, truncate: bool = False
    ) -> list[int]:
        """See `Encoder.encode`. Of a text of more than `context` tokens, `truncate` leaves the first ones.

        Raises ContextExceeded for such a text without `truncate`, naming `param`; ModelBroken, ModelChanged, Overloaded,
        NotReady.
        """
        if truncate:
            text = text[: context * self.tokenizer.max_token_chars]
        check_length(len(text), context, self.tokenizer.max_token_chars, param=param)
        return await self._ask("encode", context, param, text=text, bos=bos, first=context if truncate else None)

    async def encode_prediction(self, text: str, *, most: int) -> list[int]:
        """See `Encoder.encode_prediction`; returns the first `most` tokens. Raises as `encode` does, but for the length."""
        text = text[: most * self.tokenizer.max_token_chars]
        return await self._ask("encode_prediction", most, "prediction", text=text, first=most) if text else []

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
        max_token_chars = self.tokenizer.max_token_chars
        if self.tokenizer.template_is_code:
            segments = await self.pool.run(self.tokenizer.render, messages, tools, **more)
            check_length(sum(len(text) for text, _ in segments), context, max_token_chars, param="messages")
            return await self._ask("encode_segments", context, "messages", segments=list(map(tuple, segments)))
        given = {
            "messages": messages,
            "tools": tools,
            "more": more,
            "context": context,
            "max_token_chars": max_token_chars,
        }
        return await self._ask("encode_chat", context, "messages", **given)

    async def _ask(self, name: str, most: int, param: str, **given: Any) -> list[int]:
        """Call a method of the sandbox's job. `most`: maximum tokens of the result."""
        if self._waiting >= _MAX_WAITING:
            raise Overloaded(f"{self._waiting} texts already wait for this model's tokenizer.")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            # Finished even if its client disconnects: restarting the sandbox would delay the waiting requests for longer.
            reply = await (await self._ready()).ask(_request(name, given, most, param), finish=True)
        except SandboxFailed as error:
            if self._closed:
                raise self._changed() from error
            self._start()
            what = "The model's chat template or tokenizer failed on this text"
            raise ModelBroken(f"{what}: {error}.") from error
        finally:
            self._turn.release()
        return _tokens(reply)

    async def _ready(self) -> Sandbox:
        """The sandbox, once it is idle. Raises SandboxFailed, ModelBroken, ModelChanged, NotReady, Overloaded."""
        while not self._closed:
            loading = self._loading
            if loading is None or (loading.done() and (loading.exception() or not loading.result().alive)):
                loading = self._start()
            await asyncio.wait([loading])  # not cancelled with the waiting task: the next request needs it
            sandbox = loading.result()
            await sandbox.wait_idle()
            if sandbox.alive:
                return sandbox
        raise self._changed()

    def _changed(self) -> ModelChanged:
        return ModelChanged(f"The model in {self._directory.name} has been closed.", hint="Send the request again.")

    def _start(self) -> asyncio.Task[Sandbox]:
        self._loading = asyncio.create_task(self._load(), name=f"sandbox of {self._directory.name}")
        return self._loading

    async def _load(self) -> Sandbox:
        async with tokenizer_sandbox(self._server, self._directory) as (sandbox, folder):
            if not self.is_open:
                self.tokenizer = await self.pool.run(Tokenizer, folder)
            controls = list(map(tuple, self.tokenizer.control_strings))
            _tokens(await sandbox.ask(_request("set_control_strings", {"controls": controls})))
        return sandbox


@asynccontextmanager
async def tokenizer_sandbox(server: SandboxServer, directory: Path) -> AsyncIterator[tuple[Sandbox, CleanFolder]]:
    """Start a sandbox that reads the tokenizer of a directory, and ends when an error leaves the context.

    In the context, this process may read the tokenizer from the folder, which the sandbox has cleaned.
    Raises SandboxFailed, ModelBroken, NotReady, Overloaded.
    """
    async with copies(server.files, directory) as (private, (folder,)):
        sandbox = await Sandbox.start(server, _JOB, BOUNDS, private)
        try:
            _tokens(await sandbox.ask(_request("load", {"folder": str(folder)})))
            yield sandbox, CleanFolder(folder)
        except SandboxFailed as error:
            raise SandboxFailed(naming(error, folder)) from error
        except BaseException:
            sandbox.end()
            raise


def _end(loading: asyncio.Task[Sandbox]) -> None:
    if not loading.cancelled() and not loading.exception():
        loading.result().end()


def _request(name: str, given: dict[str, Any], most: int = 0, param: str = "") -> bytes:
    return marshal.dumps((name, given, most, param))  # JSON would block the event loop for the largest requests


def _tokens(reply: bytes) -> list[int]:
    """Decode the tokens of a reply. Raises the job's error."""
    if reply[:1] != TOKENS:
        fields = json.loads(reply[1:])
        raise error_from(fields["code"], fields["message"], hint=fields["hint"], param=fields["param"])
    return array("I", reply[1:]).tolist()


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

    @property
    def tokenizer(self) -> Tokenizer:
        """For single tokens; use `encoder` for the texts of requests."""
        return self.encoder.tokenizer
