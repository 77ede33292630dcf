"""Guesses at the next tokens: what a prediction and a repetition foretell, and how they follow the answer."""

from collections.abc import Sequence

import pytest

from node.core.guesses import CATCH_UP, FIRST_RATE, MIN_RATE, RATE_DECAY, Guesser, Prediction

TEXT = [*range(100, 140)]


def foretold(guesser: Guesser, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """Follow an answer; return the places of the tokens that were guessed rightly."""
    return [place for place, token in enumerate(answer) if guesser.after([*prompt, *answer[:place]]) == token]


def missed(answer: Sequence[int], prediction: Sequence[int] = TEXT) -> list[int]:
    right = foretold(Guesser([1], prediction), [1], answer)
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
    assert foretold(Guesser([1], TEXT[:5]), [1], TEXT) == [0, 1, 2, 3, 4]


def test_a_prediction_counts_what_it_foretold() -> None:
    prediction = Prediction(TEXT[:5])
    for token in [100, 101, 7, 103, 104, 105]:
        prediction.follow(token)
    assert prediction.accepted == 4


def test_an_answer_that_was_taken_up_is_followed_in_parts() -> None:
    """So that a long one does not block the event loop."""
    text = [*range(1000, 1000 + 3 * CATCH_UP)]
    guesser = Guesser([1], text)
    tokens = [1, *text[: 2 * CATCH_UP + 5]]
    assert [guesser.after(tokens) for _ in range(3)] == [None, None, text[2 * CATCH_UP + 5]]


def test_a_passage_goes_on_as_before() -> None:
    prompt = [5, 6, 7, 8, 9, 3, 6, 7]
    guesser = Guesser(prompt)
    assert guesser.after(prompt) == 8
    assert guesser.after(prompt, [8]) == 9
    assert guesser.after(prompt, [9]) is None  # that is not what it says


def after(prompt: Sequence[int]) -> int | None:
    return Guesser(prompt).after(prompt)


def test_the_longest_passage_counts_and_of_those_the_last() -> None:
    assert after([1, 2, 3, 50, 2, 3, 60, 1, 2, 3]) == 50
    assert after([2, 3, 50, 2, 3, 60, 9, 2, 3]) == 60


def test_a_single_token_is_no_passage() -> None:
    assert after([5, 6, 7, 5]) is None


def test_a_passage_may_overlap_its_repetition() -> None:
    assert foretold(Guesser([1, 2, 1, 2]), [1, 2, 1, 2], [1, 2, 1, 2, 1]) == [0, 1, 2, 3, 4]


def test_a_prediction_comes_before_a_repetition() -> None:
    assert Guesser([100, 101, 9], TEXT).after([100, 101, 9, 100, 101]) == 102


@pytest.mark.parametrize("prediction", [TEXT, []])
def test_a_source_that_is_wrong_is_asked_no_more_until_it_is_right_again(prediction: list[int]) -> None:
    """It is followed meanwhile. The other source is wrong, too."""
    guesser, tokens, asked = Guesser([1], prediction), [1], 0
    for place in range(60):
        asked += guesser.after(tokens) is not None
        tokens.append(1000 + place if prediction else (50, 60, 1000 + place)[place % 3])
    assert 0 < asked <= 20
    assert foretold(guesser, tokens, [100, 101, 102, 103, 104] * 6)[-4:] == [26, 27, 28, 29]


def test_ids_beyond_all_vocabularies_do_no_harm() -> None:
    huge = (1 << 31) - 1
    assert Guesser([huge, 5, huge, 5], [huge]).after([huge, 5, huge, 5, huge]) in (None, 5)


def test_a_new_source_may_miss_some_times() -> None:
    assert FIRST_RATE * RATE_DECAY**5 > MIN_RATE
