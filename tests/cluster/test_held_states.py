"""Which heartbeats carry a report, and that both sides end with each other's present one whatever is lost."""

import random
from dataclasses import replace

import pytest

from node.cluster.held_states import RECENT, HeldStates
from node.core.limits import MAX_NODES
from node.core.models import ModelVersion, Shard
from node.core.nodes import Memory, NodeInfo, PeerHint
from node.core.reports import Heartbeat, NodeReport, Path, RingTraffic, StageReport, StageState


def report(node: str, term: int = 0) -> NodeReport:
    return NodeReport(NodeInfo(node, 1, node, "home", "1", 1, (), 1, 2), Memory(1, 1), term=term)


def outgoing(states: HeldStates, report: NodeReport, to: str | None) -> Heartbeat:
    states.renew(report)
    return states.outgoing(None, to)


def exchange(a: HeldStates, b: HeldStates, of_a: NodeReport, of_b: NodeReport) -> tuple[Heartbeat, Heartbeat]:
    """A call of node a at node b, and the answer."""
    asked = outgoing(a, of_a, "b")
    b.incoming(asked)
    answer = outgoing(b, of_b, "a")
    a.incoming(answer)
    return asked, answer


def test_a_report_goes_once():
    a, b = HeldStates(), HeldStates()
    first, answer = exchange(a, b, report("a"), report("b"))
    assert (first.report, answer.report) == (report("a"), report("b"))
    asked, answer = exchange(a, b, report("a"), report("b"))
    assert (asked.report, asked.sender, answer.report) == (None, "a", None)
    assert b.incoming(asked) == replace(asked, report=report("a"))
    assert a.incoming(answer) == replace(answer, report=report("b"))


def test_a_report_goes_again_when_it_changed():
    a, b = HeldStates(), HeldStates()
    exchange(a, b, report("a"), report("b"))
    asked, answer = exchange(a, b, report("a", 1), report("b"))
    assert (asked.report, answer.report) == (report("a", 1), None)


def test_a_node_that_forgot_all_gets_all():
    a, b = HeldStates(), HeldStates()
    exchange(a, b, report("a"), report("b"))
    b = HeldStates()
    asked = outgoing(a, report("a"), "b")
    assert b.incoming(asked) is None
    answer = outgoing(b, report("b", 7), "a")
    assert answer.held != asked.digest
    assert a.incoming(answer) == answer
    asked, _ = exchange(a, b, report("a"), report("b", 7))
    assert asked.report == report("a")


def test_an_unknown_receiver_gets_the_whole_report_and_keeps_none():
    a = HeldStates()
    assert outgoing(a, report("a"), None).report
    assert a.incoming(Heartbeat(report("old"))) == Heartbeat(report("old"))
    assert a.incoming(Heartbeat(node="old")) is None, "a report without a digest is not kept"


@pytest.mark.parametrize("seed", range(50))
def test_after_lost_late_and_doubled_messages_one_call_and_a_repetition_bring_both_up_to_date(seed):
    rng = random.Random(seed)
    states, reports = {"a": HeldStates(), "b": HeldStates()}, {"a": report("a"), "b": report("b")}
    on_the_way: list[tuple[str, Heartbeat]] = []
    for _ in range(200):
        node = rng.choice("ab")
        other = "b" if node == "a" else "a"
        match rng.choice(["change", "send", "send", "arrive", "arrive", "double", "lose", "restart"]):
            case "change":
                reports[node] = report(node, rng.randrange(4))
            case "send":
                on_the_way.append((other, outgoing(states[node], reports[node], other)))
            case "restart" if rng.random() < 0.2:
                states[node] = HeldStates()
            case kind if on_the_way:
                to, heartbeat = on_the_way.pop(rng.randrange(len(on_the_way)))
                if kind != "lose":
                    states[to].incoming(heartbeat)
                if kind == "double":
                    on_the_way.append((to, heartbeat))
    for _ in range(2):
        asked, answer = exchange(states["a"], states["b"], reports["a"], reports["b"])
    complete = states["b"].incoming(asked), states["a"].incoming(answer)
    assert [each and each.report for each in complete] == [reports["a"], reports["b"]]


def test_news_is_lacked_until_the_other_says_that_it_has_it():
    a, b = HeldStates(), HeldStates()
    exchange(a, b, report("a"), report("b"))
    assert not a.lacks_news("b")
    assert a.renew(report("a", 1))
    assert a.lacks_news("b")
    asked = outgoing(a, report("a", 1), "b")
    assert a.lacks_news("b"), "it may be lost"
    b.incoming(asked)
    assert not a.renew(replace(report("a", 1), lag_s=0.5)), "a measurement"
    a.incoming(outgoing(b, report("b"), "a"))
    assert not a.lacks_news("b")
    assert a.lacks_news("c")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, False),
        ({"lag_s": 1.0, "job_s": 2.0, "memory": Memory(1, 1, 1)}, False),
        ({"paths": (Path("b", "10.0.0.2", 1.0),)}, False),
        ({"traffic": (RingTraffic("r", 3, 1, 20.0),)}, False),
        ({"traffic": (RingTraffic("r"),)}, True),
        ({"traffic": (RingTraffic("r", running=1), RingTraffic("s"))}, True),
        ({"term": 3}, True),
        ({"memory": Memory(1, 0)}, True),
        ({"draining": True}, True),
        ({"peers": (PeerHint("b", ("10.0.0.2",), 1),)}, True),
        ({"stages": (StageReport("r", Shard(ModelVersion("m"), 0, 2), StageState.READY),)}, True),
    ],
)
def test_measurements_are_no_news(changes, told):
    """That a ring has something to do is news; how much it has to do is a measurement."""
    usual, states = replace(report("a"), traffic=(RingTraffic("r", running=1),)), HeldStates()
    assert states.renew(usual)
    assert states.renew(replace(usual, **changes)) is told


def test_what_strangers_say_is_kept_within_bounds():
    a = HeldStates()
    for number in range(2 * MAX_NODES):
        a.incoming(Heartbeat(report(f"x{number}"), digest=1))
        outgoing(a, replace(report("a"), lag_s=number), None)
    assert len(a._theirs) == len(a._ours) == MAX_NODES
    assert len(a._recent) == RECENT
