"""An engine that computes nothing: one token for each running stream, round after round, as a driver's steps give them."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.frames import Frame
from node.core.generation import GenerateRequest, PromptProgress, TokenEvent
from node.core.nodes import Address, Caller
from node.rpc.client import RpcClient
from node.text.grammars import Grammars
from node.text.sandboxed_encoder import OpenModel, SandboxedEncoder, TokenizerProcesses
from node.text.tokenizer import Tokenizer
from node.text.tokenizer_files import CleanFolder

MODEL = "bench"
TEXT = "Once upon a time there was a small model that could count to ten and was very happy about it. "


@dataclass(slots=True, eq=False)
class _Stream:
    left: int
    queue: asyncio.Queue[TokenEvent] = field(default_factory=asyncio.Queue)
    position: int = 0


class FakeEngine:
    """Gives each stream one token per round. A round ends when all streams have taken theirs, so the engine never runs
    ahead of its readers.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._events: list[TokenEvent] = []
        """Token events by position, the same for all streams."""
        self._streams: set[_Stream] = set()
        self._untaken = 0
        self._go_on = asyncio.Event()

    async def run(self) -> None:
        while True:
            await self._go_on.wait()
            self._go_on.clear()
            for stream in self._streams:
                stream.queue.put_nowait(self._next(stream))
            self._untaken += len(self._streams)

    def _next(self, stream: _Stream) -> TokenEvent:
        position = stream.position
        stream.position += 1
        stream.left -= 1
        if position == len(self._events):
            self._events.append(TokenEvent(position, self._tokens[position % len(self._tokens)]))
        return self._events[position] if stream.left else replace(self._events[position], finish="length")

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        stream = _Stream(request.max_tokens)
        self._streams.add(stream)
        if not self._untaken:
            self._go_on.set()
        try:
            while True:
                event = await stream.queue.get()
                if event.finish:
                    self._streams.discard(stream)
                self._took()
                yield event
                if event.finish:
                    return
        finally:
            if not stream.queue.empty():
                self._took()  # the client closed the connection
            self._streams.discard(stream)

    def _took(self) -> None:
        self._untaken -= 1
        if not self._untaken and self._streams:
            self._go_on.set()

    async def own_cost(self, streams: int, tokens: int) -> float:
        """Return the engine's own microseconds per token, measured with readers that do nothing."""

        async def read(number: int) -> None:
            async for _ in self.generate(GenerateRequest(f"own-{number}", MODEL, (1,), tokens)):
                pass

        begin = time.perf_counter()
        await asyncio.gather(*(read(number) for number in range(streams)))
        return (time.perf_counter() - begin) / (streams * tokens) * 1e6


class FakeGateway:
    """What a chat asks of a node.gateway.gateway.Gateway. With `client` and `driver`, the tokens come from the engine of
    another process.
    """

    def __init__(
        self,
        engine: FakeEngine,
        processes: TokenizerProcesses,
        grammars: Grammars,
        client: RpcClient | None,
        driver: Address,
    ) -> None:
        self._engine = engine
        self.grammars = grammars
        self._processes = processes
        self._client = client
        self._driver = driver
        self.open_models = self.router = self.peers = self
        self.monitor = self.models = FakeReports()

    async def open(self, _name: str, client: str) -> OpenModel:
        return OpenModel(MODEL, 8192, SandboxedEncoder(self._processes, client), "")

    def loading(self, _name: str) -> str:
        return ""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent | PromptProgress, None]:
        if self._client:
            return self._client.generate(self._driver, "bench", request)
        return self._engine.generate(request)


class FakeReports:
    """What the API says of a node and its models when nobody asks."""

    def status(self) -> dict[str, object]:
        return {}

    overview = status


class FakeServing:
    """A node.rpc.handlers.ServingHandler."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

    def generate(self, ring: str, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        return self._engine.generate(request)

    async def evaluate(self, ring: str, request: EvaluateRequest) -> Evaluation:
        raise NotImplementedError

    async def serve_link(self, frames: AsyncIterator[Frame], caller: Caller) -> None:
        raise NotImplementedError


def demo_tokens(directory: Path) -> list[int]:
    """Return tokens of the built-in model. Each ends at a whole character, so that each is an event."""
    return Tokenizer(CleanFolder(directory)).encode(TEXT)
