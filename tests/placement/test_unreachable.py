"""Nodes that can't reach each other are told apart from nodes that have not met yet."""

import math
from collections.abc import Collection
from dataclasses import replace

from node.core.models import KvCost, ModelSpec, ModelVersion
from node.core.nodes import Memory, NodeInfo, PeerHint
from node.core.reports import NodeReport, Path
from node.core.rings import Fence, Placement
from node.members.membership import MEET_S
from node.placement.place import place
from node.placement.unreachable import UnreachablePairs, unreachable_pairs

MB = 2**20
SPEC = ModelSpec(ModelVersion("m"), (100 * MB,) * 4, 0, (KvCost(1000),) * 4, (1, 2, 3), 4096)


def node(name: str, hears: str, usable: int = 500 * MB) -> NodeReport:
    info = NodeInfo(name, 1, name, "home", "1", 1, (), 1, 2)
    paths = tuple(Path(other, "10.0.0.1", 1.0) for other in hears)
    peers = tuple(PeerHint(other, ("10.0.0.1",), 1) for other in hears)
    return NodeReport(info, Memory(usable, usable), paths=paths, peers=peers)


WHOLE = (node("a", "bc"), node("b", "ac"), node("c", "ab"))
BROKEN = (node("a", "bc"), node("b", "a"), node("c", "a"))


def lost(nodes: Collection[NodeReport]) -> set[str]:
    return {f"{a.info.id}{b.info.id}" for a, b in unreachable_pairs(tuple(nodes))}


def test_who_has_not_heard_the_other_for_a_while_has_lost_it() -> None:
    pairs = UnreachablePairs()
    assert not lost(pairs.mark(BROKEN, 10.0))
    assert not lost(pairs.mark(BROKEN, 10.0 + MEET_S / 2))
    marked = pairs.mark(BROKEN, 10.0 + MEET_S)
    assert lost(marked) == {"bc"}
    assert [(link.to, link.rtt_ms) for link in marked[1].paths] == [("a", 1.0), ("c", math.inf)]
    assert marked[0] == BROKEN[0]


def test_who_is_heard_again_begins_anew() -> None:
    pairs = UnreachablePairs()
    pairs.mark(BROKEN, 0.0)
    assert pairs.mark(WHOLE, MEET_S) == list(WHOLE)
    assert not lost(pairs.mark(BROKEN, MEET_S + 1))


def test_one_side_that_does_not_hear_is_enough() -> None:
    pairs, half = UnreachablePairs(), (WHOLE[0], WHOLE[1], BROKEN[2])
    pairs.mark(half, 0.0)
    assert lost(pairs.mark(half, MEET_S)) == {"bc"}


def placed(nodes: Collection[NodeReport], current: Placement | None = None) -> Placement:
    pairs = UnreachablePairs()
    pairs.mark(tuple(nodes), 0.0)
    marked = pairs.mark(tuple(nodes), MEET_S)
    return place([SPEC], marked, fence=Fence(1, 2 if current else 1), head="a", current=current)


def test_a_ring_goes_where_its_nodes_reach_each_other() -> None:
    """Two of three hold the model. In a ring of two, each node is both next and previous to the other."""
    assert {stage.node for stage in placed([replace(each) for each in BROKEN]).rings[0].stages} in (
        {"a", "b"},
        {"a", "c"},
    )
    small = [node("a", "bc", 100 * MB), *WHOLE[1:]]
    (ring,) = placed(small).rings
    assert {stage.node for stage in ring.stages} == {"b", "c"}
    assert placed(small, Placement(Fence(1, 1), "a", (ring,))).rings == (ring,)
    (refusal,) = placed([small[0], *BROKEN[1:]], Placement(Fence(1, 1), "a", (ring,))).refused
    assert refusal.message.endswith(" b and c do not reach each other.")
