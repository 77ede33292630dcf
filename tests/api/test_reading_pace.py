"""A client that lets bytes wait is given up if it takes less than READ_RATE of them, in small events, too."""

import pytest

from api.http.limits import READ_RATE
from api.http.reading_pace import ReadingPace

SPAN_S = 60.0


def waited(pace: ReadingPace, size: int, seconds: float, begun: float) -> float:
    """An event of so many bytes waits so long, and is taken. Returns the time of its end."""
    pace.look(begun, size)
    pace.look(begun + seconds, 0)
    return begun + seconds


@pytest.mark.parametrize(("share", "too_slow"), [(0.9, True), (1.1, False)])
def test_events_that_are_taken_one_by_one(share: float, too_slow: bool) -> None:
    pace, now = ReadingPace(SPAN_S), 0.0
    for _ in range(60):
        now = waited(pace, int(share * READ_RATE), 1.0, now) + 100.0  # between them nothing waits
    assert pace.is_too_slow is too_slow


def test_one_event_that_is_never_taken() -> None:
    pace = ReadingPace(SPAN_S)
    pace.look(0.0, 200)
    assert pace.next_look_s == SPAN_S
    pace.look(SPAN_S, 200)
    assert pace.is_too_slow


def test_a_large_answer_that_is_taken_slowly_but_surely() -> None:
    pace = ReadingPace(SPAN_S)
    for minute in range(10):
        pace.look(minute * SPAN_S, 2**20 - minute * 2 * READ_RATE * int(SPAN_S))
        assert not pace.is_too_slow


def test_each_span_is_judged_by_itself() -> None:
    pace = ReadingPace(SPAN_S)
    pace.look(0.0, 2**30)
    pace.look(SPAN_S, 2**29)
    assert not pace.is_too_slow
    pace.look(2 * SPAN_S, 2**29 - 100)
    assert pace.is_too_slow
