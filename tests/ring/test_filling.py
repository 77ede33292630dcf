"""What steps of a session cost on one node, by what they took."""

import pytest

from node.core.generation import GenerateRequest
from node.core.row_family import RowFamily
from node.ring.filling import Filling
from node.ring.flight import Step
from node.ring.session import Session, Slot

FAMILY = RowFamily(((1, 1.0), (4, 1.2)))


def filling(stages: int = 1, family: RowFamily = FAMILY) -> Filling:
    made = Filling(stages, guesses=True)
    made.family = family
    return made


def note(made: Filling, seconds: float, tokens: int = 1, times: int = 1, session: int = 1) -> None:
    slot = Slot(Session(GenerateRequest("x", "m", (1, 2, 3), 100)), lane=session)
    for _ in range(times):
        made.note_step(Step(0, (), (slot,), ((7,) * tokens,), samples=True), seconds)


def size(made: Filling, right: float) -> int:
    """How many tokens the next step has if a guess is so often right."""
    return made._best_size(right, 1, 4)


def test_steps_count_as_what_they_take_once_both_are_known() -> None:
    made = filling()
    note(made, 0.020, times=10)
    assert size(made, 0.5) == 4
    note(made, 0.050, tokens=4, times=3)
    assert size(made, 0.5) == 4, "too few are known"
    note(made, 0.050, tokens=4)
    assert size(made, 0.5) == 1
    assert size(made, 0.9) == 4


def test_what_did_not_pay_is_tried_again_some_time_later() -> None:
    made = filling()
    note(made, 0.020, times=10)
    note(made, 0.050, tokens=4, times=4)
    note(made, 0.020, times=400)
    assert size(made, 0.5) == 4


@pytest.mark.parametrize("slower", [3.0, 1 / 3])
def test_another_session_with_another_context_is_not_compared_with_the_one_before(slower: float) -> None:
    made = filling()
    note(made, 0.020, times=20)
    note(made, 0.024, tokens=4, times=20)
    note(made, 0.020 * slower, times=20, session=2)
    assert (size(made, 0.5), size(made, 0.1)) == (4, 1)


def test_what_a_session_has_shown_counts_for_the_next_one_and_fades() -> None:
    made = filling()
    note(made, 0.020, times=20)
    note(made, 0.050, tokens=4, times=20)
    note(made, 0.007, session=2)
    assert size(made, 0.5) == 1
    note(made, 0.007, times=400, session=2)
    assert size(made, 0.5) == 4


def test_one_step_that_took_long_says_little() -> None:
    made = filling()
    note(made, 0.020, times=20)
    note(made, 0.024, tokens=4, times=20)
    note(made, 60.0, tokens=4)
    assert size(made, 0.5) == 4


def test_the_steps_of_several_stages_overlap_so_they_say_nothing() -> None:
    made = filling(stages=2)
    note(made, 0.020, times=20)
    note(made, 0.500, tokens=4, times=20)
    assert size(made, 0.5) == 4


def test_a_clock_that_stands_still_says_nothing() -> None:
    made = filling()
    note(made, 0.0, times=20)
    note(made, 0.0, tokens=4, times=20)
    assert size(made, 0.5) == 4


def test_steps_of_other_numbers_of_tokens_say_nothing() -> None:
    made = filling()
    note(made, 0.020, times=20)
    note(made, 9.0, tokens=3, times=20)
    note(made, 0.024, tokens=4, times=20)
    assert size(made, 0.5) == 4
