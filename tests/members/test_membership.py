import dataclasses

import pytest

from node.core.limits import MAX_NODES
from node.core.nodes import Memory, NodeInfo
from node.core.reports import NodeReport
from node.core.views import NodeState
from node.members.membership import Changed, Forgotten, Joined, Membership

SELF = NodeInfo("me", 5, "mini-1", "home", "0.1.0", 1, ("10.0.0.1",), 1, 2)
PEER = dataclasses.replace(SELF, id="peer", name="mini-2", incarnation=3)


def report(info: NodeInfo = PEER, **changes: object) -> NodeReport:
    return NodeReport(dataclasses.replace(info, **changes), Memory(16, 12))


def alive(members: Membership) -> set[str]:
    return {r.info.id for r in members.alive()}


def state(members: Membership, now: float, node: str = "peer") -> NodeState | None:
    return next((p.state for p in members.view(now) if p.report.info.id == node), None)


@pytest.fixture
def members() -> Membership:
    members = Membership(SELF)
    assert members.heard(report(SELF), 0.0) == []
    assert members.heard(report(), 0.0) == [Joined("peer")]
    return members


def quiet(members: Membership, start: float, end: float) -> list[tuple[float, object]]:
    """Tick every quarter of a second; return the events with their times."""
    found: list[tuple[float, object]] = []
    now = start
    while now <= end:
        found += [(now, change) for change in members.tick(now)]
        now += 0.25
    return found


def on_time(members: Membership, now: float, end: float) -> list[tuple[float, object]]:
    """Tick whenever it is due; return the events with their times."""
    found: list[tuple[float, object]] = []
    while (now := members.next_tick(now + 0.25)) <= end:
        found += [(pytest.approx(now), change) for change in members.tick(now)]
    return found


def test_silence_makes_suspect_then_failed_then_forgotten(members):
    assert quiet(members, 0, 5) == [
        (1.25, Changed("peer", NodeState.SUSPECT)),
        (2.0, Changed("peer", NodeState.FAILED, "no answer for 2.0 s")),
    ]
    gone = members.view(5.0)[1]
    assert (gone.state, gone.last_seen_s) == (NodeState.FAILED, 5.0)
    assert quiet(members, 299, 301) == [(300.0, Forgotten("peer"))]
    assert state(members, 301) is None


@pytest.mark.parametrize(("how", "at"), [("silent", 10.0), ("left", 5.0), ("ended", 5.0)])
def test_since_when_a_node_is_gone_is_known(how, at):
    """Not since when it is silent: with a long --fail-after it was silent for long when it is declared failed."""
    members = Membership(SELF, fail_after_s=10.0)
    members.heard(report(SELF), 0.0)
    members.heard(report(), 0.0)
    assert [peer.gone_s for peer in members.view(4.0)] == [0.0, 0.0]
    if how == "silent":
        on_time(members, 0.0, at)
    elif how == "left":
        members.goodbye("peer", at, PEER.incarnation)
    else:
        members.unreachable("peer", at, gone_at=at - 1)
    assert [peer.gone_s for peer in members.view(at)] == [0.0, 0.0]
    assert [peer.gone_s for peer in members.view(at + 3.0)] == [0.0, 3.0]
    members.heard(report(incarnation=PEER.incarnation + 1), at + 3.0)
    assert [peer.gone_s for peer in members.view(at + 4.0)] == [0.0, 0.0]


def test_a_suspect_takes_part_and_a_failed_node_does_not(members):
    quiet(members, 0, 1.5)
    assert alive(members) == {"me", "peer"}
    quiet(members, 1.5, 2)
    assert alive(members) == {"me"}


def test_heard_in_time_it_stays(members):
    quiet(members, 0, 1.5)
    assert members.heard(report(), 1.5) == [Changed("peer", NodeState.ALIVE)]
    assert members.heard(report(), 2.0) == []
    assert quiet(members, 1.5, 2.75) == []


def test_a_node_whose_loop_is_often_late_is_given_longer_but_not_for_ever(members):
    members.heard(dataclasses.replace(report(), lag_s=1.0), 10.0)
    assert [when for when, _ in quiet(members, 10, 15)] == [12.0, 13.0]
    members.heard(dataclasses.replace(report(SELF), lag_s=0.5), 19.0)
    members.heard(dataclasses.replace(report(incarnation=4), lag_s=0.2), 20.0)
    assert quiet(members, 20, 30)[-1][0] == 22.5, "1.8 s and the lags of both"
    members = Membership(SELF)
    members.heard(dataclasses.replace(report(), lag_s=1e9), 20.0)
    assert quiet(members, 20, 30)[-1][0] == 23.75


def test_a_reset_connection_makes_suspect_at_once_and_failed_sooner(members):
    assert members.unreachable("peer", 0.2) == [Changed("peer", NodeState.SUSPECT, "connection lost")]
    assert members.unreachable("peer", 0.3) == []
    ((when, change),) = quiet(members, 0.5, 3)
    assert when == 0.75
    assert change == Changed("peer", NodeState.FAILED, "connection lost, 0.8 s silent")


def test_a_reset_connection_of_a_living_node_is_forgiven(members):
    members.unreachable("peer", 0.2)
    assert members.heard(report(), 0.4) == [Changed("peer", NodeState.ALIVE)]
    assert quiet(members, 0.5, 1.0) == []


def test_a_process_that_has_ended_is_not_waited_for(members):
    assert members.unreachable("peer", 0.3, gone_at=0.2) == [Changed("peer", NodeState.FAILED, "its process has ended")]
    assert members.unreachable("peer", 0.4, gone_at=0.4) == []


def test_a_suspect_whose_process_has_ended_fails_at_once(members):
    members.unreachable("peer", 0.2)
    assert members.unreachable("peer", 0.3, gone_at=0.25)[0].state is NodeState.FAILED


def test_whose_process_is_known_to_have_ended(members):
    assert members.ended() == set()
    members.unreachable("peer", 0.3, gone_at=0.2)
    assert members.ended() == {"peer"}
    members.heard(report(incarnation=4), 1.0)
    assert members.ended() == set()
    members.goodbye("peer", 1.1, 4)
    assert members.ended() == {"peer"}
    members.heard(report(incarnation=5), 2.0)
    quiet(members, 2, 5)
    assert members.ended() == set(), "it is silent, which may be the network's fault"


def test_who_was_heard_since_has_not_ended(members):
    members.heard(report(incarnation=4), 0.3)
    assert members.unreachable("peer", 0.4, gone_at=0.2) == [Changed("peer", NodeState.SUSPECT, "connection lost")]


def test_back_from_failure_it_joins(members):
    quiet(members, 0, 4)
    assert members.heard(report(), 4.0) == [Joined("peer")]
    assert state(members, 4.0) is NodeState.ALIVE


def test_a_restart_is_a_failure_and_a_join(members):
    assert members.heard(report(incarnation=4), 1.0) == [
        Changed("peer", NodeState.FAILED, "restarted"),
        Joined("peer"),
    ]


def test_a_lower_incarnation_is_ignored(members):
    members.heard(report(incarnation=4), 1.0)
    assert members.heard(report(incarnation=3), 1.1) == []
    assert members.alive()[1].info.incarnation == 4


def test_goodbye_holds_for_its_incarnation_only(members):
    assert members.goodbye("peer", 1.0, 3) == [Changed("peer", NodeState.LEFT, "said goodbye")]
    assert members.goodbye("peer", 1.1, 3) == []
    assert members.heard(report(), 1.2) == []
    assert quiet(members, 1, 10) == []
    assert alive(members) == {"me"}
    assert members.heard(report(incarnation=4), 11.0) == [Joined("peer")]
    assert members.goodbye("peer", 11.1, 3) == []
    assert state(members, 11.1) is NodeState.ALIVE


def test_who_speaks_on_is_here_whatever_was_said_of_it(members):
    """Its data directory was restored from a backup, or a stranger claimed a later incarnation."""
    members.heard(report(incarnation=(1 << 53) - 1), 1.0)
    now = 1.5
    while now < 10.9:
        members.tick(now)
        assert members.heard(report(), now) == []
        now += 0.5
    assert members.heard(report(), 11.1) == [Joined("peer")]
    members.goodbye("peer", 11.2, (1 << 53) - 1)
    assert members.heard(report(), 21.0) == []
    assert members.heard(report(), 21.3) == [Joined("peer")]


def test_another_cluster_does_not_exist(members):
    assert members.heard(report(id="other", cluster="work"), 1.0) == []
    assert state(members, 1.0, "other") is None


def test_another_protocol_is_refused_and_shown(members):
    (change,) = members.heard(report(id="new", version="0.2.0", protocol=3), 1.0)
    assert isinstance(change, Changed)
    assert change.state is NodeState.REFUSED
    for part in ("0.2.0 (protocol 3)", "0.1.0 (protocol 1)"):
        assert part in change.reason
    assert members.heard(report(id="new", version="0.2.0", protocol=3), 2.0) == []
    assert alive(members) == {"me", "peer"}
    assert state(members, 2.0, "new") is NodeState.REFUSED
    assert members.unreachable("new", 2.0) == []
    assert members.heard(report(id="new", incarnation=4), 3.0) == [Joined("new")]


@pytest.mark.parametrize("ours", [1, 3])
def test_nodes_of_protocols_one_apart_work_together(ours):
    """As while a cluster is updated, one node after the other."""
    members = Membership(dataclasses.replace(SELF, protocol=ours))
    assert members.heard(report(id="new", version="0.2.0", protocol=2), 1.0) == [Joined("new")]


def test_a_node_that_was_updated_under_us_takes_part_no_more(members):
    (change,) = members.heard(report(incarnation=4, version="0.2.0", protocol=3), 1.0)
    assert isinstance(change, Changed)
    assert alive(members) == {"me"}


def test_own_reports_are_shown_first_and_never_age(members):
    quiet(members, 0, 10)
    own = members.view(10.0)[0]
    assert (own.report.info.id, own.state, own.last_seen_s) == ("me", NodeState.ALIVE, 0.0)
    assert members.heard(report(SELF, addresses=("10.0.0.2",)), 10.0) == []
    assert members.view(10.0)[0].report.info.addresses == ("10.0.0.2",)


def test_own_stall_is_no_failure_of_others(members):
    members.tick(0.0)
    members.next_tick(0.25)
    assert members.tick(20.0) == [Changed("peer", NodeState.SUSPECT)]
    assert members.tick(20.25) == []
    assert members.heard(report(), 20.5) == [Changed("peer", NodeState.ALIVE)]


def test_a_peer_that_died_during_our_stall_fails_soon_after(members):
    members.tick(0.0)
    members.next_tick(0.25)
    members.tick(20.0)
    assert on_time(members, 20.0, 22.0) == [(21.55, Changed("peer", NodeState.FAILED, "no answer for 21.6 s"))]


def test_no_moment_of_a_stall_counts_twice(members):
    """Whatever runs first after it ticks, as an answer does, and then the timer."""
    members.next_tick(0.3)
    for now in (1.3, 1.3, 1.4):  # 1.1 s late
        assert members.tick(now) == []
    assert [when for when, _ in on_time(members, 1.4, 4.0)] == [pytest.approx(2 / 3 * 2.9), 2.9]


def test_ticks_that_are_always_late_still_see_a_failure(members):
    """By half a second each, whereof half is silence of the peer."""
    now, states = 0.0, []
    while now < 4.0:
        now = members.next_tick(now + 0.25) + 0.25
        members.tick(now)
        states.append(state(members, now))
    assert states[-1] is NodeState.FAILED
    assert states[int(2.4 / 0.5)] is not NodeState.FAILED


def test_unknown_nodes_are_no_error(members):
    assert members.unreachable("nobody", 1.0) == []
    assert members.goodbye("nobody", 1.0, 3) == []


def test_invented_nodes_take_the_place_of_those_that_are_gone():
    """They replace the node that has been gone for longest, never a node that is here."""
    members = Membership(SELF)
    for number in range(MAX_NODES):
        assert members.heard(report(id=f"x{number}"), number / 1000) == [Joined(f"x{number}")]
    assert members.heard(report(id="y0"), 0.5) == []
    members.goodbye("x1", 1.0, 3)
    members.goodbye("x0", 1.1, 3)
    assert members.heard(report(id="y1"), 1.2) == [Forgotten("x1"), Joined("y1")]
    assert members.heard(report(id="y2", protocol=3), 1.3)[0] == Forgotten("x0")
    assert alive(members) == {"y1", *(f"x{number}" for number in range(2, MAX_NODES))}
    assert members.heard(report(id="x2"), 1.4) == []


def test_the_next_tick_that_matters(members):
    assert members.next_tick(0.3) == 0.3
    for due in (1.2, 1.8):
        at = members.next_tick(9.0)
        assert at == pytest.approx(due)
        members.tick(at)
    assert members.next_tick(9.0) == 9.0
