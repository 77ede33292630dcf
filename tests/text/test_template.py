"""Control strings in messages are told apart from the template's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core.errors import BadRequest
from node.text.template import PRIVATE_USE, ControlString, Marks, Segment

CONTROLS = [ControlString("<|a|>"), ControlString("<|a|>b"), ControlString("<e>", lstrip=True, rstrip=True)]
texts = st.lists(st.sampled_from(["<|a|>", "<|a|>b", "<e>", "x", " ", "<|", "|>", "\U00100000", "日"]), max_size=6).map(
    "".join
)


def render(first: str, second: str) -> str:
    return f"<|a|>{first}<e>{second}<|a|>b"


@given(texts, texts)
def test_what_was_typed_is_never_taken_for_control(first, second):
    marks = Marks(CONTROLS, [first, second])
    segments = list(marks.segments(render(marks.wrap(first), marks.wrap(second))))
    assert "".join(segment.text for segment in segments) == render(first, second)
    own = [segment.text for segment in segments if not segment.typed]
    assert sum(text.count("<|a|>") + text.count("<e>") for text in own) == 3
    for segment in segments:
        if segment.typed:
            assert segment.text in {first, first.rstrip(), second, second.lstrip()}
            assert any(control.text in segment.text for control in CONTROLS)


def test_a_chat_without_control_strings_is_one_segment():
    marks = Marks(CONTROLS, "x")
    assert list(marks.segments(render("x", "y"))) == [Segment(render("x", "y"), typed=False)]
    assert list(marks.segments("")) == []


def test_each_plain_segment_after_the_first_begins_with_a_control_string():
    marks = Marks(CONTROLS, None)
    segments = list(marks.segments(render(marks.wrap("1<e>2"), "y")))
    assert segments == [
        Segment("<|a|>", typed=False),
        Segment("1<e>2", typed=True),
        Segment("<e>y<|a|>b", typed=False),
    ]


def test_values_are_wrapped_at_any_depth_and_keys_too():
    marks = Marks([ControlString("<e>")], None)
    wrapped = marks.wrap({"k<e>": [{"a": "<e>"}, 5, None, True], "plain": "text"})
    (key,) = (key for key in wrapped if key != "plain")
    assert key != "k<e>"
    assert wrapped["plain"] == "text"
    assert wrapped[key][0]["a"] == key[1:]
    assert wrapped[key][1:] == [5, None, True]


def test_a_template_may_split_a_text_at_a_wrapped_string():
    marks = Marks(CONTROLS, None)
    thought, answer = marks.wrap("why<e>because").split("<e>")
    assert list(marks.segments(f"<|a|>{answer}<e>")) == [
        Segment("<|a|>", typed=False),
        Segment("because", typed=True),
        Segment("<e>", typed=False),
    ]
    assert list(marks.segments(f"<|a|>{thought}<e>"))[-1] == Segment("<e>", typed=False)


def test_a_request_that_leaves_no_character_for_marks():
    used = [chr(code) for code in PRIVATE_USE]
    marks = Marks(CONTROLS, used[:-2])
    assert marks.wrap("<e>") == f"{used[-2]}<e>{used[-1]}"
    with pytest.raises(BadRequest):
        Marks(CONTROLS, used[:-1])


def test_a_mark_cut_apart_by_a_template_does_not_join_into_control():
    marks = Marks(CONTROLS, None)
    half = marks.wrap("<e>tail")[:2]
    segments = list(marks.segments(f"<|a|>{half}"))
    assert segments == [Segment("<|a|>", typed=False), Segment("<", typed=True)]


def test_a_control_string_that_means_more_is_spelled_out_unless_a_user_typed_it():
    controls = [ControlString("<i>", meaning="\n\n<i><p></i>\n\n"), ControlString("<p>"), ControlString("</i>")]
    marks = Marks(controls, "<i>")
    rendered = f"user\n<i>{marks.wrap('what is <i>?')}<i>"
    assert list(marks.segments(rendered)) == [
        Segment("user\n\n\n<i><p></i>", typed=False),
        Segment("\n\nwhat is <i>?\n\n", typed=True),
        Segment("<i><p></i>\n\n", typed=False),
    ]
