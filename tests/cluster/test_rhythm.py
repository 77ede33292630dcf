"""Who watches whom, and what is told at once."""

from collections import Counter
from dataclasses import replace

import pytest

from node.cluster.rhythm import FEW, HEARTBEAT_S, RESTING_S, WATCHED_BY_TWO_S, interval_s, is_news, rest_s
from node.core.models import Shard
from node.core.nodes import Memory, NodeInfo, PeerHint
from node.core.reports import NodeReport, Path, RingTraffic, StageReport, StageState


def report(node: str, **more) -> NodeReport:
    given = {"memory": Memory(2, 2), **more}
    return NodeReport(NodeInfo(node, 1, node, "home", "1", 1, (), 1, 2), **given)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16])
def test_at_rest_each_node_watches_its_two_neighbours(count):
    alive = [report(f"n{number:02}") for number in reversed(range(count))]
    for node in (each.info.id for each in alive):
        rests = {o.info.id: rest_s(node, o.info.id, alive) for o in alive if o.info.id != node}
        assert rests == {other: rest_s(other, node, alive) for other in rests}, "a pair agrees"
        intervals = [HEARTBEAT_S + rest for rest in rests.values() if HEARTBEAT_S + rest < RESTING_S[0]]
        assert intervals == [HEARTBEAT_S if count <= FEW else WATCHED_BY_TWO_S] * min(2, count - 1)


def test_a_node_that_is_not_known_yet_does_not_rest():
    alive = [report(f"n{number}") for number in range(6)]
    assert rest_s("n0", "n3", alive) >= RESTING_S[0] - HEARTBEAT_S
    assert rest_s("n0", "new", alive) == 0.0


def test_pairs_that_were_asked_together_are_not_due_together():
    alive = [report(f"n{number:02}") for number in range(16)]
    due = Counter(
        HEARTBEAT_S + rest_s(a.info.id, b.info.id, alive) for a in alive for b in alive if a.info.id < b.info.id
    )
    resting = {interval: pairs for interval, pairs in due.items() if interval != WATCHED_BY_TWO_S}
    assert sum(resting.values()) == 104
    assert (min(resting), max(resting)) == pytest.approx(RESTING_S)
    assert max(resting.values()) <= 12


@pytest.mark.parametrize(
    "busy",
    [
        {"traffic": (RingTraffic("r", running=1),)},
        {"traffic": (RingTraffic("r", queued=1),)},
        {"stages": (StageReport("r", Shard("m", 0, 2), StageState.LOADING),)},
    ],
)
def test_nobody_rests_while_somebody_works(busy):
    alive = [*(report(f"n{number}") for number in range(6)), report("n6", **busy)]
    assert {rest_s("n0", f"n{number}", alive) for number in range(1, 6)} == {0.0}


def test_of_a_pair_one_calls_first():
    assert interval_s("a", "b") < interval_s("b", "a") < 2 * interval_s("a", "b")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, False),
        ({"lag_s": 1.0, "job_s": 2.0, "memory": Memory(2, 2, 1)}, False),
        ({"paths": (Path("b", "10.0.0.2", 1.0),)}, False),
        ({"traffic": (RingTraffic("r"),)}, True),
        ({"traffic": (RingTraffic("r", running=2),)}, True),
        ({"term": 3}, True),
        ({"memory": Memory(2, 1)}, True),
        ({"draining": True}, True),
        ({"suspects": ("b",)}, True),
        ({"peers": (PeerHint("b", ("10.0.0.2",), 1),)}, True),
        ({"stages": (StageReport("r", Shard("m", 0, 2), StageState.READY),)}, True),
    ],
)
def test_measurements_are_no_news(changes, told):
    assert is_news(report("a", **changes), report("a")) is told


def test_how_much_a_ring_has_to_do_is_no_news_but_that_it_has():
    one = report("a", traffic=(RingTraffic("r", running=1),))
    assert not is_news(replace(one, traffic=(RingTraffic("r", 3, 1, 20.0),)), one)
    assert is_news(replace(one, traffic=(RingTraffic("r"),)), one)
