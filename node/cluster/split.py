"""Where to cut a model between nodes, and in which order to put the nodes. Pure arithmetic for placement."""

from collections.abc import Sequence
from itertools import pairwise, permutations
from math import perm

from node.cluster.footprint import Footprint
from node.core.types import ModelSpec, NodeReport

UNMEASURED_MS = 5.0
"""Round trip taken for a link that nobody has measured yet: as slow as Wi-Fi, so that a measured cable wins."""

_MOST_ORDERS = 5040
"""Up to 7 nodes every order is tried, some 50 ms. More nodes are ordered by nearest neighbour."""

Order = tuple[NodeReport, ...]


def edges(spec: ModelSpec) -> tuple[int, ...]:
    """The layers at which a stage may start or end."""
    return (0, *spec.cuts, spec.layers)


def latency(order: Order) -> float:
    """Milliseconds that one token spends on the wire going round.

    Rounded to half a millisecond: less is the noise of measuring, and must not decide who drives.
    """
    if len(order) == 1:
        return 0.0
    return round(sum(_rtt(a, b) for a, b in pairwise((*order, order[0])))) / 2


def best_orders(nodes: Sequence[NodeReport], count: int) -> list[Order]:
    """Orders of `count` nodes, the quickest round first; of equally quick ones, those that start with earlier nodes."""
    if perm(len(nodes), count) <= _MOST_ORDERS:
        return sorted(permutations(nodes, count), key=latency)
    roomiest = sorted(nodes, key=lambda n: (-n.memory.usable, n.info.id))[:count]
    return sorted([tuple(roomiest), *(_tour(first, roomiest) for first in roomiest)], key=latency)


def split(spec: ModelSpec, costs: Footprint, room: Sequence[int]) -> tuple[int, ...] | None:
    """Where each stage ends so that none exceeds its room and the largest is smallest; None if there is no such way.

    The largest stage sets the pace when several lanes are in flight, and leaves its node the least room.
    """
    marks, stages = edges(spec), len(room)
    if not _may_fit(marks, costs, room):
        return None
    # Of all ways to end the stages so far at a mark: the size of the largest stage, and where they end.
    ways: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for stage, limit in enumerate(room):
        last = len(marks) - (stages - stage)  # each later stage needs a layer, too
        first_end = last if stage == stages - 1 else 1
        longer: dict[int, tuple[int, tuple[int, ...]]] = {}
        for begin, (largest, ends) in ways.items():
            for end in range(max(begin + 1, first_end), last + 1):
                size = costs.stage(marks[begin], marks[end], driver=stage == 0)
                if size > limit:
                    break
                way = (max(largest, size), (*ends, marks[end]))
                longer[end] = min(way, longer.get(end, way))
        ways = longer
    return ways[len(marks) - 1][1] if ways else None


def _may_fit(marks: Sequence[int], costs: Footprint, room: Sequence[int]) -> bool:
    """Whether taking all that fits, stage by stage, comes to the end: a quick test that turns most orders away."""
    at = 0
    for stage, limit in enumerate(room):
        begin = at
        while at + 1 < len(marks) and costs.stage(marks[begin], marks[at + 1], driver=stage == 0) <= limit:
            at += 1
    return at + 1 == len(marks)


def _rtt(a: NodeReport, b: NodeReport) -> float:
    measured = [link.rtt_ms for link in a.links if link.to == b.info.id]
    measured = measured or [link.rtt_ms for link in b.links if link.to == a.info.id]
    return min(measured, default=UNMEASURED_MS)


def _tour(first: NodeReport, nodes: Sequence[NodeReport]) -> Order:
    tour, left = [first], [n for n in nodes if n is not first]
    while left:
        tour.append(min(left, key=lambda n: _rtt(tour[-1], n)))
        left.remove(tour[-1])
    return tuple(tour)
