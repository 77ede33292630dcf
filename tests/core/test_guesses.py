"""Guesses at the next tokens: what a prediction and a repetition foretell, and how they follow the answer."""

from collections.abc import Sequence

import pytest

from node.core.guesses import CATCH_UP, FIRST_RATE, MIN_RATE, RATE_DECAY, Earlier, Guesser, Prediction

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


# --- a draft model ------------------------------------------------------------------------------------------------------


def test_what_the_draft_model_has_drawn_is_guessed_until_it_turns_out_wrong() -> None:
    guesser, tokens = Guesser([1]), [1]
    assert guesser.lacks_draft(tokens)
    guesser.add_draft(tokens, [], 50)
    assert guesser.lacks_draft(tokens, [50])
    guesser.add_draft(tokens, [50], 51)
    assert [guesser.after(tokens), guesser.after(tokens, [50]), guesser.after(tokens, [9])] == [50, 51, None]
    assert [guesser.lacks_draft(tokens, path) for path in ([], [50], [50, 51], [9])] == [False, False, True, True]
    assert guesser.after([1, 50]) == 51
    assert guesser.after([1, 50, 7]) is None
    assert guesser.lacks_draft([1, 50, 7])


def test_a_draft_goes_on_after_the_guess_of_another_source() -> None:
    guesser = Guesser([1], TEXT)
    assert guesser.after([1]) == 100
    guesser.add_draft([1], [100], 7)
    assert guesser.after([1, 100]) == 101, "the prediction was right more often"
    assert guesser.after([1, 100, 7, 8, 9, 10, 11, 12, 13, 14, 15]) is not None


def test_the_source_that_was_right_more_often_is_asked() -> None:
    prompt = [5, 6, 9, 5, 6, 9, 5, 6]
    guesser = Guesser(prompt)
    guesser.add_draft(prompt, [], 30)
    assert guesser.after(prompt) == 9
    assert not guesser.lacks_draft(prompt)
    guesser.add_draft([*prompt, 30], [], 31)  # the repetition was wrong, and this one right
    tokens = [*prompt, 30, 31]
    guesser.after(tokens)
    assert guesser.lacks_draft(tokens)


def test_a_draft_model_that_is_often_wrong_is_asked_now_and_then() -> None:
    guesser, tokens, asked = Guesser([1]), [1], list[int]()
    for token in range(1000, 1300):
        if guesser.lacks_draft(tokens):
            asked.append(token)
            guesser.add_draft(tokens, [], 7)
        tokens.append(token)
    assert 10 < len(asked) < 60
    assert asked[-1] > 1250


def test_a_draft_model_that_is_often_right_is_asked_each_time() -> None:
    guesser, tokens = Guesser([1]), [1]
    for token in range(1000, 1300):
        assert guesser.lacks_draft(tokens)
        guesser.add_draft(tokens, [], 7 if token % 5 == 0 else token)
        tokens.append(token)


def test_a_draft_model_that_is_always_late_is_asked_now_and_then() -> None:
    guesser, tokens, asked = Guesser([1]), [1], 0
    for token in range(1000, 1300):
        if guesser.lacks_draft(tokens):
            asked += 1
            guesser.drafted_too_late()
        tokens.append(token)
    assert 10 < asked < 60


def test_an_earlier_answer_to_the_same_prompt_is_expected() -> None:
    """From its first token on, and again after tokens that are not the same."""
    prompt, answer = [7, 8, 9, 10], list(range(100, 140))
    earlier = Earlier(len(prompt) - 1, [*prompt[-1:], *answer])
    assert foretold(Guesser(prompt, earlier=earlier), prompt, answer) == list(range(40))
    changed = [*answer[:20], 50, 51, *answer[22:]]
    assert foretold(Guesser(prompt, earlier=earlier), prompt, changed) == [*range(20), *range(22, 40)]


def test_an_earlier_answer_is_expected_after_another_question() -> None:
    """Both began alike; the answer follows the end of the question, which tells where it begins."""
    answer = list(range(100, 120))
    beginning, old, new = [7, 8, 9], [20, 21, 22, 30, 31], [20, 50, 51, 52, 30, 31]
    earlier = Earlier(len(beginning), [*old, *answer])
    prompt = [*beginning, *new]
    assert foretold(Guesser(prompt, earlier=earlier), prompt, answer) == list(range(20))
