"""What steps of a session cost on one node, by what they took."""

from node.core.generation import GenerateRequest
from node.core.row_family import RowFamily
from node.ring.filling import Filling
from node.ring.flight import Step
from node.ring.session import Session, Slot
from node.text.constraint import Constraint

FAMILY = RowFamily(((1, 1.0), (4, 1.2)))


def filling(stages: int = 1) -> Filling:
    made = Filling(stages, guesses=True)
    made.family = FAMILY
    return made


def begun() -> Session:
    return Session(GenerateRequest("x", "m", (1, 2, 3), 100))


def slowing_down(made: Filling, session: Session, dear: int, cost: float, *, right: float) -> int:
    """Steps that take twice as long in the end, of the best number each time. Returns how many of the last 100 had guesses."""
    guessed = []
    for number in range(3000):
        best = made._best_size(session, right, 1, dear)
        least = made.family.costs[0][0]
        step_s = 0.020 * (1 + number / 3000) * (cost if best == dear else 1.0)
        note(made, session, step_s, tokens=best, is_ahead=False)
        guessed.append(best > least)
    return sum(guessed[-100:])


def note(
    made: Filling, session: Session, seconds: float, tokens: int = 1, times: int = 1, *, is_ahead: bool = True
) -> None:
    ahead = 1 if tokens == 1 and is_ahead else 0
    for _ in range(times):
        made.note_step(Step(0, (), (Slot(session),), ((7,) * tokens,), samples=True, ahead=ahead), seconds)


def size(made: Filling, session: Session, right: float) -> int:
    """How many tokens the next step has if a guess is so often right."""
    return made._best_size(session, right, 1, 4)


def shown(seconds: float, stages: int = 1) -> tuple[Filling, Session]:
    """A session whose steps of 1 and of 4 tokens took 20 ms and so long."""
    made, session = filling(stages), begun()
    note(made, session, 0.020, times=10)
    note(made, session, seconds, tokens=4, times=10)
    return made, session


def test_a_session_begins_without_guesses_to_show_what_its_steps_take() -> None:
    made, session = filling(), begun()
    for _ in range(4):
        assert size(made, session, 0.9) == 1
        note(made, session, 0.020)
    assert size(made, session, 0.9) == 4
    assert size(filling(stages=2), begun(), 0.9) == 4


def test_steps_count_as_what_they_take_once_both_are_known() -> None:
    made, session = filling(), begun()
    note(made, session, 0.020, times=10)
    note(made, session, 0.050, tokens=4, times=3)
    assert size(made, session, 0.5) == 4, "too few are known"
    note(made, session, 0.050, tokens=4)
    assert size(made, session, 0.5) == 1
    assert size(made, session, 0.9) == 4


def test_steps_that_could_not_begin_ahead_do_not_count_for_those_that_would() -> None:
    made, session = shown(0.050)
    note(made, session, 0.030, times=100, is_ahead=False)
    assert size(made, session, 0.5) == 1


def test_what_did_not_pay_is_tried_again_some_time_later() -> None:
    made, session = shown(0.050)
    note(made, session, 0.020, times=400)
    assert size(made, session, 0.5) == 4


def test_another_session_with_another_context_is_compared_with_itself() -> None:
    for seconds, best in ((0.024, 4), (0.050, 1)):
        for slower in (3.0, 1 / 3):
            made, _ = shown(seconds)
            session = begun()
            note(made, session, 0.020 * slower, times=4)
            assert size(made, session, 0.5) == best
            note(made, session, seconds * slower, tokens=4, times=20)
            assert size(made, session, 0.5) == best


def test_steps_that_all_become_slower_have_as_many_tokens_as_before() -> None:
    made = filling()
    made.family = RowFamily(((2, 1.05), (5, 1.25)))
    assert slowing_down(made, begun(), 5, 1.25 / 1.05, right=0.7) > 90
    made, bound = filling(), begun()
    bound.constraint = Bound()
    assert slowing_down(made, bound, 4, 1.2, right=0.6) > 90


class Bound(Constraint):
    """A grammar that binds."""

    def __init__(self) -> None:
        pass

    @property
    def binds(self) -> bool:
        return True


def test_a_step_that_took_long_at_the_beginning_counts_for_less_and_less() -> None:
    made, session = filling(), begun()
    for seconds in (0.020, 0.020, 0.020, 0.160):
        note(made, session, seconds)
    note(made, session, 0.036, tokens=4, times=1500)
    assert size(made, session, 0.1) == 1


def test_one_step_that_took_long_says_little() -> None:
    made, session = shown(0.024)
    note(made, session, 60.0, tokens=4)
    assert size(made, session, 0.5) == 4


def test_the_steps_of_several_stages_overlap_so_they_say_nothing() -> None:
    made, session = shown(0.500, stages=2)
    assert size(made, session, 0.5) == 4


def test_a_clock_that_stands_still_says_nothing() -> None:
    made, session = shown(0.050)
    note(made, session, 0.0, times=20)
    note(made, session, 0.0, tokens=4, times=20)
    assert size(made, session, 0.5) == 1


def test_steps_of_other_numbers_of_tokens_say_nothing() -> None:
    made, session = shown(0.024)
    note(made, session, 9.0, tokens=3, times=20)
    assert size(made, session, 0.5) == 4
