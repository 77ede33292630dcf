"""Finds nodes that cannot reach each other, though the head reaches both; no ring may make them neighbours. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

from node.core.reports import NodeReport, Path
from node.members.membership import MEET_S


class UnreachablePairs:
    """Tracks such pairs. Call `mark` with the reports of all participating nodes, a few times a second."""

    def __init__(self) -> None:
        self._since: dict[frozenset[str], float] = {}

    def mark(self, nodes: Sequence[NodeReport], now: float) -> list[NodeReport]:
        """The reports, with infinite round trips between nodes that have not heard each other for MEET_S."""
        heard = {node.info.id: {peer.id for peer in node.peers} for node in nodes}
        apart = [frozenset((a, b)) for a, b in combinations(heard, 2) if a not in heard[b] or b not in heard[a]]
        self._since = {pair: self._since.get(pair, now) for pair in apart}
        lost = [pair for pair, since in self._since.items() if now - since >= MEET_S]
        return [_mark(node, lost) for node in nodes]


def unreachable_pairs(nodes: Sequence[NodeReport]) -> list[tuple[NodeReport, NodeReport]]:
    """Pairs of nodes whose path has an infinite round trip."""
    lost = {(node.info.id, path.to) for node in nodes for path in node.paths if math.isinf(path.rtt_ms)}
    return [(a, b) for a, b in combinations(nodes, 2) if (a.info.id, b.info.id) in lost]


def _mark(node: NodeReport, lost: Iterable[frozenset[str]]) -> NodeReport:
    others = sorted(other for pair in lost if node.info.id in pair for other in pair - {node.info.id})
    if not others:
        return node
    paths = [path for path in node.paths if path.to not in others]
    return replace(node, paths=(*paths, *(Path(other, "", math.inf) for other in others)))
