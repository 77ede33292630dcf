"""A head is lost: the time until there is another one, and until it has replaced what was lost with it."""

from collections.abc import Iterator

import pytest

from tests.sim.whole_cluster import simulated
from tests.sim.world.cluster import World
from tests.sim.world.model import MB


@pytest.fixture
def world() -> Iterator[World]:
    """Three machines. n1 ranks best; any two hold the model."""
    world = World(1, 3)
    with simulated(world):
        for machine in world.machines.values():
            machine.usable = (430 if machine.name == "n1" else 420) * MB
            machine.start()
        world.run(7.0)
        yield world
        assert not world.timeline.violations


def head_of(world: World) -> str:
    """The head that all nodes follow; empty if they differ."""
    heads = {process.agent.head for process in world.processes()}
    return heads.pop() if len(heads) == 1 else ""


def seconds_until(world: World, head: str, within: float) -> float:
    begin = world.timeline.now
    while head_of(world) != head:
        assert world.timeline.now < begin + within, f"not {head} after {within} s"
        world.run(0.01)
    return world.timeline.now - begin


def test_a_killed_head_is_replaced_at_once(world: World) -> None:
    assert head_of(world) == "n1"
    world.machines["n1"].kill()
    assert seconds_until(world, "n2", 1.0) < 0.1


def test_a_killed_head_is_replaced_though_another_node_hangs(world: World) -> None:
    world.machines["n3"].stop(1.5)
    world.machines["n1"].kill()
    world.run(0.1)
    assert world.processes()[0].agent.head == "n2"
    world.run(1.6)
    assert head_of(world) == "n2"


@pytest.mark.parametrize("down_s", [0.02, 0.3, 1.5])
def test_a_head_that_restarts_keeps_nobody_waiting(world: World, down_s: float) -> None:
    world.machines["n1"].kill()
    world.timeline.after(down_s, world.machines["n1"].start)
    world.run(0.2)
    assert {process.agent.head for process in world.processes() if process.name != "n1"} == {"n2"}
    world.run(down_s)
    assert head_of(world) == "n2", "though n1, which is back, ranks better"


def test_a_head_that_came_only_now_waits_for_nobody_who_was_lost_since(world: World) -> None:
    """It gives nodes from another head time to report their rings, but not the node that it has seen go."""
    world.machines["n1"].kill()
    world.run(0.2)
    world.machines["n1"].start()
    world.run(0.7)
    assert head_of(world) == "n2"
    ring = world.processes()[0].agent.placement.rings[0]
    assert "n2" in {stage.node for stage in ring.stages}
    world.machines["n2"].kill()
    world.run(1.0)
    assert head_of(world) == "n1"
    for process in world.processes():
        assert process.agent.placement.fence.term == process.agent.term
        assert all(load.ring != ring.id for load in process.rings.reports())
