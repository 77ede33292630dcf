"""From which rate on guesses are made, by what rounds take."""

import pytest

from node.ring.guess_gain import GuessGain, Round
from node.ring.running_mean import LEAST

PLAIN, WRONG, RIGHT = Round


def gain(*rounds: tuple[Round, float], each: int = LEAST) -> GuessGain:
    made = GuessGain(stages=2)
    for kind, seconds in rounds:
        for _ in range(each):
            made.begin(kind)
            made.note(seconds)
    return made


@pytest.mark.parametrize(
    ("plain", "wrong", "right", "rate"),
    [
        (1.0, 1.0, 0.5, 0.0),  # a wrong one costs nothing
        (1.0, 0.9, 0.5, 0.0),
        (1.4, 2.0, 1.0, 0.6),
        (1.0, 1.25, 0.75, 0.5),
        (1.0, 1.2, 1.1, 1.0),  # not even right ones save anything
    ],
)
def test_what_is_lost_must_be_saved(plain, wrong, right, rate):
    made = gain((RIGHT, right), (WRONG, wrong), (PLAIN, plain))
    assert made.least_rate == pytest.approx(rate, abs=0.01)
    if 0 < rate < 1:
        assert rate * right + (1 - rate) * wrong == pytest.approx(plain, rel=0.01)


def test_too_few_rounds_of_a_kind_say_nothing():
    assert gain((PLAIN, 1.0), (RIGHT, 0.5), each=100).least_rate == 0.0
    assert gain((PLAIN, 1.0), (WRONG, 3.0), (RIGHT, 0.5), each=LEAST - 1).least_rate == 0.0


def test_until_there_were_right_ones_they_are_taken_to_save_all_but_one_stage():
    assert gain((PLAIN, 1.0), (WRONG, 1.25)).least_rate == pytest.approx(1 / 3)


def test_rounds_without_guesses_are_awaited_once_there_were_right_and_wrong_ones():
    made = gain((WRONG, 1.0))
    assert made.least_rate == 1.0
    for _ in range(LEAST):
        made.begin(PLAIN)
        made.note(1.0)
    assert made.least_rate == 0.0


def test_one_long_round_says_little():
    made = gain((PLAIN, 1.0), (WRONG, 1.0), (RIGHT, 0.5), each=20)
    made.begin(WRONG)
    made.note(60.0)
    assert made.least_rate < 0.2


def test_a_round_of_no_kind_counts_for_none():
    made = gain((PLAIN, 1.0), (WRONG, 1.0), (RIGHT, 0.5))
    made.begin(None)
    made.note(60.0)
    assert made.least_rate == 0.0


@pytest.mark.parametrize("right", [0.5, 1.5])
def test_guesses_that_are_not_made_are_tried_again_some_time_later(right):
    made = gain((PLAIN, 1.0), (WRONG, 3.0), (RIGHT, right))
    assert made.least_rate > 0.7
    for _ in range(2000):
        made.begin(PLAIN)
        made.note(1.0)
    assert made.least_rate < 0.1
