"""Blocks of KV between nodes, over real gRPC servers on loopback."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self

import pytest

from node.core.errors import NotAdmitted, Overloaded
from node.core.nodes import Address, Caller
from node.core.pool import Pool
from node.kv.blocks import chain_of
from node.kv.exchange import MAX_READERS_OF_ONE, KvExchange, sources
from node.kv.store import KvStore
from node.rpc.client import RpcClient
from node.rpc.server import RpcServer
from tests.kv.test_store import NAMES, TOKENS, VERSION, kv, only_file

CHAIN = chain_of(VERSION, TOKENS)
A, B = Address("127.0.0.1:1", "a"), Address("127.0.0.1:2", "b")
LARGE = 1 << 20


class Node:
    """A node with a store, its server, and a client of its own."""

    def __init__(self, folder: Path, *, keeps: bool = True) -> None:
        self.members = {"127.0.0.1"}
        self.store = KvStore(folder / "kv", 1 << 20)
        self.store.open()
        self.server, self.client = RpcServer(("127.0.0.1",), 0), RpcClient()
        self.others: list[Address] = []
        pool, is_member = Pool("kv", 2, 16), lambda caller: caller.address in self.members
        self.exchange = KvExchange(self.store, pool, self.client, lambda: self.others, is_member)
        self._kv = self.exchange if keeps else None

    async def __aenter__(self) -> Self:
        nobody: Any = None
        await self.server.start(nobody, nobody, nobody, self._kv)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.__aexit__()
        await self.server.stop(0)

    @property
    def address(self) -> Address:
        return Address(f"127.0.0.1:{self.server.port}", "n")


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path / "one") as node:
        yield node


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path / "two") as node:
        yield node


async def fetched(node: Node, peer: Node, caches: range, most: int = LARGE) -> list[Any]:
    async with aclosing(node.exchange.fetch(peer.address, CHAIN, caches, most)) as blocks:
        return [block async for block in blocks]


async def test_a_node_takes_from_another_one_what_it_lacks(one: Node, two: Node) -> None:
    one.others = [two.address]
    for name in NAMES[:2]:
        two.store.write("m", name, kv(2, 6))
    wanted = [{1, 3, 4}, {4}, {3}]
    assert await one.exchange.ask(CHAIN, wanted) == (0, {}), "cache 1 is nowhere"
    asked = {(two.address, range(3, 5)): [0], (two.address, range(4, 5)): [1]}
    assert await one.exchange.ask(CHAIN, [{3, 4}, {4}, {3}]) == (2, asked)
    assert await fetched(one, two, range(3, 5)) == [kv(3, 5, 0)] * 2


async def test_only_members_get_any(one: Node, two: Node) -> None:
    one.others, two.members = [two.address], set()
    two.store.write("m", NAMES[0], kv(0, 1))
    assert await one.exchange.ask(CHAIN, [{0}]) == (0, {})
    assert await fetched(one, two, range(1)) == []
    with pytest.raises(NotAdmitted):
        await two.exchange.find(CHAIN, Caller("127.0.0.1"))


async def test_a_node_that_keeps_none_or_is_gone_or_too_old_has_none(one: Node, tmp_path: Path) -> None:
    async with Node(tmp_path / "old", keeps=False) as old:
        one.others = [old.address]
        assert await one.exchange.ask(CHAIN, [{0}]) == (0, {})
        assert await fetched(one, old, range(1)) == []
    assert await one.exchange.ask(CHAIN, [{0}]) == (0, {})


async def test_a_block_that_is_damaged_there_ends_what_comes(one: Node, two: Node, tmp_path: Path) -> None:
    for name in NAMES:
        two.store.write("m", name, kv(0, 1))
    second = next((tmp_path / "two" / "kv").glob(f"*/{NAMES[1]}*"))
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    second.write_bytes(data)
    assert await fetched(one, two, range(1)) == [kv(0, 1)]


async def test_a_block_of_too_many_bytes_is_not_taken(
    one: Node, two: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two.store.write("m", NAMES[0], kv(0, 1))
    size = only_file(tmp_path / "two").stat().st_size
    assert await fetched(one, two, range(1), size - 1) == []
    assert f"sent more than {size - 1:,} bytes" in caplog.text
    assert len(await fetched(one, two, range(1), size)) == 1


async def test_a_reader_has_a_few_streams_at_once(one: Node) -> None:
    one.store.write("m", NAMES[0], kv(0, 1))
    caller = Caller("127.0.0.1")
    reading = [one.exchange.read(CHAIN, range(1), caller) for _ in range(MAX_READERS_OF_ONE)]
    for each in reading:
        await anext(each)
    with pytest.raises(Overloaded):
        await anext(one.exchange.read(CHAIN, range(1), caller))
    await reading[0].aclose()
    await anext(one.exchange.read(CHAIN, range(1), caller))


def test_each_block_is_asked_for_where_its_caches_are() -> None:
    held = {A: [(0, 0, 2), (1, 0, 2)], B: [(0, 2, 5), (1, 2, 4), (2, 0, 9)]}
    assert sources(held, [{0, 1, 2, 3}, {3}, {4}]) == (
        3,
        {(A, range(2)): [0], (B, range(2, 4)): [0], (B, range(3, 4)): [1], (B, range(4, 5)): [2]},
    )
    assert sources(held, [set(), {4}, set()]) == (1, {}), "a block that nobody has ends the sequence"
    assert sources({}, [set(), set()]) == (2, {})
