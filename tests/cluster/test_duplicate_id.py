"""Two processes with one key detect each other, and the younger gives way; nobody without the key can cause that."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from node.cluster import duplicate_id as module
from node.cluster.agent import Agent
from node.cluster.duplicate_id import MAX_ADDRESSES, MOST_ASKED, DuplicateId
from node.core.errors import PeerUnavailable
from node.core.nodes import Address, Caller, Memory, NodeInfo, PeerHint
from node.core.reports import Heartbeat, NodeReport
from node.host.interfaces import Interface
from node.host.node_key import NodeKey, id_of, new_key
from node.members.address_book import AddressBook

KEY = new_key()


class Network:
    """The processes by address."""

    def __init__(self) -> None:
        self.there: dict[str, Any] = {}
        self.asked: list[str] = []

    def start(
        self, address: str, started_at: int, *, key: NodeKey = KEY, port: int = 1, incarnation: int = 1
    ) -> "Process":
        self.there[f"{address}:{port}"] = process = Process(self, address, started_at, key, port, incarnation)
        return process

    def client(self, address: str) -> Any:
        async def exchange(peer: Address, heartbeat: Heartbeat, timeout_s: float) -> Heartbeat:
            return self._at(peer).agent.exchange(heartbeat, Caller(address))

        async def prove(peer: Address, nonce: bytes, timeout_s: float) -> tuple[NodeInfo, bytes]:
            return self._at(peer).duplicate_id.prove(nonce)

        return SimpleNamespace(exchange=exchange, prove=prove, drop=lambda peer: None)

    def _at(self, peer: Address) -> Any:
        self.asked.append(peer.target)
        if peer.target not in self.there:
            raise PeerUnavailable(f"nobody at {peer}")
        return self.there[peer.target]


class Process:
    def __init__(
        self, network: Network, address: str, started_at: int, key: NodeKey, port: int, incarnation: int
    ) -> None:
        name = f"at-{address}-{port}"
        self.info = NodeInfo(
            id_of(key.public_key()), incarnation, name, "home", "1", 1, (address,), port, 2, started_at=started_at
        )
        client = network.client(address)
        self.saved: list[int] = []
        self.book = AddressBook(self.info.id, client, (Interface("en0", "ethernet", (address,)),), anywhere=False)
        self.agent = Agent(self.info, 0, self.book, self._report, lambda _: None)
        self.duplicate_id = DuplicateId(self.agent, self.book, client, key, self.saved.append)

    def _report(self) -> NodeReport:
        return NodeReport(self.agent.info, Memory(1, 1))

    @property
    def hint(self) -> PeerHint:
        return PeerHint(self.info.id, self.info.addresses, self.info.grpc_port)


@contextlib.asynccontextmanager
async def looking(*processes: Process) -> AsyncIterator[list[asyncio.Task[NodeInfo]]]:
    tasks = [asyncio.create_task(process.duplicate_id.older()) for process in processes]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def until(ask: Any) -> None:
    async with asyncio.timeout(5):
        while True:
            if ask():
                return
            await asyncio.sleep(0)


async def settled() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize("told", [0, 1])
@pytest.mark.parametrize("port", [1, 7])
@pytest.mark.parametrize("incarnation", [3, 9])
async def test_of_two_the_younger_gives_way_whoever_is_told(told: int, port: int, incarnation: int) -> None:
    """On another machine, with the same port or another; whichever was started more often."""
    network = Network()
    older = network.start("10.0.0.1", 1000, incarnation=5)
    younger = network.start("10.0.0.2", 2000, port=port, incarnation=incarnation)
    both = (older, younger)
    async with looking(*both) as (first, second):
        both[told].book.add_advert(both[1 - told].hint)
        assert await asyncio.wait_for(second, 5) == older.info
        await until(lambda: older.agent.view().duplicate == younger.info.name)
        assert not first.done()
        assert older.agent.info.incarnation == max(5, incarnation + 1), (
            "what others heard of the younger one is outdated"
        )
        assert older.saved == ([10] if incarnation == 9 else [])


async def test_clocks_that_agree_to_the_millisecond_still_leave_one() -> None:
    network = Network()
    both = [network.start(f"10.0.0.{n}", 1000) for n in (1, 2)]
    async with looking(*both) as (first, second):
        both[0].book.add(both[1].hint)
        await asyncio.wait_for(second, 5)
        assert not first.done()


async def test_a_node_is_not_its_own_duplicate() -> None:
    """Whatever leads to it: an old port, or a machine in between that passes requests on."""
    network = Network()
    own = network.start("10.0.0.1", 1000)
    network.there["10.0.0.9:1"] = network.there["10.0.0.1:5"] = own
    async with looking(own) as (task,):
        own.book.add(own.hint)
        await settled()
        assert not network.asked
        own.book.add(PeerHint(own.info.id, ("10.0.0.1", "10.0.0.9"), 5))
        own.book.add(PeerHint(own.info.id, ("10.0.0.1", "10.0.0.9"), 1))
        await settled()
        assert len(network.asked) == 5, "10.0.0.1:5 and 10.0.0.9:1 by both calls, 10.0.0.9:5 where nobody is"
        assert not task.done()
        assert not own.agent.view().duplicate


async def test_nobody_without_the_key_is_a_duplicate() -> None:
    """In an open cluster, any machine may claim this id."""
    network = Network()
    own = network.start("10.0.0.1", 1000, incarnation=5)
    liar = network.start("10.0.0.2", 1, incarnation=99, key=new_key())
    liar.agent.info = own.info.__class__(**{**_fields(liar.info), "id": own.info.id})
    replayed = own.duplicate_id.prove(bytes(32))
    network.there["10.0.0.3:1"] = SimpleNamespace(
        agent=liar.agent, duplicate_id=SimpleNamespace(prove=lambda nonce: (_older(replayed[0]), replayed[1]))
    )
    async with looking(own) as (task,):
        for address in ("10.0.0.2", "10.0.0.3"):
            own.book.add(PeerHint(own.info.id, (address,), 1))
        await settled()
        assert set(network.asked) == {"10.0.0.2:1", "10.0.0.3:1"}
        assert not task.done()
        assert own.agent.info == own.info
        assert not own.agent.view().duplicate


def _fields(info: NodeInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in info.__slots__}


def _older(info: NodeInfo) -> NodeInfo:
    return NodeInfo(**{**_fields(info), "started_at": 1})


async def test_invented_places_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network()
    own = network.start("10.0.0.1", 1000)
    many = tuple(f"10.0.{n // 200}.{2 + n % 200}" for n in range(1000))
    async with looking(own):
        own.book.add(PeerHint(own.info.id, many, 1))
        await until(lambda: network.asked)
        await settled()
        assert len(network.asked) == MAX_ADDRESSES
        for _ in range(20):
            own.book.add(PeerHint(own.info.id, many[:1], 1))
            await settled()
        assert len(network.asked) == MAX_ADDRESSES, "not again so soon"
        for address in many:
            own.book.add(PeerHint(own.info.id, (address,), 1))
            await settled()
        assert len(own.duplicate_id._asked_at) == MOST_ASKED
        monkeypatch.setattr(module, "ASK_AGAIN_S", 0.0)
        before = len(network.asked)
        own.book.add(PeerHint(own.info.id, many[-1:], 1))
        await until(lambda: len(network.asked) > before)
    for _ in range(1000):
        own.book.add(PeerHint(own.info.id, many[:1], 1))
    assert own.book.own_hints.full()
