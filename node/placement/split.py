"""Decides where to cut a model between nodes, and in which order to put the nodes. Pure arithmetic for placement."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise, permutations
from math import factorial, inf, isfinite, perm

from node.core.models import ModelSpec
from node.core.reports import NodeReport
from node.placement.footprint import Footprint

UNMEASURED_MS = 5.0
"""Assumed round trip of a path that was not measured yet: as slow as Wi-Fi, so that a measured cable is preferred."""

_MOST_NODES = 7
"""Up to this many nodes, all orders are tried, in at most some 50 ms. More are ordered by nearest neighbour."""

_ALIKE = 0.1
"""Relative difference of times that is hardly noticed. Measurements vary by as much."""

Order = tuple[NodeReport, ...]


def boundaries(spec: ModelSpec) -> tuple[int, ...]:
    """The layers at which a stage may start or end, ascending."""
    return (0, *spec.cuts, spec.layers)


def latency(order: Order) -> float:
    """`wire_ms`, rounded to half a millisecond: smaller differences are noise, and must not decide which node is the driver."""
    exact = wire_ms(order)
    return round(2 * exact) / 2 if isfinite(exact) else exact


def wire_ms(order: Order) -> float:
    """Milliseconds that one token spends on the wire per round; infinite if two neighbours cannot reach each other."""
    return sum(_rtt(a, b) for a, b in pairwise((*order, order[0]))) / 2 if len(order) > 1 else 0.0


def best_orders(
    spec: ModelSpec,
    costs: Footprint,
    nodes: Sequence[NodeReport],
    count: int,
    free: Mapping[str, int],
    pace: Mapping[str, float],
) -> list[Order]:
    """Orders of `count` nodes, quickest first; among equals, those that start with earlier nodes.

    `free`: bytes of each node; `pace`: its milliseconds per byte. Orders whose time is hardly longer than the best one's
    count as equally quick, and those with the quicker round go first.
    """
    orders: Iterable[Order] = permutations(nodes, count)
    if perm(len(nodes), count) > factorial(_MOST_NODES):
        roomiest = sorted(nodes, key=lambda n: (-free[n.info.id], n.info.id))[:count]
        quickest = sorted(nodes, key=lambda n: (pace[n.info.id], n.info.id))[:count]
        orders = [order for some in (roomiest, quickest) for order in (tuple(some), *(_tour(n, some) for n in some))]
    rounds = [(latency(order), order) for order in orders]
    layer, balanced = min(spec.layer_bytes), dict[frozenset[str], float]()
    times: list[tuple[float, float, Order]] = []
    for ms, order in rounds:
        ids = [node.info.id for node in order]
        if (group := frozenset(ids)) not in balanced:
            balanced[group] = _balanced_ms([(pace[node], costs.work_in(free[node])) for node in ids], costs.work_of_all)
        # A slow node delays the round with its least work: one layer, and at the driver the head.
        slowest = max(
            balanced[group], (spec.driver_bytes(count) + layer) * pace[ids[0]], layer * max(pace[node] for node in ids)
        )
        times += [(ms + count * slowest, ms, order)] if isfinite(ms) else []
    limit = (1 + _ALIKE) * min((time for time, *_ in times), default=0.0)

    def rank(each: tuple[float, float, Order]) -> tuple[float, float]:
        time, ms, _ = each
        return (0.0, ms) if time <= limit else (time, ms)

    return [order for *_, order in sorted(times, key=rank)]


def _balanced_ms(nodes: Sequence[tuple[float, float]], work: float) -> float:
    """Time in which nodes of this pace and room do all the work, with layers of any size; else infinite."""
    waiting = sorted(nodes, key=lambda node: node[0] * node[1])  # those that are full first
    while waiting:
        pace, room = waiting[0]
        time = work / sum(1 / each for each, _ in waiting)
        if time <= pace * room:
            return time
        work -= room
        waiting.pop(0)
    return inf


def split(spec: ModelSpec, costs: Footprint, room: Sequence[int], pace: Sequence[float]) -> tuple[int, ...] | None:
    """End of each stage such that all fit and the slowest is as quick as possible; None if they do not fit.

    `room`: bytes of each node; `pace`: its milliseconds per byte. The slowest stage limits throughput when several
    lanes are in flight. Dynamic programming over stages and bounds.
    """
    bounds, stages = boundaries(spec), len(room)
    # By the end of the stages so far, their best split: (time of the slowest stage, ends).
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage, limit in enumerate(room):
        driver = stage == 0
        last = len(bounds) - (stages - stage)  # each later stage needs a layer, too
        first_end = last if stage == stages - 1 else 1
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for begin, (slowest, ends) in best.items():
            for end in range(max(begin + 1, first_end), last + 1):
                if costs.stage(bounds[begin], bounds[end], driver=driver) > limit:
                    break
                time = costs.work(bounds[begin], bounds[end], driver=driver) * pace[stage]
                candidate = (max(slowest, time), (*ends, bounds[end]))
                longer[end] = min(candidate, longer.get(end, candidate))
        best = longer
    return best[len(bounds) - 1][1] if best else None


def may_fit(spec: ModelSpec, costs: Footprint, room: Sequence[int]) -> bool:
    """Whether nodes with this room can hold the model in any order: a quick test before all orders are tried.

    Dynamic programming: how far each set of nodes can get, from the sets with one node less.
    """
    if costs.whole + (len(room) - 1) * costs.reserve > sum(room):
        return False
    if len(room) > _MOST_NODES:
        return True  # only few orders are tried then, and there are too many sets
    bounds = boundaries(spec)
    reach = [0] * 2 ** len(room)
    for nodes in range(1, len(reach)):
        for i, limit in enumerate(room):
            others = nodes & ~(1 << i)
            if others != nodes:
                begin = reach[others]
                size = partial(costs.stage, bounds[begin], driver=not others)
                # The last bound that this node's stage can reach from there, if any.
                reach[nodes] = max(reach[nodes], bisect_right(bounds, limit, lo=begin + 1, key=size) - 1)
    return reach[-1] + 1 == len(bounds)


def _rtt(a: NodeReport, b: NodeReport) -> float:
    measured = [path.rtt_ms for path in a.paths if path.to == b.info.id]
    measured = measured or [path.rtt_ms for path in b.paths if path.to == a.info.id]
    return min(measured, default=UNMEASURED_MS)


def _tour(first: NodeReport, nodes: Sequence[NodeReport]) -> Order:
    tour, left = [first], [n for n in nodes if n is not first]
    while left:
        tour.append(min(left, key=lambda n: _rtt(tour[-1], n)))
        left.remove(tour[-1])
    return tuple(tour)
