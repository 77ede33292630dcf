"""Guesses at the next tokens: what a prediction and a repetition foretell, and how they follow the answer."""

from collections.abc import Sequence

import pytest

from node.core.guesses import FIRST_RATE, MIN_RATE, RATE_DECAY, Guesser

TEXT = [*range(100, 140)]


def foretold(guesser: Guesser, answer: Sequence[int]) -> list[int]:
    """Follow an answer; return the places of the tokens that were guessed rightly."""
    right = []
    for place, token in enumerate(answer):
        if guesser.after([]) == token:
            right.append(place)
        guesser.take(token)
    return right


def missed(answer: Sequence[int], prediction: Sequence[int] = TEXT) -> list[int]:
    right = foretold(Guesser([1], prediction), answer)
    return [place for place in range(len(answer)) if place not in right]


def test_a_right_prediction_foretells_every_token() -> None:
    assert missed(TEXT) == []


def test_a_replaced_token_costs_one_guess() -> None:
    assert missed([*TEXT[:9], 7, *TEXT[10:]]) == [9]
    assert missed([7, *TEXT[1:]]) == [0]


def test_tokens_left_out_cost_one_guess() -> None:
    assert missed([*TEXT[:9], *TEXT[20:]]) == [9]


def test_inserted_tokens_are_missed_and_the_one_after_them() -> None:
    """Only the first token of the prediction that comes again shows where it goes on."""
    assert missed([*TEXT[:9], 7, 8, 9, *TEXT[9:]]) == [9, 10, 11, 12]


def test_an_answer_that_is_longer_than_its_prediction() -> None:
    guesser = Guesser([1], TEXT[:5])
    assert foretold(guesser, TEXT) == [0, 1, 2, 3, 4]
    assert guesser.prediction.accepted == 5


def test_a_prediction_that_resumes_follows_what_was_delivered() -> None:
    guesser = Guesser([1, *TEXT[:7]], TEXT, answered=TEXT[:7])
    assert guesser.prediction.accepted == 7
    assert guesser.after([]) == TEXT[7]


def test_a_passage_goes_on_as_before() -> None:
    guesser = Guesser([5, 6, 7, 8, 9, 3, 6, 7])
    assert guesser.after([]) == 8
    assert guesser.after([8]) == 9
    assert guesser.after([9]) is None  # that is not what it says


def test_the_longest_passage_counts_and_of_those_the_last() -> None:
    assert Guesser([1, 2, 3, 50, 2, 3, 60, 1, 2, 3]).after([]) == 50
    assert Guesser([2, 3, 50, 2, 3, 60, 9, 2, 3]).after([]) == 60


def test_a_single_token_is_no_passage() -> None:
    assert Guesser([5, 6, 7, 5]).after([]) is None


def test_a_passage_may_overlap_its_repetition() -> None:
    guesser = Guesser([1, 2, 1, 2])
    assert foretold(guesser, [1, 2, 1, 2, 1]) == [0, 1, 2, 3, 4]


def test_a_prediction_comes_before_a_repetition() -> None:
    guesser = Guesser([100, 101, 9, 100, 101], TEXT, answered=[100, 101])
    assert guesser.after([]) == 102


@pytest.mark.parametrize("prediction", [TEXT, []])
def test_a_source_that_is_wrong_is_asked_no_more_until_it_is_right_again(prediction: list[int]) -> None:
    """It is followed meanwhile. The other source is wrong, too."""
    guesser = Guesser([1], prediction)
    noise = [50, 60] * 30 if not prediction else [*range(1000, 1060)]
    asked = 0
    for place, token in enumerate(noise):
        asked += guesser.after([]) is not None
        guesser.take(token + 2 * place if not prediction else token)
    assert asked <= len(noise) / 3
    assert foretold(guesser, [100, 101, 102, 103, 104] * 6)[-4:] == [26, 27, 28, 29]


def test_ids_beyond_all_vocabularies_do_no_harm() -> None:
    huge = (1 << 31) - 1
    guesser = Guesser([huge, 5, huge, 5], [huge])
    guesser.take(huge)
    assert guesser.after([]) in (None, 5)


def test_a_new_source_may_miss_some_times() -> None:
    assert FIRST_RATE * RATE_DECAY**5 > MIN_RATE
