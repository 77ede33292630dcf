"""When a better placement is adopted, when a ring has retired, and when a node may leave."""

from dataclasses import replace

import pytest

from node.cluster.handover import COLD_S, SETTLE_S, Handover
from node.cluster.readiness import is_needed, ready_rings
from node.core.models import ModelVersion, Shard
from node.core.nodes import Memory, NodeInfo
from node.core.reports import NodeReport, RingTraffic, StageReport, StageState
from node.core.rings import Fence, Placement, Ring, StageSpec
from node.core.views import ClusterView, NodeState, PeerView


def ring(name: str, node: str, *, retiring: bool = False) -> Ring:
    return Ring(name, ModelVersion("m"), (StageSpec(node, 0, 8),), 4096, 4, retiring=retiring)


def peer(
    node: str,
    *loads: tuple[str, StageState],
    running: int = 0,
    requests: int = 0,
    state=NodeState.ALIVE,
    draining=False,
) -> PeerView:
    info = NodeInfo(node, 1, node, "home", "1", 1, (), 1, 2)
    report = NodeReport(
        info,
        Memory(8, 8),
        stages=tuple(StageReport(name, Shard(ModelVersion("m"), 0, 8), load) for name, load in loads),
        traffic=tuple(
            RingTraffic(name, running, requests=requests) for name, load in loads if load is StageState.READY
        ),
        draining=draining,
    )
    return PeerView(report, state)


def view(*peers: PeerView, rings: tuple[Ring, ...]) -> ClusterView:
    return ClusterView("a", 1, "a", peers, Placement(Fence(1, 2), "a", rings))


OLD, NEW = ring("old", "a", retiring=True), ring("new", "b")
BOTH = (NEW, OLD)
READY, LOADING = StageState.READY, StageState.LOADING


def test_requests_go_to_the_ring_that_retires_only_until_the_new_one_is_ready():
    seen = view(peer("a", ("old", READY)), peer("b", ("new", LOADING)), rings=BOTH)
    assert ready_rings(seen, "m") == [OLD]
    seen = view(peer("a", ("old", READY)), peer("b", ("new", READY)), rings=BOTH)
    assert ready_rings(seen, "m") == [NEW]
    gone = view(peer("a", ("old", READY)), peer("b", ("new", READY), state=NodeState.FAILED), rings=BOTH)
    assert ready_rings(gone, "m") == [OLD]
    assert ready_rings(gone, "k") == []


def test_an_idle_ring_has_retired_as_soon_as_another_is_ready():
    handover = Handover()
    seen = view(peer("a", ("old", READY)), peer("b", ("new", LOADING)), rings=BOTH)
    assert handover.remaining(seen) == BOTH
    seen = view(peer("a", ("old", READY)), peer("b", ("new", READY)), rings=BOTH)
    assert handover.remaining(seen) == (NEW,)


def test_a_busy_ring_finishes_what_it_has_begun():
    """To compute a long prompt again on the new ring may take minutes."""
    handover = Handover()
    busy = view(peer("a", ("old", READY), running=1), peer("b", ("new", READY)), rings=BOTH)
    assert handover.remaining(busy) == BOTH
    done = view(peer("a", ("old", READY), running=0), peer("b", ("new", READY)), rings=BOTH)
    assert handover.remaining(done) == (NEW,)


def test_a_node_that_drains_is_not_kept_waiting():
    seen = view(peer("a", ("old", READY), running=3, draining=True), peer("b", ("new", READY)), rings=BOTH)
    assert Handover().remaining(seen) == (NEW,)


def test_nothing_retires_without_being_told_to():
    rings = (NEW, replace(OLD, retiring=False))
    seen = view(peer("a", ("old", READY)), peer("b", ("new", READY)), rings=rings)
    assert Handover().remaining(seen) == rings


def test_a_better_placement_has_to_be_better_for_a_while():
    handover = Handover()
    plan, better = Placement(rings=(OLD,)), Placement(rings=(NEW,))
    other = Placement(rings=(ring("other", "c"),))
    assert not handover.is_due(better, plan, 0.0)
    assert not handover.is_due(better, plan, SETTLE_S - 1)
    assert not handover.is_due(other, plan, SETTLE_S)
    assert not handover.is_due(better, plan, SETTLE_S + 1)
    assert not handover.is_due(plan, plan, SETTLE_S + 2)
    assert not handover.is_due(better, plan, SETTLE_S + 3)
    named = Placement(rings=(replace(NEW, id="as the next epoch calls it"),))
    assert handover.is_due(named, plan, 2 * SETTLE_S + 3)
    assert not handover.is_due(better, better, 9 * SETTLE_S)


def test_a_ring_with_the_kv_of_a_recent_chat_is_warm():
    kept = replace(OLD, retiring=False)
    again = replace(kept, id="its successor on the same stages")
    handover = Handover()

    def is_warm(now: float, ring: Ring, **traffic: int) -> bool:
        handover.note_use(view(peer("a", (ring.id, READY), **traffic), rings=(ring,)), now)
        return ring.place in handover.warm(now)

    assert not is_warm(0.0, kept)
    assert is_warm(50.0, kept, running=1, requests=1)
    assert is_warm(100.0, kept, requests=2)  # it came and ended between two plans
    assert is_warm(99.0 + COLD_S, again)
    assert not is_warm(100.0 + COLD_S, again)


@pytest.mark.parametrize(
    ("here", "there", "missed"),
    [
        (peer("a", ("new", READY), running=1), peer("b"), True),
        (peer("a", ("new", READY), running=0), peer("b"), False),
        (peer("a", ("new", READY), running=1), peer("b", draining=True), False),
        (peer("a", ("new", READY), running=1), peer("b", state=NodeState.FAILED), False),
        (peer("a", ("another", READY), running=1), peer("b"), False),
    ],
)
def test_a_node_that_leaves_is_missed_while_others_could_take_over(here, there, missed):
    leaving = replace(here, report=replace(here.report, draining=True))
    assert is_needed(view(leaving, there, rings=(ring("new", "a"),))) == missed
    assert not is_needed(view(leaving, there, rings=(ring("new", "b"),)))
