"""Rings move for speed when nodes turn out to be unequal: not for noise, and not away from what a chat has computed."""

import pytest

from node.cluster.handover import COLD_S
from tests.sim.whole_cluster import simulated
from tests.sim.world.cluster import World
from tests.sim.world.model import MB


def begun(rates: tuple[float, ...]) -> World:
    """A world of nodes of these speeds, which will share the model."""
    world = World(6, len(rates))
    world.min_stages = len(rates)
    world.has_draft = False
    for machine, rate in zip(world.machines.values(), rates, strict=True):
        machine.usable, machine.bytes_per_s = 1000 * MB, rate
    return world


def start(world: World) -> None:
    for machine in world.machines.values():
        machine.start()


def rings(world: World) -> list[str]:
    return [ring.id for ring in world.machines["n1"].process.agent.placement.rings]


@pytest.mark.parametrize("slower", [2.5, 14.0])
def test_a_node_that_was_busy_when_it_loaded_keeps_its_layers(slower):
    world = begun((25e9 / slower, 25e9))
    with simulated(world):
        start(world)
        assert world.until(lambda: bool(world.loads), 30.0)
        world.run(2.0)
        world.machines["n1"].bytes_per_s = 25e9
        before = rings(world)
        assert len(before) == 1
        world.run(2 * COLD_S)
        assert rings(world) == before
        assert not world.timeline.violations


def test_a_ring_of_unequal_nodes_moves_when_nobody_needs_what_it_has_computed():
    world = begun((10e9, 25e9))
    world.step_s = 1.0
    with simulated(world):
        start(world)
        world.run(5.0)
        assert rings(world)
        before = rings(world)
        asks = [world.ask(world.machines["n1"].process, max_tokens=80) for _ in range(3)]
        assert world.until(lambda: all(map(world.ended, asks)), 600.0)
        asked_s = world.timeline.now
        assert asked_s > 60.0  # the two measurements agree since long
        assert rings(world) == before
        world.run(COLD_S - 30.0)
        assert rings(world) == before
        assert world.until(lambda: rings(world) != before, 90.0)
        world.run(10.0)
        again = world.ask(world.machines["n1"].process, max_tokens=80)
        assert world.until(lambda: world.ended(again), 600.0)
        world.check_ends(gentle=True)
        assert not world.timeline.violations
