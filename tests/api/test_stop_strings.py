"""Stop strings: however a text is divided, it ends before the leftmost stop string, and nothing else is lost."""

from hypothesis import given
from hypothesis import strategies as st

from api.chat.stop_strings import StopMatcher

# Few letters, so that matches, overlaps and near misses are frequent.
words = st.text(alphabet="ab😀", min_size=1, max_size=5)
texts = st.lists(st.text(alphabet="ab😀", max_size=6), max_size=12)


def cut(text: str, stops: list[str]) -> str:
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


@given(texts, st.lists(words, max_size=4))
def test_the_text_ends_before_the_leftmost_stop(pieces, stops):
    matcher = StopMatcher(stops)
    given_out = []
    for piece in pieces:
        given_out.append(matcher.push(piece))
        if matcher.matched is not None:
            break
    given_out.append(matcher.finish())
    whole = "".join(pieces)
    assert "".join(given_out) == cut(whole, stops)
    if any(stop in whole for stop in stops):
        assert matcher.matched in stops
        assert whole.startswith(matcher.matched, matcher.given)
    else:
        assert matcher.matched is None
    assert matcher.given == len("".join(given_out))


@given(texts, st.lists(words, max_size=4))
def test_nothing_is_held_back_that_cannot_begin_a_stop(pieces, stops):
    matcher = StopMatcher(stops)
    so_far, shown = "", ""
    for piece in pieces:
        so_far += piece
        shown += matcher.push(piece)
        if matcher.matched:
            return
        held = so_far[len(shown) :]
        assert so_far == shown + held
        assert (
            not held
            or any(stop.startswith(held) or held.startswith(stop) or held in stop for stop in stops)
            or any(stop in held for stop in stops)
        )


def test_a_stop_across_pieces_at_the_start_and_at_the_end():
    matcher = StopMatcher(["END"])
    assert [matcher.push(piece) for piece in ("E", "N", "D", "more")] == ["", "", "", ""]
    assert matcher.matched
    matcher = StopMatcher(["END"])
    assert [matcher.push(piece) for piece in ("one E", "N", "ough EN")] == ["one ", "", "ENough "]
    assert matcher.finish() == "EN"
    assert not matcher.matched


def test_a_longer_stop_that_began_earlier_wins():
    matcher = StopMatcher(["abcd", "c"])
    assert matcher.push("xab") == "x"
    assert matcher.push("c") == ""
    assert matcher.push("d") == ""
    assert matcher.matched
    matcher = StopMatcher(["abcd", "c"])
    assert matcher.push("xabc") + matcher.push("e") == "xab"
    assert matcher.matched
    matcher = StopMatcher(["abcd", "c"])
    assert matcher.push("xabc") + matcher.finish() == "xab"
    assert matcher.matched


def test_a_stop_that_overlaps_itself():
    matcher = StopMatcher(["aab"])
    assert matcher.push("aaaa") == "aa"
    assert matcher.push("b") == ""
    assert matcher.matched


def test_after_an_end_a_text_is_matched_by_itself():
    matcher = StopMatcher(["END"])
    assert matcher.push("one EN") + matcher.finish() == "one EN"
    assert matcher.push("D") == "D"
    assert matcher.push(" two END") == " two "
    assert (matcher.matched, matcher.given) == ("END", len("one END two "))


def test_without_stops_text_passes_at_once():
    for stops in ([], [""]):
        matcher = StopMatcher(stops)
        assert matcher.push("text") == "text"
        assert matcher.finish() == ""
