"""A session is admitted when the answers of all fit, if they become as long as the last ones did."""

from dataclasses import replace

import pytest

from node.core.generation import GenerateRequest
from node.core.models import KvCost
from node.ring.lane import Lane
from node.ring.limits import RingLimits, weights_as_tokens
from node.ring.room import ENOUGH, FIRST, RECENT, AnswerLengths, Room
from node.ring.session import Session, Slot


def after(*answers: int, running: tuple[int, ...] = (), by_limit: tuple[int, ...] = ()) -> AnswerLengths:
    lengths = AnswerLengths()
    for tokens in answers:
        lengths.add(tokens, ended=True)
    for tokens in by_limit:
        lengths.add(tokens, ended=False)
    lengths.estimate(running)
    return lengths


def test_a_new_ring_expects_long_answers() -> None:
    assert after().expected(0) == FIRST
    assert after(5, 5, 5).expected(0) == FIRST, "three answers tell nothing"
    assert AnswerLengths().expected(7) == FIRST


def test_three_of_four_answers_are_no_longer_than_expected() -> None:
    lengths = after(*range(1, 101))
    assert lengths.expected(0) == 75
    assert lengths.expected(50) == 88, "three of four of those above 50"
    assert lengths.expected(98) == 100


def test_an_answer_longer_than_all_others_may_double() -> None:
    assert after(*[10] * 50).expected(10) == FIRST
    assert after(*[10] * 50).expected(3 * FIRST) == 6 * FIRST


def test_the_short_answers_of_those_that_run_end_first() -> None:
    assert after(*[20] * 30).expected(0) == 20
    assert after(*[20] * 30, running=(25,) * 30).expected(0) == FIRST
    assert after(*[20] * 30, running=(10,) * 30).expected(0) == 20, "they may end as soon"


def test_an_answer_cut_by_its_client_would_have_been_longer() -> None:
    assert after(*[300] * 40, by_limit=(16,) * 200).expected(0) == 300


def test_old_answers_are_forgotten() -> None:
    assert after(*[900] * 50, *[30] * RECENT).expected(0) == 30


def limits(context: int = 4096, max_sessions: int = 2) -> RingLimits:
    return RingLimits(context=context, max_sessions=max_sessions, max_queue=9, max_rows=8, chunk=512)


def session(prompt: int = 100, max_tokens: int = 3000, generated: int = 0) -> Session:
    return Session(GenerateRequest("x", "m", (1,) * prompt, max_tokens, resume=(2,) * generated))


def lanes(*sizes: int) -> list[Lane]:
    """As many sessions in each."""
    return [Lane(number, [Slot(session()) for _ in range(size)]) for number, size in enumerate(sizes)]


def learned(room: Room, tokens: int) -> Room:
    """After many answers of so many tokens."""
    for _ in range(ENOUGH):
        room.ended(session(max_tokens=tokens, generated=tokens - 1))
    return room


def admitted(room: Room, guest: Session) -> int:
    """How many such sessions it admits."""
    (lane,) = lanes(0)
    while room.find(guest, [lane]):
        lane.rows.append(Slot(guest))
    return len(lane.rows)


def test_a_new_ring_admits_few() -> None:
    room = Room(limits(), 64, 1)
    assert admitted(room, session()) == 8192 // 2304
    assert admitted(room, session(max_tokens=100)) == 8192 // 256, "a limit of the client counts"


def test_with_short_answers_a_ring_admits_many() -> None:
    assert admitted(learned(Room(limits(), 64, 1), 50), session()) == 8192 // 256


def test_a_session_may_run_alone_whatever_is_expected() -> None:
    assert admitted(Room(limits(max_sessions=1), 64, 1), session(prompt=1000, max_tokens=3096)) == 1


def test_a_lane_is_full_at_its_rows() -> None:
    assert admitted(learned(Room(limits(), 5, 1), 50), session()) == 5


def test_a_session_joins_the_lane_that_grows_least() -> None:
    room = learned(Room(limits(max_sessions=8), 64, 2), 50)
    short, long = lanes(3, 1)
    long.rows[0].session = session(prompt=3000)
    assert room.find(session(), [short, long]) is short
    assert room.find(session(prompt=3000), [short, long]) is long


@pytest.mark.parametrize(("max_tokens", "expected"), [(50, FIRST), (4096 - 100, 50)])
def test_an_answer_at_the_end_of_the_context_has_ended(max_tokens: int, expected: int) -> None:
    """Not one that its client has limited."""
    room = Room(limits(), 64, 1)
    answer = session(max_tokens=max_tokens, generated=49)
    answer.accept(7)
    for _ in range(ENOUGH):
        room.ended(answer)
    assert admitted(room, session()) == 8192 // (256 if expected == 50 else 2304)


def test_used_is_what_the_sessions_hold_now() -> None:
    room = Room(limits(), 64, 1)
    assert room.used(lanes(3, 1)) == 4 * 256


@pytest.mark.parametrize(("weights", "lane"), [(20_000, 0), (5_000, 1)])
def test_much_longer_sessions_get_a_lane_of_their_own(weights: int, lane: int) -> None:
    """If it saves more padding than the weights that its steps read: here 3 x 3,072 tokens."""
    room = learned(Room(replace(limits(max_sessions=8), weights=weights), 64, 1), 50)
    found = room.find(session(prompt=3100), lanes(3, 0))
    assert found
    assert found.number == lane


def test_extra_lanes_do_not_add_rows() -> None:
    room = learned(Room(replace(limits(max_sessions=8), weights=0), 3, 1), 50)
    assert room.find(session(prompt=3000), lanes(2, 0))
    assert room.find(session(prompt=3000), lanes(2, 1)) is None


def test_weights_as_tokens() -> None:
    """A recurrent layer's state counts as spread over the context."""
    assert weights_as_tokens(64_000, (KvCost(8), KvCost(8)), 1000) == 4000
    assert weights_as_tokens(64_000, (KvCost(8), KvCost(0, fixed=8000)), 1000) == 4000
