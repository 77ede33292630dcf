"""Rings of two nodes for a stream that is alone, and of one node each for several: real heads and drivers, exact texts."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import pytest

from node.core.models import ModelSpec
from node.core.reports import NodeReport
from node.core.rings import Placement
from node.placement.spread import Spread
from tests.sim.whole_cluster import PATCHES, simulate, simulated
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
    with begun(2, usable=700 * MB) as world:  # of ten seeds in one the head sees the moment between two answers
        assert not ask_until(world, lambda: shapes(world) == [2], 1, 40.0)
        assert world.until(lambda: shapes(world) == [2], 30.0)  # the last answer has ended
        assert not ask_until(world, lambda: 2 not in shapes(world), 6, 40.0)
        assert world.until(lambda: shapes(world) == [1, 1], 60.0)


@pytest.mark.slow
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


class AtRandom:
    """In place of node.cluster.spreading.Spreading: chooses two nodes, one, or what comes, and soon something else."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._until = 0.0
        self._spreads: tuple[Spread, ...] = ()
        self.idle: tuple[str, ...] = ()

    def choose(
        self, _: Placement, specs: Sequence[ModelSpec], nodes: Sequence[NodeReport], now: float
    ) -> tuple[Spread, ...]:
        if now >= self._until:
            self._until = now + self._rng.choice([0.2, 1.0, 3.0])
            names = [node.info.id for node in nodes]
            pair = tuple(self._rng.sample(names, min(2, len(names))))
            self._spreads = self._rng.choice([(), tuple(Spread(spec.id, pair, 1.5) for spec in specs)])
            self._spreads = self._spreads or self._rng.choice([(), tuple(Spread(spec.id) for spec in specs)])
        is_busy = any(each.running or each.queued for node in nodes for each in node.traffic)
        self.idle = () if is_busy else tuple(spread.model for spread in self._spreads)
        return self._spreads


@pytest.mark.parametrize("seed", range(6))
def test_histories_of_faults_with_choices_at_random(seed):
    rng = random.Random(f"spreads {seed}")
    with mock.patch.dict(PATCHES, {"node.cluster.head.Spreading": lambda: AtRandom(rng)}):
        simulate(seed)
