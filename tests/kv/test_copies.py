"""Copies of KV at another node: who keeps them, in which order they go there, and what ends them."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from node.core.errors import BadRequest, NotAdmitted, Overloaded, PeerUnavailable, PippinError
from node.core.nodes import Address, Caller
from node.core.reports import NodeReport, StageReport
from node.core.reports import Path as Route
from node.kv import copies as copies_module
from node.kv import exchange as exchange_module
from node.kv.blocks import BLOCK, NAME_BYTES, chain_of, decode, encode, names_of
from node.kv.copies import MOST_BYTES_PER_S, SHARE, UNMEASURED, CopyKeeper, KvCopies, keeper_of
from node.kv.exchange import MAX_WRITERS, MAX_WRITERS_OF_ONE
from node.rpc import server as server_module
from node.wire import serving_pb2
from tests.kv.test_between_nodes import Node
from tests.kv.test_store import VERSION, kv
from tests.patience import PATIENCE_S
from tests.rpc.conftest import report

TOKENS = list(range(4 * BLOCK))
CHAIN = chain_of(VERSION, TOKENS)
NAMES = names_of(CHAIN)
CACHES = range(2, 4)
SIZE = sum(map(len, encode(NAMES[0], kv(2, 4))))
HERE = Caller("127.0.0.1")


def block(k: int, first: int = 2, end: int = 4) -> bytes:
    return b"".join(encode(NAMES[k], kv(first, end, k)))


# --- who keeps them ---------------------------------------------------------------------------------------------------


def told(*kinds: str, busy: Sequence[str] = (), **facts: Any) -> list[NodeReport]:
    """Reports of nodes a, b, ..., each of which has a path of these kinds to all others, in their order."""
    names = "abcdefgh"[: len(kinds) + 1]
    others = dict(zip(names[1:], kinds, strict=True))
    stage: Any = None  # of which only the number counts
    found = []
    for name in names:
        paths = [
            Route(other, other, 1.0, kind=others.get(other, others.get(name, ""))) for other in names if other != name
        ]
        stages: tuple[StageReport, ...] = (stage,) if name in busy else ()
        found.append(replace(report(name, paths=tuple(paths), kv_budget=1000, stages=stages), **facts.get(name, {})))
    return found


def chosen(reports: Sequence[NodeReport], me: str = "a", before: str = "", *, wireless: bool = False) -> str:
    keeper = keeper_of(me, reports, Address, before, wireless=wireless)
    return keeper.address.target if keeper else ""


def test_an_idle_node_keeps_the_copies_and_else_the_next_one() -> None:
    wired = "ethernet", "ethernet", "thunderbolt"
    assert chosen(told(*wired, busy="abc")) == "d"
    assert [chosen(told(*wired, busy="abcd"), me) for me in "abcd"] == ["b", "c", "d", "a"]
    assert chosen(told(*wired, busy="abc"), before="b") == "b"  # it has most of them already


def test_no_copy_goes_to_a_node_that_leaves_or_keeps_none_or_is_on_wifi() -> None:
    wired = "ethernet", "ethernet"
    assert chosen(told(*wired, b={"draining": True})) == "c"
    assert chosen(told(*wired, b={"kv_budget": 0}), before="b") == "c"
    assert chosen(told("wi-fi", "ethernet")) == "c"
    assert chosen(told("wi-fi", "ethernet"), "c") == "a"
    assert chosen(told("wi-fi")) == ""
    assert chosen(told("wi-fi"), wireless=True) == "b"
    one_end = told("ethernet")
    one_end[1] = replace(one_end[1], paths=(Route("a", "a", 1.0, kind="wi-fi"),))
    assert chosen(one_end) == ""
    assert chosen(told()) == ""


# --- how they get there -----------------------------------------------------------------------------------------------


class Keepers:
    """The client of a node: the other node has `held` blocks, and gets what is sent unless `failure` says why not."""

    def __init__(self) -> None:
        self.held = 0
        self.sent: list[tuple[str, str]] = []
        """Node, and name of the block."""
        self.rates: list[float] = []
        self.discarded: list[tuple[str, int]] = []
        self.failure: PippinError | None = None
        self.hangs: asyncio.Event | None = None
        """Set when a block has come, after which no answer comes."""
        self.on_sent: Callable[[], object] = lambda: None

    async def find_kv(self, _peer: Address, chain: bytes) -> list[tuple[int, int, int]]:
        return [(k, 0, 9) for k in range(min(self.held, len(chain) // NAME_BYTES))]

    async def keep_kv(self, peer: Address, model: str, chain: bytes, data: bytes, bytes_per_s: float) -> None:
        if self.failure:
            failure, self.failure = self.failure, None
            raise failure
        assert model == "m"
        name = names_of(chain)[-1]
        assert decode(io.BytesIO(data), name, CACHES) == kv(2, 4, NAMES.index(name))
        self.sent.append((peer.node, name))
        self.rates.append(bytes_per_s)
        self.on_sent()
        if self.hangs:
            self.hangs.set()
            await asyncio.Event().wait()

    async def discard_kv(self, peer: Address, chain: bytes) -> None:
        self.discarded.append((peer.node, len(chain) // NAME_BYTES))


@pytest.fixture
def client() -> Keepers:
    return Keepers()


@pytest.fixture
def keepers() -> list[CopyKeeper]:
    """The first one is chosen."""
    return [CopyKeeper(Address("b:1", "b"), 1 << 20, 0.0)]


@pytest.fixture
async def copies(tmp_path: Path, client: Keepers, keepers: list[CopyKeeper]) -> KvCopies:
    """Of a node whose disk has all blocks."""
    node = Node(tmp_path)  # its server needs a loop
    for k, name in enumerate(NAMES):
        node.store.write("m", name, kv(2, 4, k))
    node.exchange.client = client  # type: ignore[assignment]
    return KvCopies(node.exchange, lambda _: keepers[0] if keepers else None)


def add(copies: KvCopies, blocks: int = 4, number: int = 1) -> None:
    copies.add(number, "m", CHAIN[: blocks * NAME_BYTES], CACHES, SIZE)


async def ended(copies: KvCopies) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while copies._copying and not copies._copying.done():
            await asyncio.wait([copies._copying])
    assert copies.behind == 0


async def test_the_oldest_blocks_go_first_and_none_twice(copies: KvCopies, client: Keepers) -> None:
    add(copies, 2)
    assert copies.behind == 2 * SIZE
    await ended(copies)
    add(copies, 4)
    await ended(copies)
    add(copies, 4)
    await ended(copies)
    assert client.sent == [("b", name) for name in NAMES]


async def test_what_the_other_node_has_already_is_not_sent(copies: KvCopies, client: Keepers) -> None:
    client.held = 3
    add(copies)
    await ended(copies)
    assert client.sent == [("b", NAMES[3])]


async def test_they_take_a_share_of_the_measured_bandwidth(
    copies: KvCopies, client: Keepers, keepers: list[CopyKeeper]
) -> None:
    for number, measured in enumerate((0.0, 1e8, 4e9)):
        keepers[0] = replace(keepers[0], bytes_per_s=measured)
        add(copies, 1, number)
        await ended(copies)
    assert client.rates == [SHARE * UNMEASURED, SHARE * 1e8, MOST_BYTES_PER_S]


async def test_of_a_sequence_larger_than_the_other_disk_the_first_blocks_are_copied(
    copies: KvCopies, client: Keepers, keepers: list[CopyKeeper]
) -> None:
    keepers[0] = replace(keepers[0], budget=3 * SIZE)
    add(copies)
    await ended(copies)
    assert [name for _, name in client.sent] == NAMES[:3]


async def test_another_node_gets_all_when_the_first_one_is_gone(
    copies: KvCopies, client: Keepers, keepers: list[CopyKeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies_module, "PAUSE_S", 0.0)

    def lost() -> None:
        client.failure = PeerUnavailable("b is gone.")
        client.on_sent = lambda: None
        keepers[0] = replace(keepers[0], address=Address("c:1", "c"))

    client.on_sent = lost
    add(copies)
    await ended(copies)
    assert client.sent == [("b", NAMES[0]), *(("c", name) for name in NAMES)]


async def test_a_lone_node_copies_nothing_until_another_one_has_joined(
    copies: KvCopies, client: Keepers, keepers: list[CopyKeeper]
) -> None:
    keeper = keepers.pop()
    add(copies, 3)
    await ended(copies)
    keepers.append(keeper)
    add(copies, 4)
    await ended(copies)
    assert client.sent == [("b", name) for name in NAMES]


async def test_what_a_failed_device_has_computed_is_deleted_at_the_others(copies: KvCopies, client: Keepers) -> None:
    add(copies, 2)
    await ended(copies)
    client.hangs = asyncio.Event()
    add(copies, 3)
    await client.hangs.wait()
    await copies.recall()  # the third one may have come
    assert client.discarded == [("b", 3)]
    assert copies.behind == 0


# --- at the other node, over a real gRPC server -----------------------------------------------------------------------


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path) as node:
        yield node


def address(node: Node) -> Address:
    return Address(f"127.0.0.1:{node.server.port}")


async def test_a_copy_is_found_as_the_nodes_own_kv_and_the_first_blocks_stay_longest(other: Node) -> None:
    begun = time.monotonic()
    data = block(0) + bytes(0)
    for k in range(4):
        await other.client.keep_kv(address(other), "m", CHAIN[: (k + 1) * NAME_BYTES], block(k), 20 * len(data))
    assert time.monotonic() - begun >= 4 / 20  # no faster than that
    assert await other.client.find_kv(address(other), CHAIN) == [(k, 2, 4) for k in range(4)]
    assert other.store.read(NAMES[3], CACHES) == kv(2, 4, 3)
    assert [each.name for each in other.store._files.values()] == NAMES[::-1]
    await other.client.discard_kv(address(other), CHAIN[NAME_BYTES:])
    assert await other.client.find_kv(address(other), CHAIN) == [(0, 2, 4)]


@pytest.mark.parametrize(
    ("data", "chain"),
    [
        (block(0)[:-1], CHAIN[:NAME_BYTES]),
        (block(0), CHAIN),
        (block(0), b""),
        (b"", CHAIN),
        (b"".join(encode(NAMES[0], {})), CHAIN[:NAME_BYTES]),
        (b"".join(encode(NAMES[0], {2: kv(2, 3)[2], 4: kv(4, 5)[4]})), CHAIN[:NAME_BYTES]),
    ],
    ids=("torn", "of another block", "no name", "empty", "no caches", "a gap"),
)
async def test_a_damaged_copy_is_refused(other: Node, data: bytes, chain: bytes) -> None:
    with pytest.raises(BadRequest, match="can't be kept"):
        await other.client.keep_kv(address(other), "m", chain, data, 1e9)
    assert not other.store.bytes


async def test_only_members_may_have_copies_kept_or_deleted(other: Node) -> None:
    other.members.clear()
    with pytest.raises(NotAdmitted):
        await other.client.keep_kv(address(other), "m", CHAIN[:NAME_BYTES], block(0), 1e9)
    with pytest.raises(NotAdmitted):
        await other.client.discard_kv(address(other), CHAIN)


async def test_a_full_disk_and_an_endless_copy_are_refused(other: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    other.store.budget = 10
    with pytest.raises(Overloaded, match="no room"):
        await other.client.keep_kv(address(other), "m", CHAIN[:NAME_BYTES], block(0), 1e9)
    monkeypatch.setattr(exchange_module, "MAX_COPIED_BYTES", 1 << 20)
    with pytest.raises(PippinError):  # that its stream is closed, if it sees so before it sees why
        await other.client.keep_kv(address(other), "m", CHAIN[:NAME_BYTES], bytes(1 << 21), 1e9)
    assert not other.store.bytes


async def test_copies_beyond_the_most_at_once_are_refused(tmp_path: Path) -> None:
    node, go_on = Node(tmp_path), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        await go_on.wait()
        yield block(0)

    async def keep(caller: Caller) -> None:
        await node.exchange.keep("m", CHAIN[:NAME_BYTES], slow(), caller)

    node.members = {f"10.0.0.{k}" for k in range(9)}
    callers = [Caller(f"10.0.0.{k // MAX_WRITERS_OF_ONE}") for k in range(MAX_WRITERS)]
    keeping = [asyncio.create_task(keep(caller)) for caller in callers]
    await asyncio.sleep(0)
    for caller in (callers[0], Caller("10.0.0.8")):
        with pytest.raises(Overloaded):
            await keep(caller)
    go_on.set()
    await asyncio.gather(*keeping)
    await keep(callers[0])


@pytest.mark.parametrize(
    "parts",
    [[], [b"\xff\xff"], [serving_pb2.KvCopy(model="m" * 600, data=b"x").SerializeToString()], [bytes(9 << 20)]],
    ids=("none", "no message", "a long name", "a large one"),
)
async def test_a_stream_of_anything_is_refused(other: Node, parts: list[bytes]) -> None:
    async with grpc.aio.insecure_channel(address(other).target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.stream_unary("/pippin.serving.Kv/Keep")(iter(parts))
    assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
    assert await other.client.find_kv(address(other), CHAIN) == []


async def test_copies_are_deleted_once_a_node_that_was_not_reached_is_back(
    copies: KvCopies, client: Keepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(copies, 2)
    await ended(copies)

    monkeypatch.setattr(copies_module, "RECALL_S", 0.0)
    discard, tries = client.discard_kv, list[Address]()

    async def reached_at_last(peer: Address, chain: bytes) -> None:
        tries.append(peer)
        if len(tries) < 3:
            raise PeerUnavailable("b did not answer.")
        await discard(peer, chain)

    monkeypatch.setattr(client, "discard_kv", reached_at_last)
    await copies.recall()
    assert client.discarded == [("b", 2)]


async def test_a_copy_that_does_not_come_loses_its_place(
    other: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "KV_KEEP_S", 0.2)

    async def silent() -> AsyncIterator[bytes]:
        yield serving_pb2.KvCopy(model="m", chain=CHAIN, data=b"x").SerializeToString()
        await asyncio.Event().wait()

    async with grpc.aio.insecure_channel(address(other).target) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="did not come within 0 s"):
            await channel.stream_unary("/pippin.serving.Kv/Keep")(silent())
    assert not other.exchange._writers.used
    assert "an RPC failed" not in caplog.text
