"""Rings of two nodes for a stream that is alone, and of one node each for several: real heads and drivers, exact texts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.sim.whole_cluster import simulated
from tests.sim.world.cluster import World
from tests.sim.world.model import MB


@contextmanager
def begun(seed: int, usable: int = 2000 * MB) -> Iterator[World]:
    """Two nodes that serve one model each, and could compute steps of one token only, but for the guesses in flight."""
    world = World(seed, 2)
    world.has_draft, world.trimmable, world.groups = False, True, ((1,), (3,))
    world.rtt_ms, world.step_s = 0.05, 0.1
    with simulated(world):
        for machine in world.machines.values():
            machine.usable, machine.bytes_per_s = usable, 50e9
            machine.start()
        assert world.until(lambda: shapes(world) == [1, 1], 30.0)
        yield world
        world.check_ends(gentle=True)
        assert not world.timeline.violations


def shapes(world: World) -> list[int]:
    """The stages of each ring that stays, as any node sees them."""
    (process, *_) = world.processes()
    return [len(ring.stages) for ring in process.placed() if not ring.retiring]


def ask_until(world: World, holds: Callable[[], bool], streams: int, within: float = 400.0) -> bool:
    """Keep so many streams going, each with the next request as soon as it has its answer."""
    end = world.timeline.now + within
    while not holds():
        if world.timeline.now > end:
            return False
        running = [ask for ask in world.asks if not world.ended(ask)]
        for _ in range(streams - len(running)):
            world.ask(world.rng.choice(world.processes()), max_tokens=300)
        world.run(0.05)
    assert world.until(lambda: all(map(world.ended, world.asks)), 100.0)
    return True


def test_one_stream_moves_to_two_nodes_and_several_move_back():
    with begun(1) as world:
        assert ask_until(world, lambda: shapes(world) == [2], 1)
        world.run(5.0)
        assert shapes(world) == [2]
        assert ask_until(world, lambda: 2 not in shapes(world), 6)
        assert world.until(lambda: shapes(world) == [1, 1], 60.0)


def test_without_room_for_both_rings_change_between_answers():
    with begun(1, usable=700 * MB) as world:
        assert not ask_until(world, lambda: shapes(world) == [2], 1, 40.0)
        assert world.until(lambda: shapes(world) == [2], 30.0)  # the last answer has ended
        assert not ask_until(world, lambda: 2 not in shapes(world), 6, 40.0)
        assert world.until(lambda: shapes(world) == [1, 1], 60.0)


@pytest.mark.parametrize("seed", range(2))
def test_nodes_that_die_meanwhile_cost_no_answer(seed):
    with begun(seed) as world:
        for victim in ("n1", "n2"):
            assert ask_until(world, lambda: shapes(world) == [2], 1)
            world.ask(world.machines["n2" if victim == "n1" else "n1"].process, max_tokens=300)
            world.run(world.rng.uniform(0.1, 1.0))
            world.machines[victim].kill()
            assert world.until(lambda: all(map(world.ended, world.asks)), 100.0)
            world.machines[victim].start()
            assert world.until(lambda: shapes(world) == [1, 1], 60.0)
            world.run(130.0)  # it pauses after what has gone wrong
