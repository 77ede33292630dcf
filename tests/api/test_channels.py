"""An answer is split at its markers, however it is divided into tokens."""

from hypothesis import example, given
from hypothesis import strategies as st

from api.chat.channels import Channels, Glyph

CONTROL = 7
TURNS = {
    "normal": [("<think>", "reasoning"), ("<tool", "tool"), ("<tool_call>", "tool"), ((CONTROL, "x"), "header")],
    "reasoning": [("</think>", "normal")],
    "tool": [("</tool_call>", "normal")],
    "header": [("|", "normal")],
}


def glyphs(tokens):
    return [Glyph(symbol, position) for position, token in enumerate(tokens) for symbol in token]


def split(tokens, channel="normal"):
    """Return each section as (channel, symbols, marker's target), with its pieces joined."""
    channels = Channels(TURNS, channel)
    pieces = [piece for token in tokens for piece in channels.push(token)] + channels.finish()
    joined = []
    for piece in pieces:
        symbols = [glyph.symbol for glyph in piece.glyphs]
        if joined and piece.to is None and joined[-1][2] is None and joined[-1][0] == piece.channel:
            joined[-1][1].extend(symbols)
        else:
            joined.append((piece.channel, symbols, piece.to))
    return [(name, "".join(map(str, symbols)), to) for name, symbols, to in joined]


def by_token(tokens):
    every = glyphs(tokens)
    return [[glyph for glyph in every if glyph.position == position] for position in range(len(tokens))]


def test_markers_lead_from_channel_to_channel():
    assert split(by_token(["Hi <thi", "nk>why</", "think>", " so"])) == [
        ("normal", "Hi ", None),
        ("normal", "<think>", "reasoning"),
        ("reasoning", "why", None),
        ("reasoning", "</think>", "normal"),
        ("normal", " so", None),
    ]


def test_what_looks_like_a_marker_but_is_none_is_text():
    assert split(by_token(["a <thin", "g> </think> <<", "b"])) == [("normal", "a <thing> </think> <<b", None)]
    assert split(by_token(["<thin"])) == [("normal", "<thin", None)]


def test_a_control_token_is_not_its_own_text():
    assert split([glyphs([[CONTROL, "x"]]), glyphs(["y|z"])]) == [
        ("normal", "7x", "header"),
        ("header", "y", None),
        ("header", "|", "normal"),
        ("normal", "z", None),
    ]
    assert split(by_token(["7x"])) == [("normal", "7x", None)]


def test_text_is_given_at_once_but_for_what_may_begin_a_marker():
    channels = Channels(TURNS, "normal")
    first, second, third = by_token(["abc", "de <", "f"])
    assert [piece.glyphs for piece in channels.push(first)] == [first]
    assert channels.push(second) == [], "the whole token waits, so that no token is given in two parts"
    assert [piece.glyphs for piece in channels.push(third)] == [[*second, *third]]


texts = st.lists(
    st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "<", "a", " ", "th"]), max_size=12
)


@given(texts, st.lists(st.integers(1, 6), max_size=30))
@example(["<", "<think>", "a"], [1])
def test_the_result_does_not_depend_on_the_tokens(parts, sizes):
    text = "".join(parts)
    tokens, start = [], 0
    for size in sizes:
        tokens.append(text[start : start + size])
        start += size
    assert split(by_token([*tokens, text[start:]])) == split(by_token(list(text)))


@given(texts)
def test_nothing_is_lost(parts):
    assert "".join(symbols for _, symbols, _ in split(by_token(list("".join(parts))))) == "".join(parts)
