"""A partition heals: the head of the higher term takes over the existing rings, and no stream pauses."""

from collections.abc import Iterator

import pytest

from node.core.rings import Ring
from tests.sim.whole_cluster import simulated
from tests.sim.world.cluster import World
from tests.sim.world.machine import Ask, Process
from tests.sim.world.model import MB


class Cluster:
    """Machines; any two of them can hold the model. n1, with a little more memory, becomes head."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.step_s = 0.05
        for machine in world.machines.values():
            machine.usable = (430 if machine.name == "n1" else 420) * MB
            machine.start()
        world.run(7.0)
        self.processes = {process.name: process for process in world.processes()}
        self.rings = self.processes["n1"].agent.placement.rings

    def split(self, *side: str) -> None:
        self.world.net.side = dict.fromkeys(side, 1)
        self.world.net.review()
        self.world.run(5.0)

    def heal(self) -> None:
        self.world.net.side = {}
        self.world.net.review()

    def ask(self, ring: Ring) -> Ask:
        return self.world.ask(self.processes[ring.driver], max_tokens=80)

    def heads(self) -> set[str]:
        return {process.agent.head for process in self.processes.values()}

    def placed(self) -> list[set[str]]:
        return [{ring.id for ring in process.agent.placement.rings} for process in self.processes.values()]

    def recoveries(self) -> list[int]:
        return [process.router.recoveries for process in self.processes.values()]


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(1, request.param)
    world.has_draft = False  # it would need more memory
    with simulated(world):
        yield world
        assert not world.timeline.violations


def alone(cluster: Cluster) -> Process:
    (name,) = cluster.processes.keys() - {stage.node for ring in cluster.rings for stage in ring.stages}
    return cluster.processes[name]


@pytest.mark.parametrize("world", [3], indirect=True)
def test_a_head_that_was_cut_off_takes_over_the_ring_that_stands(world):
    cluster = Cluster(world)
    (ring,), other = cluster.rings, alone(cluster)
    cluster.split(other.name)
    assert other.agent.is_head
    assert not other.agent.placement.rings

    ask = cluster.ask(ring)
    world.run(0.3)
    cluster.heal()

    assert world.until(lambda: cluster.heads() == {other.name}, 5.0)
    assert world.until(lambda: world.ended(ask), 20.0)
    world.run(5.0)
    assert ask.finished
    assert cluster.recoveries() == [0, 0, 0]
    assert cluster.placed() == 3 * [{ring.id}]


@pytest.mark.parametrize("world", [4], indirect=True)
def test_both_sides_keep_their_rings(world):
    cluster = Cluster(world)
    first, second = cluster.rings
    cluster.split(*(stage.node for stage in second.stages))
    assert len(cluster.heads()) == 2

    asks = [cluster.ask(ring) for ring in cluster.rings]
    world.run(0.3)
    cluster.heal()

    assert world.until(lambda: len(cluster.heads()) == 1, 5.0)
    assert world.until(lambda: all(map(world.ended, asks)), 20.0)
    world.run(5.0)
    assert all(ask.finished for ask in asks)
    assert cluster.recoveries() == [0, 0, 0, 0]
    assert cluster.placed() == 4 * [{first.id, second.id}]


@pytest.mark.parametrize("world", [3], indirect=True)
def test_what_does_not_stand_is_not_waited_for_long(world):
    """A node of the ring is lost for good while the cluster is split."""
    cluster = Cluster(world)
    (ring,), other = cluster.rings, alone(cluster)
    cluster.split(other.name)
    lost = ring.stages[1].node
    world.machines[lost].pull_plug()
    del cluster.processes[lost]
    world.run(5.0)
    cluster.heal()

    assert world.until(lambda: len(cluster.heads()) == 1, 5.0)
    ask = cluster.ask(ring)
    assert world.until(lambda: world.ended(ask), 15.0)
    assert ask.finished


@pytest.mark.parametrize("world", [2], indirect=True)
def test_a_node_that_is_needed_at_once_is_told_so_at_once(world):
    """The head was stopped. Its part of the old ring is useless, because the other node has freed its own."""
    cluster = Cluster(world)
    (old,) = cluster.rings
    world.machines["n1"].stop(6.0)
    world.run(6.5)
    assert world.until(lambda: len(set(map(frozenset, cluster.placed()))) == 1 and {old.id} != cluster.placed()[0], 1.0)
    assert len(cluster.placed()[0]) == 1


@pytest.mark.parametrize("world", [4], indirect=True)
def test_nodes_that_lose_each_other_for_good_are_no_ring_any_more(world):
    """The head, which started first and is too small for a part, reaches both."""
    for name, usable, wait_s in (("n4", 100, 4.0), ("n1", 420, 0.0), ("n2", 420, 0.0), ("n3", 420, 7.0)):
        world.machines[name].usable = usable * MB
        world.machines[name].start()
        world.run(wait_s)
    head = world.machines["n4"].process
    (ring,) = head.agent.placement.rings
    pair = frozenset(stage.node for stage in ring.stages)
    assert (head.agent.head, len(pair)) == ("n4", 2)
    ask = world.ask(head, max_tokens=80, stop_tokens=frozenset())
    world.run(0.5)
    assert 0 < len(ask.tokens) < 80

    world.net.unreachable = {pair}
    world.net.review()

    assert world.until(lambda: world.ended(ask), 20.0)
    assert ask.finished
    (after,) = head.agent.placement.rings
    assert {stage.node for stage in after.stages} != pair
