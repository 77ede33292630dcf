"""Which frames are fastest, against the formula and a round that is played."""

import random

import pytest

from node.core.row_family import RowFamily
from node.placement.frame_rows import family_of_ring, guesses_to_wait_for, speed, tokens_of_frame

M3_MAX = RowFamily(((1, 1.0), (2, 1.05), (3, 1.15), (4, 1.3), (5, 1.5)))
M4_PRO = RowFamily(((1, 1.0), (2, 1.15), (3, 1.25), (4, 1.45), (5, 1.6)))
LINEAR = RowFamily(tuple((tokens, float(tokens)) for tokens in range(1, 6)))


def right(tau: float) -> float:
    """The rate of right guesses with so many tokens in a round that ends with a wrong one."""
    return 1 - 1 / tau


@pytest.mark.parametrize(
    ("tau", "stages", "family", "tokens", "expected"),
    [
        (1.15, 1, M3_MAX, 2, 1.08),
        (1.75, 1, M3_MAX, 3, 1.40),
        (1.75, 1, M4_PRO, 3, 1.29),
        (4, 1, M3_MAX, 4, 2.10),
        (1.75, 2, M3_MAX, 2, 1.50),
        (4, 2, M4_PRO, 3, 2.34),
        (9, 2, M3_MAX, 4, 3.78),
        (9, 1, LINEAR, 1, 1.0),
        (4, 2, LINEAR, 1, 1.60),
    ],
)
def test_the_fastest_frames(tau, stages, family, tokens, expected):
    found = tokens_of_frame(family, right=right(tau), stages=stages, in_flight=stages, most=9)
    assert found == tokens
    cost = dict(family.costs)[found]
    assert speed(found, cost, right=right(tau), stages=stages, in_flight=stages) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.75, 1.0])
@pytest.mark.parametrize(("stages", "in_flight"), [(1, 1), (3, 1), (3, 2), (4, 4)])
def test_the_formula_is_what_a_ring_does(rate, stages, in_flight):
    tokens, cost, chosen = 3, 1.25, random.Random(1)
    done, made = 0.0, 0
    sent = [-cost * (1 - place / in_flight) for place in range(in_flight)]  # when each frame in flight has begun
    while made < 40_000:
        done = sent.pop(0) + cost
        hits = next((k for k in range(tokens) if chosen.random() >= rate), tokens)
        made += min(hits + 1, tokens)
        # Each follows as soon as a place is free; after a miss all are void.
        sent = [*sent, done] if hits == tokens else [done + cost * place / in_flight for place in range(in_flight)]
    expected = speed(tokens, cost, right=rate, stages=stages, in_flight=in_flight)
    assert made / done == pytest.approx(expected, rel=0.02)


def test_a_frame_has_no_more_tokens_than_there_are_guesses():
    assert tokens_of_frame(M3_MAX, right=0.9, stages=1, in_flight=1, most=2) == 2
    assert tokens_of_frame(M3_MAX, right=0.9, stages=1, in_flight=1, most=1) == 1


def test_a_family_without_one_fills_its_least_frame():
    from_two = RowFamily(M3_MAX.costs[1:])
    assert tokens_of_frame(from_two, right=0.0, stages=1, in_flight=1, most=1) == 2
    assert tokens_of_frame(from_two, right=0.9, stages=1, in_flight=1, most=9) == 5


def test_a_small_gain_is_none_as_costs_are_measured():
    assert tokens_of_frame(RowFamily(((1, 1.0), (2, 1.49))), right=0.5, stages=1, in_flight=1, most=2) == 1


def test_more_frames_in_flight_are_never_slower():
    speeds = [speed(3, 1.25, right=0.6, stages=4, in_flight=count) for count in range(1, 5)]
    assert speeds == sorted(speeds)


def family(*counts, cost=1.0):
    """Frames of more tokens than one cost so much."""
    return RowFamily(tuple((count, cost if count > 1 else 1.0) for count in counts))


ONE = family(1)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([], ONE),
        ([()], ONE),
        ([(family(1, 2, 3, cost=1.4),)], family(1, 2, 3, cost=1.4)),
        ([(family(1, 2, 3, cost=1.5),)], ONE),
        ([(ONE, family(2, 3, 4, cost=1.15))], family(2, 3, 4, cost=1.15)),
        ([(ONE, family(2, 3, 4, cost=1.16))], ONE),
        ([(ONE, family(2, cost=1.1), family(3, 4))], family(2, cost=1.1)),
        ([(ONE, family(3, 4))], ONE),
        # What one of two stages has proven is not enough.
        ([(family(1, 2, 3),), ()], ONE),
        ([(family(1, 2, 3, cost=1.1),), (family(1, 2, 4, cost=1.3),)], family(1, 2, cost=1.3)),
        ([(family(1, 2, 3, 4),), (ONE, family(2, 3, 4, 5, cost=1.1))], family(2, 3, 4, cost=1.1)),
        ([(ONE, family(2, 3)), (family(1, 2), family(3, 4))], family(2)),
        ([(family(1, 2, 3),), (family(1, 3, cost=1.2),), (family(1, 2, 3),)], family(1, 3, cost=1.2)),
        # A node of another version, or with another clock.
        ([(family(),)], ONE),
        ([(family(1, 2, cost=0.0),)], family(1, 2)),
    ],
)
def test_a_ring_keeps_to_what_all_its_stages_have_proven(stages, expected):
    assert family_of_ring(stages) == expected
    assert family_of_ring(stages[::-1]) == expected


@pytest.mark.parametrize("now", [RowFamily(((1, 1.0), (2, 1.8), (3, 2.4))), RowFamily(((1, 1.0), (2, 1.2)))])
def test_the_counts_of_a_ring_stay_and_their_costs_are_those_of_the_last_measurement(now):
    disturbed = family_of_ring([[RowFamily(((1, 1.0), (2, 1.0)))]])
    assert family_of_ring([[now]], disturbed) == RowFamily(now.costs[:2]), "also where it would not be chosen now"
    assert family_of_ring([[], [now]], disturbed) == disturbed, "a stage of which nothing is heard"


def test_a_ring_of_one_token_takes_others_of_the_same_bits_once_they_are_proven():
    alone = family_of_ring([[], [family(1, 2)]])
    assert alone == ONE
    assert family_of_ring([[family(1, 2)], [family(1, 2)]], alone) == family(1, 2)
    assert family_of_ring([[ONE, family(2, 3)], [ONE, family(2, 3)]], alone) == ONE, "whose bits are others"


@pytest.mark.parametrize(
    ("right", "wait", "most", "guesses"),
    [
        (0.8, 0.0, 5, 3),
        (0.8, 0.1, 5, 2),
        (0.8, 0.1, 2, 1),
        (0.8, 0.1, 1, 0),
        (0.6, 0.1, 5, 2),
        (0.2, 0.1, 5, 0),
        (0.8, 1.0, 5, 0),
    ],
)
def test_a_step_waits_for_guesses_that_make_up_for_their_time(
    right: float, wait: float, most: int, guesses: int
) -> None:
    family = RowFamily(((1, 1.0), (2, 1.1), (3, 1.2), (4, 1.35), (5, 1.5)))
    assert guesses_to_wait_for(family, right=right, wait=wait, stages=1, in_flight=1, most=most) == guesses


@pytest.mark.parametrize(("right", "wait", "guesses"), [(0.3, 0.1, 1), (0.05, 0.1, 0), (0.5, 0.6, 0)])
def test_in_a_step_of_two_the_second_token_costs_only_the_wait(right: float, wait: float, guesses: int) -> None:
    family = RowFamily(((2, 1.1),))
    assert guesses_to_wait_for(family, right=right, wait=wait, stages=1, in_flight=1, most=5) == guesses
