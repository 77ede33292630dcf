"""A model's texts as a gateway needs them: to tokens in a sandbox of the model's, back from tokens in the node itself."""

import asyncio
import json
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from node.core.errors import ModelBroken, Overloaded, error_from
from node.core.pool import Pool
from node.engine.encoding import check_length
from node.engine.sandbox import Bounds, Broken, Sandbox, SandboxServer
from node.engine.text_job import TOKENS
from node.engine.tokenizer import Tokenizer

_JOB = "node.engine.text_job:make_texts"
BOUNDS = Bounds(seconds=10.0, memory=2 * 2**30, reply=64 * 2**20)
"""Of one request; reading a tokenizer is one. The largest take a second and 0.5 GB."""
_MOST_WAITING = 256
_LARGE = 64 * 2**10
"""Characters from which a request is written in a thread."""


class Texts:
    """Of one model. One text is encoded at a time, in order of arrival; `open` comes before anything else."""

    tokenizer: Tokenizer
    """For what is no text of a request: tokens to text, and what is known of the model's family."""

    def __init__(self, server: SandboxServer, directory: Path, pool: Pool) -> None:
        self.pool = pool
        """For work on long texts that needs no sandbox."""
        self._server = server
        self._directory = directory
        self._starts = Pool("sandbox", 1, 16)
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._loading: asyncio.Task[Sandbox] | None = None
        """The last start of the sandbox."""

    async def open(self) -> None:
        """Raises ModelBroken when the tokenizer can't be read within limits, NotReady."""
        try:
            await self._ready()
        except Broken as error:
            raise ModelBroken(f"The tokenizer of {self._directory.name} can't be used: {error}.") from error

    async def close(self) -> None:
        if self._loading:
            await asyncio.wait([self._loading])
            if not self._loading.exception():
                self._loading.result().end()
        await asyncio.sleep(0)  # its transport closes in the loop's next turn

    async def encode(self, text: str, *, context: int, param: str) -> list[int]:
        """See Tokenizer.encode. Raises ContextExceeded for a text far longer than `context` tokens, naming `param`;
        ModelBroken, Overloaded, NotReady.
        """
        check_length(len(text), context, self.tokenizer.longest, param=param)
        return await self._ask(len(text), "encode", text=text)

    async def join(self, pieces: Sequence[tuple[str, bool]], *, context: int) -> list[int]:
        """See Tokenizer.join. Raises as `encode` does."""
        size = sum(len(text) for text, _ in pieces)
        check_length(size, context, self.tokenizer.longest, param="messages")
        return await self._ask(size, "join", pieces=pieces)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        more: Mapping[str, Any],
        *,
        context: int,
    ) -> list[int]:
        """See Tokenizer.chat; `more` reaches the template. Raises BadRequest, and as `encode` does."""
        size = sum(len(text) for message in messages for text in message.values() if isinstance(text, str))
        if self.tokenizer.in_python:
            segments = await self.pool.run(self.tokenizer.rendered, messages, tools, **more)
            size = sum(len(segment.text) for segment in segments)
            check_length(size, context, self.tokenizer.longest, param="messages")
            return await self._ask(size, "segments", segments=segments)
        longest = self.tokenizer.longest
        return await self._ask(
            size, "chat", messages=messages, tools=tools, more=more, context=context, longest=longest
        )

    async def _ask(self, size: int, name: str, **given: Any) -> list[int]:
        """`size`: characters of the request, roughly."""
        request = _request(name, given) if size < _LARGE else await self.pool.run(_request, name, given)
        if self._waiting >= _MOST_WAITING:
            raise Overloaded(f"{self._waiting} texts already wait for this model's tokenizer.")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            # It is finished also if its client goes away: to start anew would keep the others waiting for longer.
            reply = await (await self._ready()).ask(request, finish=True)
        except Broken as error:
            self._start()
            what = "The model's chat template or tokenizer failed on this text"
            raise ModelBroken(f"{what}: {error}.") from error
        finally:
            self._turn.release()
        return _tokens(reply)

    async def _ready(self) -> Sandbox:
        """Raises Broken, ModelBroken, NotReady."""
        loading = self._loading
        if loading is None or (loading.done() and (loading.exception() or not loading.result().alive)):
            loading = self._start()
        if not loading.done():
            await asyncio.wait([loading])  # also if who waits is gone: the next one needs it
        return loading.result()

    def _start(self) -> asyncio.Task[Sandbox]:
        self._loading = asyncio.create_task(self._load(), name=f"sandbox of {self._directory.name}")
        return self._loading

    async def _load(self) -> Sandbox:
        sandbox = await vetted(self._server, self._directory, self._starts)
        try:
            if not hasattr(self, "tokenizer"):
                self.tokenizer = await self.pool.run(Tokenizer, self._directory)
            _tokens(await sandbox.ask(_request("know", {"controls": self.tokenizer.control_strings})))
        except BaseException:
            sandbox.end()
            raise
        return sandbox


async def vetted(server: SandboxServer, directory: Path, pool: Pool) -> Sandbox:
    """A sandbox that has read the tokenizer of a directory, so that this process may. Raises Broken, ModelBroken, NotReady."""
    sandbox = await Sandbox.start(server, _JOB, BOUNDS, pool)
    try:
        _tokens(await sandbox.ask(_request("load", {"directory": str(directory)})))
    except BaseException:
        sandbox.end()
        raise
    return sandbox


def _request(name: str, given: Mapping[str, Any]) -> bytes:
    return json.dumps((name, given)).encode()


def _tokens(reply: bytes) -> list[int]:
    """Raises the error that the job tells."""
    if reply[:1] != TOKENS:
        told = json.loads(reply[1:])
        raise error_from(told["code"], told["message"], hint=told["hint"], param=told["param"])
    return array("I", reply[1:]).tolist()
