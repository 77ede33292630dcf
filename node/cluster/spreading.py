"""Decides of how many stages the rings of a model are to be that fits on one node: two for a stream that is alone, if it is faster
by them, one for several streams.

Pure: views and times in, answers out. That a ring has more stages than it needs is written in the placement, so a new head goes on.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node.core.models import ModelSpec
from node.core.reports import NodeReport, RingTraffic
from node.core.rings import Placement, Ring
from node.placement.speed import pace, with_measured_head
from node.placement.spread import MIN_GAIN, Single, Spread, Stream, best_single, best_spread, families_of_all

log = logging.getLogger(__name__)

ALONE, SEVERAL = 0.1, 0.5
"""Share of busy time in which a model has several requests at once, up to which they count as one stream, and from which on as
several.
"""
SETTLE_S = 10.0
"""Busy seconds after which two thirds of what is known of a model's load is new, and for which the other number of stages must be the
better one.
"""
PAUSE_S = 60.0
"""Least time from one change to the next one to two stages; twice as long after each. A ring that takes turns would compute what it
said before anew each time.
"""


@dataclass(slots=True)
class _Load:
    """What is known of a model."""

    seen_at: float
    several: float = 0.0
    """Recent share of busy time with several requests."""
    stream: Stream | None = None
    """As it was on one node lately."""
    single: Single | None = None
    """The one node that was best for it; None if the head is new since."""
    better_s: float = 0.0
    """Busy seconds for which the other number of stages has been the better one."""
    chosen: Spread | None = None
    was_spread: bool = False
    pause_s: float = PAUSE_S
    not_before: float = 0.0
    """Time of the next change to two stages, at the earliest."""

    def end(self, now: float) -> None:
        """Its rings are of one stage again, or are to be."""
        self.chosen, self.better_s, self.was_spread = None, 0.0, False
        self.not_before = now + self.pause_s
        self.pause_s = min(3600.0, 2 * self.pause_s)


class Spreading:
    def __init__(self) -> None:
        self._loads: dict[str, _Load] = {}
        self.idle: tuple[str, ...] = ()
        """The models of the last choice that have no request, sorted."""

    def choose(
        self, placement: Placement, specs: Sequence[ModelSpec], nodes: Sequence[NodeReport], now: float
    ) -> tuple[Spread, ...]:
        """The models whose rings are to have a number of stages by choice. Call it for each plan. `nodes`: those present, with
        infinite round trips where they do not reach each other.
        """
        reports = {node.info.id: node for node in nodes}
        by_rule = any(node.min_stages > 1 for node in nodes)
        # Without loss: a model whose later layers read the tokens takes pictures in one stage only.
        divisible = [spec for spec in specs if spec.cuts and not (spec.shared_ends and spec.picture_bytes)]
        free = [spec for spec in divisible if not spec.wish.stages and not by_rule]
        self._loads = {spec.id: self._loads.get(spec.id) or _Load(now) for spec in free}
        spreads, idle = list[Spread](), set[str]()
        for spec in [with_measured_head(each, nodes) for each in free]:
            rings = [ring for ring in placement.rings if ring.model == spec.id]
            traffic = {ring.id: each for ring in rings if (each := _traffic(ring, reports))}
            if spread := self._choose(self._loads[spec.id], spec, rings, traffic, nodes, now):
                spreads.append(spread)
                if not sum(each.running + each.queued for each in traffic.values()):
                    idle.add(spec.id)
        self.idle = tuple(sorted(idle))
        return tuple(spreads)

    def _choose(
        self,
        load: _Load,
        spec: ModelSpec,
        rings: Sequence[Ring],
        traffic: Mapping[str, RingTraffic],
        nodes: Sequence[NodeReport],
        now: float,
    ) -> Spread | None:
        busy_s = min(now - load.seen_at, 2.0)  # most that counts between two looks
        load.seen_at = now
        weight = min(1.0, busy_s / SETTLE_S)
        requests = sum(each.running + each.queued for each in traffic.values())
        if requests:
            load.several += ((requests > 1) - load.several) * weight
        lone = next((ring for ring in rings if requests == 1 and ring.id in traffic and traffic[ring.id].running), None)
        staying = {node.info.id for node in nodes if not node.draining}
        spread = next(
            (ring for ring in rings if ring.gain and not ring.retiring and staying.issuperset(ring.nodes)), None
        )
        measured = traffic[lone.id] if lone and traffic[lone.id].token_ms > 0 else None
        if spread:
            load.was_spread = True
            is_measured = measured is not None and lone is spread
            return self._keep(load, spec, spread, measured if is_measured else None, nodes, busy_s, now)
        if load.was_spread:  # it is lost, or has been replaced
            load.end(now)
        if measured and lone and len(lone.stages) == 1:
            load.stream = _smoothed(load.stream, lone.driver, measured, weight)
            if load.chosen is None and now >= load.not_before:
                self._seek(load, spec, load.stream, nodes, busy_s)
        present = {node.info.id for node in nodes if families_of_all(spec, node) is not None}
        if load.chosen and (load.several >= SEVERAL or not present.issuperset(load.chosen.nodes)):
            load.chosen, load.better_s = None, 0.0
        return load.chosen

    def _seek(self, load: _Load, spec: ModelSpec, stream: Stream, nodes: Sequence[NodeReport], busy_s: float) -> None:
        """Choose two stages for a stream that has been alone for a while, if it is faster by them."""
        if load.several > ALONE:
            load.better_s = 0.0
            return
        paces = pace(spec, nodes)
        found = best_spread(spec, nodes, paces, stream)
        if found is None or found.gain < MIN_GAIN:
            load.better_s = 0.0
            return
        load.better_s += busy_s
        if load.better_s >= SETTLE_S:
            load.chosen, load.better_s = found, 0.0
            load.single = best_single(spec, nodes, paces, stream)
            names = {node.info.id: node.info.name for node in nodes}
            both = " and ".join(names[node] for node in found.nodes)
            log.info("a stream of %s will be %.1f times as fast on %s together", spec.id, found.gain, both)

    def _keep(
        self,
        load: _Load,
        spec: ModelSpec,
        ring: Ring,
        measured: RingTraffic | None,
        nodes: Sequence[NodeReport],
        busy_s: float,
        now: float,
    ) -> Spread:
        """Two stages, until several streams have come, or a stream was faster on one node."""
        if load.chosen is None or load.chosen.nodes:
            load.chosen = Spread(spec.id, ring.nodes, ring.gain)
        if measured:
            is_slower = load.single is not None and measured.token_ms > load.single.token_ms(measured.foretold)
            load.better_s = load.better_s + busy_s if is_slower else 0.0
        if load.chosen.nodes and (load.several >= SEVERAL or load.better_s >= SETTLE_S):
            why = "it has several" if load.several >= SEVERAL else "one node is as fast"
            log.info("streams of %s go on with one node each: %s", spec.id, why)
            load.chosen = Spread(spec.id)
        return load.chosen


def _smoothed(before: Stream | None, node: str, measured: RingTraffic, weight: float) -> Stream:
    if before is None or before.node != node:
        return Stream(node, measured.token_ms, measured.foretold)
    token_ms = before.token_ms + weight * (measured.token_ms - before.token_ms)
    return Stream(node, token_ms, before.foretold + weight * (measured.foretold - before.foretold))


def _traffic(ring: Ring, reports: Mapping[str, NodeReport]) -> RingTraffic | None:
    driver = reports.get(ring.driver)
    return next((each for each in driver.traffic if each.ring == ring.id), None) if driver else None
