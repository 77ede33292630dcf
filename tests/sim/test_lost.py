"""A ring that ends although all of its nodes are well is replaced by another one of the same layers."""

from collections.abc import Iterator

import pytest

from node.cluster.head import REPLAN_S
from node.core.rings import Ring
from tests.sim.whole_cluster import simulated
from tests.sim.world.cluster import World
from tests.sim.world.model import MB

STEP_TIMEOUT_S = 60.0


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """As many machines as asked for. Any two of them hold the model; requests run in all rings."""
    world = World(1, request.param)
    world.step_s, world.has_draft = 0.05, False  # a draft model would need more memory
    with simulated(world):
        for machine in world.machines.values():
            machine.usable = (430 if machine.name == "n1" else 420) * MB
            machine.start()
        world.run(7.0)
        for process in world.processes():
            world.ask(process, max_tokens=80, stop_tokens=frozenset())
        world.run(1.0)
        yield world
        world.run(1.0)  # the last operations on caches are still on their way
        world.check_left_over()
        assert not world.timeline.violations


def rings(world: World) -> tuple[Ring, ...]:
    return world.processes()[0].agent.placement.rings


def epochs(world: World) -> int:
    return world.processes()[0].agent.placement.fence.epoch


@pytest.mark.parametrize("world", [2], indirect=True)
@pytest.mark.parametrize(("how", "within"), [("breaks", 0.5), ("vanishes", STEP_TIMEOUT_S + 5)])
def test_a_ring_that_does_not_step_has_a_successor_and_nobody_loads(world: World, how: str, within: float) -> None:
    (before,), loads = rings(world), world.loads
    world.net.sick[before.id] = how
    assert world.until(lambda: before.id not in [ring.id for ring in rings(world)], within)
    (after,) = rings(world)
    assert (after.stages, world.loads) == (before.stages, loads)
    assert after.fence > before.fence
    for process in world.processes():
        ask = world.ask(process, max_tokens=5)
        assert world.until(lambda ask=ask: ask.finished, 5.0)
    assert world.until(lambda: all(ask.finished for ask in world.asks), 20.0)


@pytest.mark.parametrize("world", [4], indirect=True)
def test_while_a_ring_is_made_again_another_takes_its_requests(world: World) -> None:
    first, second = rings(world)
    world.net.sick[first.id] = "breaks"
    assert world.until(lambda: all(ask.finished for ask in world.asks), 15.0)
    assert {ring.stages for ring in rings(world)} == {first.stages, second.stages}
    assert second in rings(world)


@pytest.mark.parametrize("world", [2], indirect=True)
def test_a_ring_that_ends_again_and_again_is_made_once_a_second_and_loses_nobody(world: World) -> None:
    before, began = epochs(world), world.timeline.now
    world.net.sick[""] = "breaks"
    world.run(8.0)
    assert 2 <= epochs(world) - before <= (world.timeline.now - began) / REPLAN_S + 1
    world.net.sick.clear()
    assert world.until(lambda: all(ask.finished for ask in world.asks), 40.0)
    ask = world.ask(world.processes()[0], max_tokens=5)
    assert world.until(lambda: ask.finished, 10.0)


def test_a_ring_that_ends_while_there_is_no_head_has_its_successor_from_the_next() -> None:
    world = World(3, 3)
    world.min_stages = 2
    world.step_s = 0.02
    with simulated(world):
        head, *others = world.machines.values()
        head.start()
        world.run(3.0)
        head.process.usable = 50 * MB
        for machine in others:
            machine.start()
        world.run(7.0)
        asker = others[0].process
        (before,) = asker.agent.placement.rings
        assert head.name not in [stage.node for stage in before.stages]
        asks = [world.ask(asker, max_tokens=80) for _ in range(4)]
        world.run(0.5)
        head.kill()
        world.machines[before.driver].reset_connections(1.0)
        assert world.until(lambda: all(ask.finished for ask in asks), 20.0)
        (after,) = asker.agent.placement.rings
        assert after.stages == before.stages
        assert after.fence.term > before.fence.term
        assert not world.timeline.violations
