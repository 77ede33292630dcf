"""How long a broken ring is tried again."""

from node.core.errors import RingLost
from node.serving.outage import RESTART_DELAY_S, RESTART_ONCE_S, RESTART_WINDOW_S, Outage

REASON = RingLost("A link broke.")


def test_the_first_try_comes_at_once_and_the_others_do_not() -> None:
    outage = Outage()
    for delay in (0.0, RESTART_DELAY_S, RESTART_DELAY_S):
        outage.begin(REASON, 10.0)
        assert outage.next_try() == delay
        outage.restarted()
        assert outage.reason is None
    outage.over()
    outage.begin(REASON, 11.0)
    assert outage.next_try() == 0.0


def test_it_is_given_up_when_it_has_lasted_too_long_since_the_first_break() -> None:
    outage = Outage()
    outage.begin(REASON, 0.0)  # the clock may well begin here
    outage.restarted()
    outage.begin(REASON, RESTART_WINDOW_S)
    assert outage.given_up(RESTART_WINDOW_S, elsewhere=False) is None
    lost = outage.given_up(RESTART_WINDOW_S + 0.1, elsewhere=False)
    assert isinstance(lost, RingLost)
    assert "15.0 s: A link broke." in lost.message


def test_with_another_ring_one_fresh_start_is_enough() -> None:
    outage = Outage()
    outage.begin(REASON, 5.0)
    assert outage.given_up(5.0, elsewhere=True) is None
    assert outage.given_up(5.0 + RESTART_ONCE_S, elsewhere=False) is None
    assert outage.given_up(5.1 + RESTART_ONCE_S, elsewhere=True)


def test_a_ring_is_lost_when_it_gave_requests_up_and_no_step_came_round_since() -> None:
    outage = Outage()
    outage.begin(REASON, 0.0)
    outage.restarted()
    outage.begin(REASON, 1.0)
    assert outage.given_up(1.0, elsewhere=True)
    outage.unmissed()
    assert not outage.is_lost(RESTART_WINDOW_S)
    assert outage.is_lost(RESTART_WINDOW_S + 0.1), "though another ring took the requests"
    outage.begin(REASON, 100.0)
    assert outage.given_up(100.0, elsewhere=False) is None, "the next request is tried as long as the first"
    assert outage.is_lost(100.0)
    outage.over()
    assert not outage.is_lost(101.0)


def test_a_ring_is_not_lost_by_breaks_that_cost_nobody_anything() -> None:
    outage = Outage()
    outage.begin(REASON, 0.0)
    outage.unmissed()
    outage.begin(REASON, 100.0)
    outage.restarted()
    assert not outage.is_lost(110.0)
    outage.gave_up_one()
    assert not outage.is_lost(110.0)
    assert outage.is_lost(100.1 + RESTART_WINDOW_S)


def test_a_step_that_came_round_ends_it() -> None:
    outage = Outage()
    outage.begin(REASON, 1.0)
    outage.restarted()
    outage.over()
    outage.begin(REASON, 100.0)
    assert outage.given_up(100.0, elsewhere=True) is None
