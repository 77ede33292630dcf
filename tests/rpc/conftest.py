"""A real gRPC server on loopback, with handlers that only record calls."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from node.core.errors import StaleFence
from node.core.frames import Frame, Tensor
from node.core.generation import GenerateRequest, PromptProgress, TokenEvent
from node.core.model_files import File, Listing
from node.core.models import ModelSpec
from node.core.nodes import Caller, Memory, NodeInfo
from node.core.reports import Heartbeat, NodeReport
from node.core.response_ids import Ask
from node.core.rings import Fence
from node.rpc.client import RpcClient
from node.rpc.security import Security
from node.rpc.server import RpcServer


def report(node: str, **facts: Any) -> NodeReport:
    info = NodeInfo(node, 1, f"name-of-{node}", "home", "0.1.0", 1, ("127.0.0.1",), 7001, 7002)
    return NodeReport(info, Memory(100, 90), **facts)


def frame(data: bytes) -> Frame:
    return Frame("ring-1", Fence(1, 1), 0, lane=0, tensors=(Tensor("uint8", (1, 1, len(data)), data),))


class Handlers:
    """All three handlers. An answer has a token for each of the prompt; only frames of `ring-1` are accepted."""

    def __init__(self) -> None:
        self.heartbeats: list[Heartbeat] = []
        self.callers: list[Caller] = []
        self.frames_taken: asyncio.Queue[Frame] = asyncio.Queue()

    def exchange(self, heartbeat: Heartbeat, caller: Caller) -> Heartbeat:
        self.callers.append(caller)
        self.heartbeats.append(heartbeat)
        return Heartbeat(report("server"))

    def leave(self, node_id: str, incarnation: int) -> None: ...

    async def want(self, model: str) -> None: ...

    async def log(self, lines: int, caller: Caller, *, follow: bool) -> AsyncGenerator[list[str], None]:
        self.callers.append(caller)
        yield [f"line {number}" for number in range(lines)]
        while follow:
            yield []
            await asyncio.sleep(0.01)

    async def events(self, response_id: str, first: int, caller: Caller) -> AsyncGenerator[bytes, None]:
        yield b""
        yield f"{response_id} {first} ".encode() * 100_000

    async def response(self, ask: Ask, response_id: str) -> bytes:
        return f"{ask} {response_id} ".encode() * 100_000

    async def describe(self, model: str, revision: str, kv_bits: int) -> ModelSpec:
        raise NotImplementedError(model)

    async def generate(self, ring: str, request: GenerateRequest) -> AsyncGenerator[TokenEvent | PromptProgress, None]:
        if ring == "a long prompt":
            yield PromptProgress(1280, 4096)
        for position, token in enumerate(request.prompt):
            yield TokenEvent(position, token)

    async def serve_link(self, frames: AsyncIterator[Frame], caller: Caller) -> None:
        self.callers.append(caller)
        async for each in frames:
            if each.ring != "ring-1":
                raise StaleFence(f"This node is not part of ring {each.ring}.")
            self.frames_taken.put_nowait(each)

    async def listing(self, model: str, revision: str) -> Listing:
        return Listing((File("config.json", 2, "d" * 64),), ("model.safetensors",))

    async def read(
        self, model: str, revision: str, name: str, offset: int, length: int
    ) -> AsyncIterator[tuple[bytes, str]]:
        yield b"{}", ""
        yield b"", "digest"


@contextlib.asynccontextmanager
async def serving(security: Security | None = None) -> AsyncIterator[tuple[Handlers, str]]:
    """Start a server; yields the handlers and its address."""
    handlers = Handlers()
    server = RpcServer(["127.0.0.1"], 0, security)
    await server.start(handlers, handlers, handlers)
    try:
        yield handlers, f"127.0.0.1:{server.port}"
    finally:
        await server.stop(0)


@pytest.fixture
async def served() -> AsyncIterator[tuple[Handlers, str]]:
    """A server without a secret."""
    async with serving() as both:
        yield both


@pytest.fixture
async def client() -> AsyncIterator[RpcClient]:
    async with RpcClient() as client:
        yield client
