"""Weights outlive their ring: after a node was unreachable for some seconds, nothing has to be loaded."""

from collections.abc import Iterator

import pytest

from node.core.models import Shard
from node.core.reports import StageState
from tests.sim.whole_cluster import simulated
from tests.sim.world.cluster import World
from tests.sim.world.model import MB, MODEL


@pytest.fixture
def world() -> Iterator[World]:
    """Two machines that can hold the model only together; n1 is head."""
    world = World(1, 2)
    with simulated(world):
        for machine in world.machines.values():
            machine.usable = (430 if machine.name == "n1" else 420) * MB
            machine.start()
        world.run(1.0)
        assert world.until(lambda: ready(world), 10.0)
        yield world
        world.run(0.1)  # frames of the last answer may be on their way
        world.check_left_over()
        assert not world.timeline.violations


def ready(world: World) -> bool:
    """Whether all nodes follow one placement and hold its layers."""
    placements = {process.agent.placement.fence for process in world.processes()}
    loads = [load for process in world.processes() for load in process.rings.reports()]
    return len(placements) == 1 and len(loads) == 2 and all(load.state is StageState.READY for load in loads)


def held(world: World) -> dict[str, tuple[Shard, ...]]:
    return {process.name: process.rings._shards.idle(()) for process in world.processes()}


@pytest.mark.parametrize("name", ["n1", "n2"])
@pytest.mark.parametrize("how", ["stop", "split"])
def test_the_ring_is_back_as_soon_as_its_node_is(world: World, name: str, how: str) -> None:
    before, loads = held(world), world.loads
    if how == "stop":
        world.machines[name].stop(4.0)
    else:
        world.net.side = {name: 1}
        world.net.review()
    world.run(3.5)
    other = next(process for process in world.processes() if process.name != name)
    assert [refusal.model for refusal in other.agent.placement.refused] == [MODEL]
    assert other.rings.idle() == before[other.name]
    assert other.rings.kv_bytes() == 0
    if how == "stop":
        world.run(0.5)
    else:
        world.net.side = {}
        world.net.review()
    assert world.until(lambda: ready(world), 5.0)
    assert (held(world), world.loads) == (before, loads)
    ask = world.ask(other)
    assert world.until(lambda: ask.finished, 3.0)


def test_a_node_that_is_drained_keeps_nothing(world: World) -> None:
    world.machines["n2"].kill()
    assert world.until(world.processes()[0].rings.idle, 3.0)
    (process,) = world.processes()
    process.loop.call_soon(lambda: process.agent.set_draining(True))
    assert world.until(lambda: not held(world)["n1"], 1.0)
