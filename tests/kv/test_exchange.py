"""KV between nodes: what peers tell is untrusted, and a peer that is silent, slow or greedy costs little."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest

from node.core.errors import PeerTimeout
from node.core.nodes import Address, Caller
from node.core.pool import Pool
from node.kv import exchange as exchange_module
from node.kv.blocks import NAME_BYTES, encode, names_of
from node.kv.exchange import MAX_READERS_OF_ONE, KvExchange, sources
from node.kv.store import KvStore
from node.rpc import server as server_module
from node.rpc.client import RpcClient
from node.rpc.server import RpcServer
from node.wire import serving_pb2
from node.wire.serving_pb2_grpc import KvStub
from tests.kv.test_store import NAMES, kv
from tests.patience import PATIENCE_S
from tests.rpc.conftest import Handlers

CHAIN = bytes.fromhex("".join(NAMES))
A, B = Address("a:1"), Address("b:1")


class Peers:
    """The client of a node whose peers have what `told` says. Those that are not in it do not answer."""

    def __init__(self, told: dict[Address, Sequence[tuple[int, int, int]]]) -> None:
        self.told = told
        self.asked: list[Address] = []
        self.reading = self.most = 0
        self.full, self.go_on = asyncio.Event(), asyncio.Event()

    async def find_kv(self, peer: Address, _chain: bytes) -> Sequence[tuple[int, int, int]]:
        self.asked.append(peer)
        if peer not in self.told:
            raise PeerTimeout(f"{peer} did not answer in time.")
        return self.told[peer]

    async def read_kv(self, _peer: Address, chain: bytes, caches: range, _most: int) -> AsyncGenerator[bytearray, None]:
        self.reading += 1
        self.most = max(self.most, self.reading)
        if self.reading == MAX_READERS_OF_ONE:
            self.full.set()
        try:
            await self.go_on.wait()
            for name in names_of(chain):
                yield bytearray(b"".join(encode(name, kv(caches.start, caches.stop))))
        finally:
            self.reading -= 1


def opened(folder: Path, client: object, others: Sequence[Address] = ()) -> KvExchange:
    store = KvStore(folder / "kv", 1 << 20)
    store.open()
    return KvExchange(store, Pool("offer", 2, 64), client, lambda: others, lambda _: True)  # type: ignore[arg-type]


def test_what_is_told_of_blocks_that_nobody_asked_for_is_ignored() -> None:
    spans = {A: [(0, 0, 65536), (7, 0, 9), (1, 5, 6), (1, 0, 9)], B: [(0, 0, 9), (1, 2, 4)]}
    assert sources(spans, [{2, 3}, {2, 3}, {2}]) == (2, {(A, range(2, 4)): [0, 1]})
    assert sources(spans, [set(), {2, 3}]) == (2, {(A, range(2, 4)): [1]})


def test_the_time_for_spans_does_not_grow_with_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[object] = []

    class Watched:
        """A range that notes when it is walked."""

        def __init__(self, first: int, end: int) -> None:
            self.span = range(first, end)

        def __contains__(self, cache: object) -> bool:
            return cache in self.span

        def __iter__(self) -> Iterator[int]:
            walked.append(self)
            return iter(self.span)

    monkeypatch.setattr(exchange_module, "range", Watched, raising=False)
    count, _ = sources({A: [(0, 0, 65536)] * 1000}, [{2, 3}])
    assert count == 1
    assert not walked


async def test_a_node_that_does_not_answer_is_not_asked_again_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(exchange_module, "now", lambda: clock[0])
    peers = Peers({A: [(0, 0, 2)]})
    exchange = opened(tmp_path, peers, [A, B])
    for _ in range(2):
        assert await exchange.ask(CHAIN, [{0, 1}, {0, 1}]) == (1, {(A, range(2)): [0]})
    assert peers.asked == [A, B, A]
    clock[0] += 61
    await exchange.ask(CHAIN, [{0, 1}])
    assert peers.asked == [A, B, A, A, B]


async def test_nor_is_one_for_whose_answer_a_prompt_waits_no_longer(tmp_path: Path) -> None:
    peers = Peers({A: []})
    exchange = opened(tmp_path, peers, [A, B])
    peers.find_kv = lambda *_: asyncio.Event().wait()  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await exchange.ask(CHAIN, [{0, 1}])
    assert await exchange.ask(CHAIN, [{0, 1}]) == (0, {})


async def test_no_more_streams_of_one_peer_are_begun_than_it_sends_at_once(tmp_path: Path) -> None:
    peers = Peers({})
    exchange = opened(tmp_path, peers)

    async def fetch(cache: int) -> int:
        caches = range(cache, cache + 1)
        async with aclosing(exchange.fetch(A, CHAIN, caches, 1 << 20)) as parts:
            return len([part async for part in parts])

    fetches = [asyncio.create_task(fetch(cache)) for cache in range(2 * MAX_READERS_OF_ONE)]
    await peers.full.wait()
    peers.go_on.set()
    assert await asyncio.gather(*fetches) == [len(NAMES)] * len(fetches)
    assert peers.most == MAX_READERS_OF_ONE


class Large:
    """A handler with more KV than a connection takes on its way."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def find(self, chain: bytes, _caller: Caller) -> Sequence[tuple[int, int, int]]:
        return [(k, 0, 2) for k in range(len(chain) // NAME_BYTES)]

    async def read(self, _chain: bytes, _caches: range, _caller: Caller) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield bytes(4 << 20)
        finally:
            self.ended.set()


async def test_a_peer_that_does_not_read_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "KV_READ_S", 0.3)
    handler, others = Large(), Handlers()
    server = RpcServer(["127.0.0.1"], 0)
    await server.start(others, others, others, handler)  # type: ignore[arg-type]
    target = f"127.0.0.1:{server.port}"
    try:
        async with RpcClient() as client, grpc.aio.insecure_channel(target) as channel, asyncio.timeout(PATIENCE_S):
            assert await client.find_kv(Address(target), CHAIN) == [(0, 0, 2), (1, 0, 2), (2, 0, 2)]
            call = KvStub(channel).Read(serving_pb2.KvQuery(chain=CHAIN, end=2))
            assert await call.read() is not grpc.aio.EOF
            await handler.ended.wait()
            call.cancel()
    finally:
        await server.stop(0)
