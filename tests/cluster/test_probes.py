"""When the bandwidth of a path is measured."""

import asyncio
from types import SimpleNamespace

import pytest

from node.cluster.probes import Probes, is_quiet
from node.core.errors import PeerTimeout
from node.core.models import ModelVersion, Shard
from node.core.nodes import Memory, NodeInfo, PeerHint
from node.core.reports import NodeReport, RingTraffic, StageReport, StageState
from node.core.signal import Signal
from node.core.views import NodeState
from node.host.interfaces import Interface
from node.members.address_book import AddressBook

ETHERNET = Interface("en0", "ethernet", ("192.168.1.2",))


def report(*, traffic=(), stages=()):
    info = NodeInfo("me", 1, "me", "home", "0.1.0", 1, ("192.168.1.2",), 7001, 7002)
    return NodeReport(info, Memory(1, 1), traffic=traffic, stages=stages)


def stage(state):
    return report(stages=(StageReport("r", Shard(ModelVersion("m"), 0, 2), state),))


@pytest.mark.parametrize(
    ("nodes", "quiet"),
    [
        ((report(),), True),
        ((report(traffic=(RingTraffic("r"),)),), True),
        ((report(), report(traffic=(RingTraffic("r", running=1),))), False),
        ((report(traffic=(RingTraffic("r", queued=1),)),), False),
        ((stage(StageState.READY), stage(StageState.ENDED), stage(StageState.FAILED)), True),
        ((stage(StageState.FETCHING),), False),
        ((report(), stage(StageState.LOADING)), False),
    ],
)
def test_a_cluster_that_answers_or_loads_is_not_disturbed(nodes, quiet):
    assert is_quiet(nodes) is quiet


class Client:
    """Measures only where the test lets it."""

    def __init__(self):
        self.begun = asyncio.Queue()
        self.rates = asyncio.Queue()

    async def probe(self, peer, timeout_s):
        return 1.0

    async def bandwidth(self, peer, timeout_s):
        self.begun.put_nowait(peer.target)
        if (rate := await self.rates.get()) is None:
            raise PeerTimeout("late")
        return rate

    def drop(self, peer):
        pass


async def rounds():
    """Let all nodes be probed some times."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_each_path_in_use_is_measured_one_after_the_other_and_only_while_all_is_quiet(monkeypatch):
    monkeypatch.setattr("node.cluster.probes.LOOK_S", 0.0)
    client, nodes = Client(), [report(traffic=(RingTraffic("r", running=1),))]
    book = AddressBook("me", client, (ETHERNET,), anywhere=False)
    membership = SimpleNamespace(state_of=lambda _: NodeState.ALIVE)
    agent = SimpleNamespace(news=Signal(), book=book, membership=membership, alive=lambda: tuple(nodes))
    for name, last in (("a", 5), ("b", 6)):
        book.add(PeerHint(name, (f"192.168.1.{last}",), 7001))
    probes = Probes(agent, client)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        tasks = [group.create_task(probes.run(name)) for name in "ab"]
        await rounds()
        assert len(book.paths_to_peers()) == 2
        assert client.begun.empty(), "a request runs"
        nodes[:] = [report()]
        first = await client.begun.get()
        await rounds()
        assert client.begun.empty(), "the other one waits"
        client.rates.put_nowait(8e7)
        second = await client.begun.get()
        client.rates.put_nowait(None)
        await rounds()
        assert {first, second} == {"192.168.1.5:7001", "192.168.1.6:7001"}
        assert client.begun.empty(), "each is measured once, even if that fails"
        assert sorted(link.bytes_per_s for link in book.paths_to_peers()) == [0.0, 8e7]
        for task in tasks:
            task.cancel()
