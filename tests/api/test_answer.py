"""For any tokens and stop strings: the joined stream equals the plain answer, the tokens' text up
to the leftmost stop.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.chat.answer import Answer
from node.core.generation import TokenEvent
from node.text.tokenizer import Tokenizer

DEMO = Path(__file__).parents[2] / "node" / "builtin" / "pippin-demo"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(DEMO)


def events(tokens):
    last = len(tokens) - 1
    return [
        TokenEvent(position, token, -0.5, finish="length" if position == last else None)
        for position, token in enumerate(tokens)
    ]


def run(answer, tokens):
    deltas = []
    for event in events(tokens):
        deltas.append(answer.take(event))
        if deltas[-1].finish:
            break
    return deltas


tokens_of_any_kind = st.lists(st.integers(0, 2047), min_size=1, max_size=40)


@given(st.data(), tokens_of_any_kind, st.booleans())
def test_the_text_is_cut_at_the_leftmost_stop(tokenizer, data, tokens, logprobs):
    detokenizer = tokenizer.detokenizer()
    whole = "".join(detokenizer.add(token) for token in tokens)
    piece = st.builds(lambda start, size: whole[start : start + size], st.integers(0, len(whole)), st.integers(1, 6))
    stops = data.draw(st.lists(st.one_of(piece, st.text(max_size=3)), max_size=4))
    deltas = run(Answer(tokenizer, stops, logprobs=logprobs), tokens)

    text = "".join(delta.text for delta in deltas)
    cut = min((whole.find(stop) for stop in stops if stop and stop in whole), default=len(whole))
    assert text == whole[:cut]
    assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish == ("stop" if cut < len(whole) else "length")

    shown = [token for delta in deltas for token in delta.tokens]
    assert "".join(token.text for token in shown) == (text if logprobs else "")
    assert all(text[token.start :].startswith(token.text) for token in shown)
    assert not any(token.event.token in tokenizer.control for token in shown)


@given(st.text(alphabet="ab 😀日\n", min_size=1, max_size=20), st.data())
def test_a_shorter_limit_gives_a_prefix(tokenizer, text, data):
    tokens = tokenizer.encode(text)
    limit = data.draw(st.integers(1, len(tokens)))
    longer = "".join(delta.text for delta in run(Answer(tokenizer), tokens))
    shorter = "".join(delta.text for delta in run(Answer(tokenizer), tokens[:limit]))
    assert longer == text
    assert longer.startswith(shorter)


def test_what_goes_before_the_answer_moves_the_offsets(tokenizer):
    answer = Answer(tokenizer, logprobs=True, offset=5)
    assert run(answer, tokenizer.encode("Hello"))[0].tokens[0].start == 5


def test_counts(tokenizer):
    answer = Answer(tokenizer)
    answer.take(TokenEvent(0, 300, cached_tokens=12))
    answer.take(TokenEvent(1, 2, finish="stop"))
    assert (answer.completion_tokens, answer.cached_tokens) == (2, 12)
