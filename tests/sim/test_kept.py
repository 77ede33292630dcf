"""Connections between nodes are reset: streams continue with the KV that the stages still have."""

import pytest

from node.ring.prefixes import MIN_TOKENS
from tests.sim.whole_cluster import simulated
from tests.sim.world.cluster import World
from tests.sim.world.machine import Machine
from tests.sim.world.model import MB

STAGES = 3


@pytest.mark.parametrize("trimmable", [True, False])
def test_what_was_computed_is_not_computed_again(trimmable):
    """If a model's caches can't go back, a sequence is lost when the stages stopped it at different places."""
    world = World(6, STAGES)
    world.trimmable = trimmable
    world.min_stages = STAGES
    world.step_s = 0.02
    world.guesses, world.groups = False, ()  # wrong ones are computed, too, and steps that are filled up
    with simulated(world):
        machines = list(world.machines.values())
        for machine in machines:
            machine.usable = 700 * MB
            machine.start()
        world.run(7.0)
        driver = world.machines[ring(machines[0]).driver]
        asks = [world.ask(driver.process, max_tokens=200) for _ in range(6)]
        assert world.until(lambda: all(len(ask.tokens) > MIN_TOKENS or ask.finished for ask in asks), 20.0)
        at_work = [ask for ask in asks if not ask.finished]
        assert len(at_work) > 2
        held = sum(len(ask.request.prompt) + len(ask.tokens) for ask in at_work)
        to_come = sum(len(ask.expected) - len(ask.tokens) for ask in at_work)

        before, computed = ring(machines[0]), world.computed
        driver.reset_connections(1.0)
        assert world.until(lambda: all(map(world.ended, asks)), 60.0)

        assert all(ask.finished for ask in asks)
        assert ring(machines[0]).stages == before.stages
        assert ring(machines[0]).fence > before.fence
        again = (world.computed - computed) / STAGES - to_come
        assert again < 0.1 * held if trimmable else 0 < again < held
        assert not world.timeline.violations


def ring(machine: Machine):
    (only,) = machine.process.agent.placement.rings
    return only


@pytest.mark.slow
def test_what_a_driver_left_that_died_is_not_taken_for_what_it_computes_now():
    """The driver is back before its loss is detected, so the next ring has the same stages; the other stages still have
    KV of its previous process.
    """
    assert sum(a_driver_comes_back(seed) for seed in range(30)) > 10


def a_driver_comes_back(seed: int) -> bool:
    """Whether the stages stayed the same: in some histories the driver's loss is detected."""
    world = World(seed, 3)
    world.trimmable = True
    world.min_stages = 2
    world.step_s = 0.02
    with simulated(world):
        gateway, *others = world.machines.values()
        gateway.start()
        world.run(3.0)  # by then it is head; it stays head without a place in the ring
        gateway.process.usable = 50 * MB
        for machine in others:
            machine.start()
        world.run(7.0)
        before = ring(gateway)
        driver = world.machines[before.driver]
        gone, asked = (world.ask(gateway.process, max_tokens=80) for _ in range(2))
        assert world.until(lambda: (len(gone.tokens) > 20 and len(asked.tokens) > 20) or asked.finished, 20.0)
        gone.task.get_loop().call_soon(gone.task.cancel)
        world.net.unreachable.add(frozenset(machine.name for machine in others))
        driver.kill()
        driver.start()
        world.run(1.0)
        world.net.unreachable.clear()
        assert world.until(lambda: asked.finished, 30.0)
        assert not world.timeline.violations
        return ring(gateway).stages == before.stages
