"""Two stages for a stream that is alone, replicas for several: when the head changes between them, and that it does not flap."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest

from node.cluster.spreading import PAUSE_S, SETTLE_S, Spreading
from node.core.models import ModelSpec, Shard, Wish
from node.core.reports import NodeReport, Path, RingTraffic, StageReport, StageState
from node.core.rings import Fence, Placement, Ring
from node.core.row_family import RowFamily
from node.placement.place import Rules, place
from tests.placement.test_placement import GB, MB, model
from tests.placement.test_speed import mac

STEP_MS = 22.0
"""Of one token on one of the Macs."""
CODE, PROSE = 0.43, 0.13
FAMILY = RowFamily()


PLACED = lru_cache(64)(place)


class Home:
    """Macs of one kind in a network, a head, and a number of streams that one likes: a look a second."""

    def __init__(self, names: str = "ab", seed: int = 0, usable: int = 64 * GB) -> None:
        self.rng = random.Random(seed)
        self.names, self.usable = names, usable
        self.now, self._epoch = 0.0, 1
        self.spec: ModelSpec = model(layers=32, layer=140 * MB, ends=MB)
        self.spreading = Spreading()
        self.placement = Placement()
        self.noise = 0.0
        self.foretold = CODE
        self.slowness = 1.0
        """Of rings of two, against the formula."""
        self.min_stages = 1
        self.changes: list[tuple[float, int]] = []
        """When the model's rings got another number of stages."""
        self.run(2)
        self.changes.clear()

    @property
    def stages(self) -> int:
        return max((len(ring.stages) for ring in self.placement.rings if not ring.retiring), default=0)

    def run(self, seconds: int, streams: int | Callable[[float], int] = 0) -> None:
        for _ in range(seconds):
            self.now += 1.0
            running = streams(self.now) if callable(streams) else streams
            reports, before = [self._report(name, running) for name in self.names], self.stages
            spreads = self.spreading.choose(self.placement, [self.spec], reports, self.now)
            rules = Rules(self.min_stages, contexts=(8192,), spreads=spreads, idle=self.spreading.idle)
            fence = Fence(1, self._epoch)
            seen = tuple(replace(report, traffic=(), paths=self._paths(report.info.id)) for report in reports)
            plan = PLACED((self.spec,), seen, rules, fence=fence, head="a", current=self.placement)
            # Those that retire have no request left after a second.
            rings = tuple(ring for ring in plan.rings if not ring.retiring)
            if rings != self.placement.rings:
                self.placement = replace(plan, rings=rings)
                self._epoch += 1
            if before and self.stages != before:
                self.changes.append((self.now, self.stages))

    def _noisy(self, value: float) -> float:
        return value * self.rng.uniform(1 - self.noise, 1 + self.noise)

    def _report(self, name: str, streams: int) -> NodeReport:
        rings = [ring for ring in self.placement.rings if ring.nodes[0] in self.names]
        share = {ring.id: streams // len(rings) + (at < streams % len(rings)) for at, ring in enumerate(rings)}
        stages = tuple(
            StageReport(ring.id, Shard(ring.version, s.start, s.end), StageState.READY, families=(FAMILY,))
            for ring in rings
            for s in ring.stages
            if s.node == name
        )
        traffic = tuple(
            RingTraffic(r.id, share[r.id], foretold=self._noisy(self.foretold), token_ms=self._token_ms(r))
            for r in rings
            if r.driver == name
        )
        paths = tuple(replace(path, rtt_ms=self._noisy(path.rtt_ms)) for path in self._paths(name))
        found = mac(name, "M2 Pro", self.usable)
        return replace(found, stages=stages, traffic=traffic, paths=paths, min_stages=self.min_stages)

    def _paths(self, name: str) -> tuple[Path, ...]:
        return tuple(Path(other, "", 0.6) for other in self.names if other != name)

    def _token_ms(self, ring: Ring) -> float:
        """One token a step, and no guesses on one node: rounds of tau tokens in a ring of two."""
        if len(ring.stages) == 1:
            return self._noisy(STEP_MS)
        tau = 1 / (1 - self.foretold)
        return self._noisy((STEP_MS + 0.6) * self.slowness * (1 + (tau - 1) / 2) / tau)


def test_one_stream_gets_both_nodes_and_several_get_one_each():
    home = Home()
    assert home.stages == 1
    home.run(8, 1)
    assert home.stages == 1  # it has to be so for a while
    home.run(30, 1)
    assert home.stages == 2
    assert home.placement.rings[0].gain > 1.1
    home.run(3600)
    home.run(600, 1)
    assert home.stages == 2
    home.run(30, 3)
    assert home.stages == 1
    assert [ring.nodes for ring in home.placement.rings] == [("a",), ("b",)]
    assert len(home.changes) == 2


@pytest.mark.parametrize("streams", [0, 2, 8])
def test_without_a_stream_that_is_alone_nothing_changes(streams):
    home = Home()
    home.run(1200, streams)
    assert not home.changes


@pytest.mark.parametrize("foretold", [0.0, PROSE])
def test_a_stream_that_would_hardly_be_faster_keeps_one_node(foretold):
    home = Home()
    home.foretold = foretold
    home.run(1200, 1)
    assert not home.changes


def test_a_short_visit_of_a_second_stream_changes_nothing():
    home = Home()
    home.run(60, 1)
    home.run(600, lambda now: 2 if now % 20 < 3 else 1)
    assert [count for _, count in home.changes] == [2]


@pytest.mark.parametrize("seed", range(6))
def test_noise_moves_nothing_back_and_forth(seed):
    """About the least gain for which rings change, and with the measurements of a busy home."""
    home = Home(seed=seed)
    home.noise, home.foretold = 0.15, 0.22
    home.run(3600, 1)
    assert len(home.changes) <= 1


@pytest.mark.parametrize("seed", range(4))
def test_a_load_that_goes_up_and_down_moves_rings_ever_more_seldom(seed):
    home = Home(seed=seed)
    home.noise = 0.1
    period = home.rng.choice([60, 90, 120])
    home.run(2 * 3600, lambda now: 4 if now % period < period / 3 else 1)
    times = [time for time, count in home.changes if count == 2]
    assert times
    assert len(home.changes) <= 14
    pauses = [
        later - time for (time, _), (later, count) in zip(home.changes, home.changes[1:], strict=False) if count == 2
    ]
    assert all(pause >= PAUSE_S for pause in pauses)
    assert pauses == sorted(pauses)


def test_a_ring_that_turns_out_slower_than_one_node_is_given_up_for_long():
    home = Home()
    home.slowness = 1.5
    home.run(3600, 1)
    assert 2 <= len(home.changes) <= 12
    assert home.changes[1][0] - home.changes[0][0] <= SETTLE_S + 3


def test_prose_after_code_keeps_both_nodes_unless_it_is_slower():
    home = Home()
    home.run(60, 1)
    home.foretold = PROSE
    home.run(1200, 1)
    assert home.stages == 2
    home.foretold = 0.0
    home.run(60, 1)
    assert home.stages == 1


def test_a_new_head_goes_on():
    home = Home()
    home.run(60, 1)
    home.spreading = Spreading()
    home.run(600, 1)
    assert home.stages == 2
    home.run(30, 4)
    assert home.stages == 1


def test_after_the_death_of_a_node_the_other_serves_alone_and_both_again_later():
    home = Home()
    home.run(60, 1)
    home.names = "a"
    home.run(1, 1)
    assert [ring.nodes for ring in home.placement.rings] == [("a",)]
    home.run(60, 1)
    home.names = "ab"
    home.run(8, 1)
    assert home.stages == 1
    home.run(300, 1)
    assert home.stages == 2


def test_nodes_that_are_full_change_between_two_answers():
    home = Home(usable=7 * GB)
    home.run(120, 1)
    assert not home.changes
    home.run(1)
    assert home.stages == 2
    home.run(120, 2)
    assert home.stages == 2
    home.run(1)
    assert home.stages == 1


def rules(home: Home) -> None:
    home.min_stages = 2


def wish(home: Home) -> None:
    home.spec = replace(home.spec, wish=Wish(stages=1))


def lone(home: Home) -> None:
    home.names = "a"


@pytest.mark.parametrize("given", [wish, lone])
def test_what_a_user_asks_for_stays(given):
    home = Home()
    given(home)
    home.run(300, 1)
    assert home.stages == 1


def test_a_least_number_of_stages_is_no_choice():
    home = Home()
    rules(home)
    home.run(300, 1)
    assert home.stages == 2
    home.run(300, 4)
    assert home.stages == 2
    assert not home.placement.rings[0].gain


def test_no_other_node_takes_the_place_of_one_that_dies():
    """Nobody knows how fast two others are together: one node serves, until two are chosen anew."""
    home = Home("abc")
    home.run(120, 1)
    (pair,) = {ring.nodes for ring in home.placement.rings}
    assert len(pair) == 2
    home.names = home.names.replace(pair[1], "")
    home.run(2, 1)
    assert home.stages == 1
    assert not any(ring.gain for ring in home.placement.rings)
