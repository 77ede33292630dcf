"""Guesses at the next tokens: what a prediction and a memory foretell, and how they follow the answer."""

from collections.abc import Sequence

import pytest

from node.core.guesses import CATCH_UP, LONGEST, PATIENCE, PIECE, Guesser, PassageMemory, Prediction

TEXT = [*range(100, 140)]


def guesser_of(
    prompt: Sequence[int], prediction: Sequence[int] = (), memory: PassageMemory | None = None, owner: str = "she"
) -> Guesser:
    return Guesser(prompt, prediction, memory=memory or PassageMemory(1 << 14), owner=owner)


def foretold(guesser: Guesser, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """Follow an answer; return the places of the tokens that were guessed rightly."""
    return [place for place, token in enumerate(answer) if guesser.after([*prompt, *answer[:place]]) == token]


def missed(answer: Sequence[int], prediction: Sequence[int] = TEXT) -> list[int]:
    right = foretold(guesser_of([1], prediction), [1], answer)
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
    assert foretold(guesser_of([1], TEXT[:5]), [1], TEXT) == [0, 1, 2, 3, 4]


def test_a_prediction_counts_what_it_foretold() -> None:
    prediction = Prediction(TEXT[:5])
    for token in [100, 101, 7, 103, 104, 105]:
        prediction.take(token)
    assert prediction.accepted == 4


def test_an_answer_that_was_taken_up_is_followed_in_parts() -> None:
    """So that a long one does not block the event loop."""
    text = [*range(1000, 1000 + 3 * CATCH_UP)]
    guesser = guesser_of([1], text)
    tokens = [1, *text[: 2 * CATCH_UP + 5]]
    assert [guesser.after(tokens) for _ in range(3)] == [None, None, text[2 * CATCH_UP + 5]]


def test_a_passage_goes_on_as_before() -> None:
    prompt = [5, 6, 7, 8, 9, 3, 6, 7]
    guesser = guesser_of(prompt)
    assert guesser.after(prompt) == 8
    assert guesser.after(prompt, [8]) == 9
    assert guesser.after(prompt, [9]) == 3, "another guess may come from elsewhere"
    assert guesser.after(prompt, [99]) is None


def after(prompt: Sequence[int]) -> int | None:
    return guesser_of(prompt).after(prompt)


def test_the_longest_passage_counts_and_of_those_the_last() -> None:
    assert after([1, 2, 3, 4, 50, 3, 4, 60, 1, 2, 3, 4]) == 50
    assert after([2, 3, 50, 2, 3, 60, 9, 2, 3]) == 60


def test_a_single_token_is_a_passage() -> None:
    assert after([5, 6, 7, 5]) == 6


def test_a_passage_may_overlap_its_repetition() -> None:
    assert foretold(guesser_of([1, 2, 1, 2]), [1, 2, 1, 2], [1, 2, 1, 2, 1]) == [0, 1, 2, 3, 4]


def test_a_prediction_comes_before_a_repetition() -> None:
    assert guesser_of([100, 101, 9], TEXT).after([100, 101, 9, 100, 101]) == 102


def test_a_prediction_that_is_wrong_is_asked_no_more_until_it_is_right_again() -> None:
    """It is followed meanwhile."""
    guesser, tokens, asked = guesser_of([1], TEXT), [1], 0
    for place in range(60):
        asked += guesser.after(tokens) is not None
        tokens.append(1000 + place)
    assert 0 < asked <= 25
    assert foretold(guesser, tokens, [100, 101, 102, 103, 104] * 6)[-4:] == [26, 27, 28, 29]


def test_passages_that_are_wrong_are_asked_no_more_until_they_are_right_again() -> None:
    guesser, tokens, asked = guesser_of([1]), [1], list[bool]()
    for place in range(80):
        asked.append(guesser.after(tokens) is not None)
        tokens.append(1000 + place if place % 2 else 50)
    assert sum(asked[:40]) > sum(asked[-40:]) < 8
    assert foretold(guesser, tokens, [100, 101, 102, 103, 104] * 6)[-4:] == [26, 27, 28, 29]


def test_ids_beyond_all_vocabularies_do_no_harm() -> None:
    huge = (1 << 31) - 1
    assert guesser_of([huge, 5, huge, 5], [huge]).after([huge, 5, huge, 5, huge]) in (None, 5)


# --- a draft model ------------------------------------------------------------------------------------------------------


def test_what_the_draft_model_has_drawn_is_guessed_until_it_turns_out_wrong() -> None:
    guesser, tokens = guesser_of([1]), [1]
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
    guesser = guesser_of([1], TEXT)
    assert guesser.after([1]) == 100
    guesser.add_draft([1], [100], 7)
    assert guesser.after([1, 100]) == 101, "the prediction was right more often"
    assert guesser.after([1, 100, 7, 8, 9, 10, 11, 12, 13, 14, 15]) is not None


def test_the_source_that_was_right_more_often_is_asked() -> None:
    prompt = [5, 6, 9, 5, 6, 9, 5, 6]
    guesser = guesser_of(prompt)
    guesser.add_draft(prompt, [], 30)
    assert guesser.after(prompt) == 9
    assert not guesser.lacks_draft(prompt)
    guesser.add_draft([*prompt, 30], [], 31)  # the repetition was wrong, and this one right
    tokens = [*prompt, 30, 31]
    guesser.after(tokens)
    assert guesser.lacks_draft(tokens)


def test_a_draft_model_that_is_often_right_is_waited_for() -> None:
    """Some tokens: it may be busy, or its context too short."""
    guesser, tokens = guesser_of([1]), [1]
    for token in (5, 5, 6, 5):
        guesser.add_draft(tokens, [], token)
        tokens.append(token)
    waited = 0
    assert guesser.after(tokens, [5]) == 6, "an MTP layer may never draw as far ahead"
    while guesser.after(tokens) is None:
        assert guesser.lacks_draft(tokens)
        tokens.append(5)
        waited += 1
    assert 0 < waited <= PATIENCE


def test_a_draft_model_that_is_often_wrong_is_asked_now_and_then() -> None:
    guesser, tokens, asked = guesser_of([1]), [1], list[int]()
    for token in range(1000, 1300):
        if guesser.lacks_draft(tokens):
            asked.append(token)
            guesser.add_draft(tokens, [], 7)
        tokens.append(token)
    assert 10 < len(asked) < 60
    assert asked[-1] > 1250


def test_a_draft_model_that_is_often_right_is_asked_each_time() -> None:
    guesser, tokens = guesser_of([1]), [1]
    for token in range(1000, 1300):
        assert guesser.lacks_draft(tokens)
        guesser.add_draft(tokens, [], 7 if token % 5 == 0 else token)
        tokens.append(token)


def test_a_draft_model_that_is_always_late_is_asked_now_and_then() -> None:
    guesser, tokens, asked = guesser_of([1]), [1], 0
    for token in range(1000, 1300):
        if guesser.lacks_draft(tokens):
            asked += 1
            guesser.drafted_too_late()
        tokens.append(token)
    assert 10 < asked < 60


# --- what was said before -----------------------------------------------------------------------------------------------


def answered(memory: PassageMemory, prompt: Sequence[int], answer: Sequence[int], owner: str = "she") -> None:
    """Somebody has had this answer."""
    foretold(guesser_of(prompt, memory=memory, owner=owner), prompt, [*answer, 0])


PROMPT = [7, 8, 9, 10]


def test_an_earlier_answer_to_the_same_prompt_is_expected() -> None:
    """From its first token on, and again after tokens that are not the same."""
    memory = PassageMemory()
    answered(memory, PROMPT, TEXT)
    assert foretold(guesser_of(PROMPT, memory=memory), PROMPT, TEXT) == list(range(40))
    changed = [*TEXT[:20], 50, 51, *TEXT[22:]]
    assert foretold(guesser_of(PROMPT, memory=memory), PROMPT, changed) == [*range(20), *range(23, 40)]


def test_what_others_were_told_is_not_guessed() -> None:
    memory = PassageMemory()
    answered(memory, PROMPT, TEXT, owner="somebody else")
    assert foretold(guesser_of(PROMPT, memory=memory), PROMPT, TEXT) == []
    foretold(guesser_of(PROMPT, memory=memory), PROMPT, [*TEXT, 0])
    answered(memory, PROMPT, TEXT[::-1], owner="somebody else")
    assert foretold(guesser_of(PROMPT, memory=memory), PROMPT, TEXT) == list(range(40))


def test_what_was_said_last_counts() -> None:
    memory = PassageMemory()
    for answer in (TEXT, TEXT[::-1]):
        answered(memory, PROMPT, answer)
    assert foretold(guesser_of(PROMPT, memory=memory), PROMPT, TEXT[::-1]) == list(range(40))


def test_a_longer_passage_tells_more() -> None:
    """Two answers have 20 tokens in common; those before them tell which of them goes on."""
    memory, same = PassageMemory(), [*range(200, 220)]
    one, other = [*TEXT[:20], *same, 1, 2, 3], [*TEXT[20:], *same, 4, 5, 6]
    for answer in (one, other):
        answered(memory, PROMPT, answer)
    assert foretold(guesser_of(PROMPT, memory=memory), PROMPT, [*TEXT[:20], *same])[-20:] == list(range(20, 40))
    again = guesser_of([*PROMPT, *one[:-3]], memory=memory)
    assert foretold(again, [*PROMPT, *one[:-3]], one[-3:]) == [0, 1, 2]


def test_old_texts_make_room_for_new_ones() -> None:
    memory = PassageMemory(256)
    answered(memory, PROMPT, TEXT)
    answered(memory, [1], range(1000, 2000))
    assert len(foretold(guesser_of(PROMPT, memory=memory), PROMPT, TEXT)) < 20


def test_a_long_prompt_is_learnt_in_pieces_and_what_is_known_at_once() -> None:
    memory, prompt = PassageMemory(), [*range(3 * PIECE), 99_999, 0, 1]
    first = guesser_of(prompt, memory=memory)
    assert [first.after(prompt) for _ in range(4)] == [None, None, None, 2]
    assert guesser_of(prompt, memory=memory).after(prompt) == 2


def test_a_change_in_a_known_prompt_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, prompt = PassageMemory(), [*range(10 * LONGEST)]
    guesser_of(prompt, memory=memory).after(prompt)
    puts = list[Sequence[int]]()
    put = memory.put
    monkeypatch.setattr(memory, "put", lambda owner, passage, token: puts.append(passage) or put(owner, passage, token))
    for place in range(0, len(prompt), 7):
        changed = [*prompt[:place], 7000 + place, *prompt[place + 1 :]]
        guesser_of(changed, memory=memory).after(changed)
        assert guesser_of(changed, memory=memory).after([*changed, 7000 + place]) == [*changed, None][place + 1]
    assert len(puts) < len(prompt) // 7 * 4 * LONGEST * 6
