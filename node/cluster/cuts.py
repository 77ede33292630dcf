"""Which nodes do not reach each other, though the head reaches both: no ring can have them side by side. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

from node.core.types import Link, NodeReport

APART_S = 3.0
"""A node that came just now has not met all others yet: those that are gone are tried every 2 s, for 1 s."""

Pair = frozenset[str]


class Cuts:
    """Feed it the reports of all nodes that take part, a few times a second."""

    def __init__(self) -> None:
        self._since: dict[Pair, float] = {}

    def marked(self, nodes: Sequence[NodeReport], now: float) -> list[NodeReport]:
        """The reports, with an infinite round trip between nodes that have not heard each other for a while."""
        self._since = {pair: self._since.get(pair, now) for pair in _apart(nodes)}
        lost = {pair for pair, since in self._since.items() if now - since >= APART_S}
        return [_marked(node, lost) for node in nodes]


def lost_links(nodes: Sequence[NodeReport]) -> list[tuple[NodeReport, NodeReport]]:
    """Pairs that are marked so."""
    lost = {(node.info.id, link.to) for node in nodes for link in node.links if math.isinf(link.rtt_ms)}
    return [(a, b) for a, b in combinations(nodes, 2) if (a.info.id, b.info.id) in lost]


def _apart(nodes: Sequence[NodeReport]) -> list[Pair]:
    """Pairs of which one does not name the other among those that it hears."""
    heard = {node.info.id: {peer.id for peer in node.peers} for node in nodes}
    return [frozenset((a, b)) for a, b in combinations(heard, 2) if a not in heard[b] or b not in heard[a]]


def _marked(node: NodeReport, lost: Iterable[Pair]) -> NodeReport:
    others = sorted(other for pair in lost if node.info.id in pair for other in pair - {node.info.id})
    if not others:
        return node
    links = [link for link in node.links if link.to not in others]
    return replace(node, links=(*links, *(Link(other, "", math.inf) for other in others)))
