"""Thoughts and tool calls, read from answers as they arrive: the pure parts, without HTTP."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.chat.answer import Answer
from api.chat.call_reader import CallReader
from api.chat.channels import Glyph
from api.chat.family_reader import FamilyReader
from api.chat.reader import Parts
from api.openai.reply import Collected
from node.core.generation import TokenEvent
from node.text.grammar import call_head
from node.text.tagged import Tags, read_arguments
from node.text.tokenizer import Tokenizer
from tests.api.families import FAMILIES, HARMONY, Family, make

DEMO = Path(__file__).parents[2] / "node" / "builtin" / "pippin-demo"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory):
    return {name: make(family, tmp_path_factory.mktemp("family")) for name, family in FAMILIES.items()}


def read(
    tokenizer, text, *, end="stop", tools=(WEATHER,), many=True, channel="normal", stops=(), logprobs=False, bound=False
):
    """Read an answer of this text; return its total and the increments for each token."""
    names = [tool["function"]["name"] for tool in tools]
    bound = bound and tokenizer.dialect.begins_calls
    reader = FamilyReader(tokenizer, channel=channel, tools=tools, names=names, many=many, bound=bound)
    answer = Answer(tokenizer, stops, reader=reader, logprobs=logprobs)
    tokens = tokenizer.encode(text) if isinstance(text, str) else text
    tokens = tokens[tokens[:1] == [tokenizer.bos] :] + (sorted(tokenizer.eos) if end == "stop" else [])
    whole, deltas = Collected(), []
    for position, token in enumerate(tokens):
        finish = end if position == len(tokens) - 1 else None
        deltas.append(answer.take(TokenEvent(position, token, -1.0, finish=finish)))
        whole.add(deltas[-1])
        if deltas[-1].finish:
            break
    return whole, deltas


def called(whole):
    return [(call.name, json.loads(call.arguments)) for call in whole.calls.values()]


EACH = pytest.mark.parametrize("name", FAMILIES)


@EACH
def test_a_call_in_the_familys_own_way(tokenizers, name):
    whole, _ = read(tokenizers[name], FAMILIES[name].call)
    assert called(whole) == [("weather", {"city": "Rome"})]
    assert whole.text == ""
    assert whole.finish == "tool_calls"
    (call,) = whole.calls.values()
    assert call.id.startswith("call_")


@EACH
def test_text_before_and_between_calls_is_text(tokenizers, name):
    call = FAMILIES[name].call
    whole, _ = read(tokenizers[name], f"Let me see. {call}\n{call}")
    assert whole.text == "Let me see. "
    assert called(whole) == [("weather", {"city": "Rome"})] * 2
    assert len({call.id for call in whole.calls.values()}) == 2


@EACH
def test_one_call_and_no_more(tokenizers, name):
    call = FAMILIES[name].call
    whole, _ = read(tokenizers[name], f"{call}\n{call}\nand text", many=False)
    assert called(whole) == [("weather", {"city": "Rome"})]
    assert whole.text == ""


@EACH
def test_what_is_no_call_stays_text(tokenizers, name):
    """Calls of an unknown function, whole or cut, and calls in no family's format."""
    family = FAMILIES[name]
    tokenizer = tokenizers[name]
    spelled = family.call.replace("weather", "unheard")
    for control in family.special:
        spelled = spelled.replace(control, "")
    whole, _ = read(tokenizer, f"So: {family.call.replace('weather', 'unheard')}")
    assert not whole.calls
    assert whole.text == f"So: {spelled}"
    assert whole.finish == "stop"
    cut, _ = read(tokenizer, tokenizer.encode("So: " + family.call.replace("weather", "unheard"))[:-6], end="length")
    assert "So: " in cut.text
    assert "unheard" in cut.text
    assert (cut.calls, cut.finish) == ({}, "length")


HEADED = Family("[TOOL_CALLS]", '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}', ("[TOOL_CALLS]", "[ARGS]"))
HARMONY_CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>'
CUT = {**FAMILIES, "mistral with headers": HEADED, "gpt-oss": replace(HARMONY, call=HARMONY_CALL)}


@pytest.mark.parametrize("name", CUT)
def test_a_call_that_is_cut_anywhere_is_given_as_far_as_it_came(tmp_path, name):
    """From the family's mark on: nothing until the name is certain, the name, the arguments if they are JSON, at last the call."""
    tokenizer = make(CUT[name], tmp_path)
    tokens = tokenizer.encode(CUT[name].call)
    given, marks = [], 0
    for size in range(1 + (tokens[0] == tokenizer.bos), len(tokens) + 1):
        whole, _ = read(tokenizer, tokens[:size], end="length", channel=tokenizer.dialect.channel_after([]))
        assert whole.finish == "length"
        if whole.text:  # a mark of ordinary characters that is not whole yet
            assert CUT[name].call.startswith(whole.text)
            assert not given
            marks += 1
        else:
            given.append([(call.name, call.arguments, call.ended) for call in whole.calls.values()])
    assert marks < 5
    assert given[0] == []
    assert [("weather", "", False)] in given
    for calls in given:
        for called_name, arguments, ended in calls:
            assert called_name == "weather"
            assert '{"city": "Rome"}'.startswith(arguments)
            assert ended == (arguments == '{"city": "Rome"}')
    assert given[-1] == [("weather", '{"city": "Rome"}', True)]
    if tokenizer.dialect.form and not tokenizer.dialect.form.value:
        assert [("weather", '{"city": "Rome', False)] in given


def test_of_several_calls_the_last_is_cut(tokenizers):
    whole, _ = read(tokenizers["qwen"], f"{FAMILIES['qwen'].call}\n{FAMILIES['qwen'].call[:-20]}", end="length")
    assert [(call.arguments, call.ended) for call in whole.calls.values()] == [
        ('{"city": "Rome"}', True),
        ('{"city": "', False),
    ]
    both = FAMILIES["mistral"].call[:-1] + ', {"name": "weather", "arguments": {"ci'
    whole, _ = read(tokenizers["mistral"], both, end="length")
    assert [(call.arguments, call.ended) for call in whole.calls.values()] == [
        ('{"city": "Rome"}', True),
        ('{"ci', False),
    ]
    assert whole.text == ""


SECTIONS = [
    ("kimi k2", "<|tool_call_end|>"),
    ("kimi k3", "<|close|>call<|sep|>"),
    ("minimax", "</invoke>"),
    ("muse spark", "</atem:invoke>"),
]


@pytest.mark.parametrize(("name", "tail"), SECTIONS)
def test_of_several_calls_between_two_marks_the_last_is_cut_anywhere(tokenizers, name, tail):
    tokenizer, call = tokenizers[name], FAMILIES[name].call
    (mark,) = (marker for marker, to in tokenizer.dialect.transitions["normal"] if to == "tool")
    first = call.partition(tail)[0] + tail
    tokens = tokenizer.encode(first + call.removeprefix(mark))
    given = []
    for size in range(len(tokenizer.encode(first)), len(tokens) + 1):
        whole, _ = read(tokenizer, tokens[:size], end="length")
        before, *calls = [(call.name, call.arguments, call.ended) for call in whole.calls.values()]
        assert before == ("weather", '{"city": "Rome"}', True)
        assert (whole.text, whole.finish) == ("", "length")
        given.append(calls)
    assert given[0] == []
    assert [("weather", "", False)] in given
    assert ([("weather", '{"city": "Rome', False)] in given) == bool(
        tokenizer.dialect.form and not tokenizer.dialect.form.value
    )
    assert given[-1] == [("weather", '{"city": "Rome"}', True)]


@pytest.mark.parametrize(("name", "tail"), SECTIONS[1:])
def test_a_limit_cuts_the_call_after_one_that_only_the_parser_reads(tokenizers, name, tail):
    """A number in words is no JSON, so its call is not of the form that a grammar binds."""
    call = FAMILIES[name].call.replace("city", "days").replace("Rome", "three")
    (mark,) = (marker for marker, to in tokenizers[name].dialect.transitions["normal"] if to == "tool")
    first, second = call.partition(tail)[0] + tail, FAMILIES[name].call.removeprefix(mark)
    whole, _ = read(tokenizers[name], first + second[: second.index("Rome")], end="length")
    calls = [(call.name, call.arguments, call.ended) for call in whole.calls.values()]
    assert calls == [("weather", '{"days": "three"}', True), ("weather", "", False)]
    assert (whole.text, whole.finish) == ("", "length")


def test_quotes_that_nothing_closes_are_read_once(monkeypatch):
    """A hostile model writes many."""
    looked = []

    class Unquote:
        def search(self, text, at):
            looked.append(at)

    tags = Tags(re.compile(r'<param name="(\w+)">'), "</param>", "<![CDATA[", "]]>")
    monkeypatch.setattr(Tags, "quoted", property(lambda _: (re.compile(r"<!\[CDATA\["), Unquote())))
    text = '<param name="a"><![CDATA[b</param>' * 99
    assert read_arguments(text, 0, tags, None, loose=True) == ({"a": "<![CDATA[b"}, len(text))
    assert len(looked) == 1


def test_a_cut_name_that_more_than_one_function_has_is_none(tokenizers):
    tools = [WEATHER, {"type": "function", "function": {"name": "weather_now"}}]
    for rest, expected in (("", []), ("_n", []), ('"', ["weather"]), ('_now",', ["weather_now"]), ("_then", None)):
        whole, _ = read(tokenizers["qwen"], f'<tool_call>{{"name": "weather{rest}', end="length", tools=tools)
        assert [call.name for call in whole.calls.values()] == (expected or [])
        assert bool(whole.text) == (expected is None)


@pytest.mark.parametrize("name", ["qwen", "lfm", "gemma 4"])
def test_numbers_that_json_has_not(tokenizers, name):
    """A schema's number may have any exponent; NaN is no JSON, so a call with it is none."""
    tokenizer, call = tokenizers[name], FAMILIES[name].call
    rome = next(each for each in ('<|"|>Rome<|"|>', '"Rome"') if each in call)
    largest = sys.float_info.max
    for number, expected in (("1e999", largest), ("[-1e999]", [-largest]), ("1e30", 1e30)):
        assert called(read(tokenizer, call.replace(rome, number))[0]) == [("weather", {"city": expected})]
    whole, _ = read(tokenizer, call.replace(rome, "NaN"))
    assert not whole.calls
    assert "NaN" in whole.text


def test_white_space_about_what_is_no_call_stays(tokenizers):
    for text in (
        "\n <tool_call>no</tool_call>\n\n x",
        "a\n\n<tool_call>\nno",
        " <tool_call>1</tool_call> <tool_call>2</tool_call> ",
    ):
        assert read(tokenizers["qwen"], text)[0].text == text


@EACH
def test_without_tools_a_call_is_what_it_says(tokenizers, name):
    family = FAMILIES[name]
    expected = family.call
    for control in family.special:
        expected = expected.replace(control, "")
    whole, _ = read(tokenizers[name], family.call, tools=())
    assert whole.text == expected
    assert not whole.calls


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.think[0]])
def test_thoughts(tokenizers, name):
    family = FAMILIES[name]
    begin, end = family.think
    whole, _ = read(tokenizers[name], f"{begin}Rome is in Italy.{end}It is sunny.")
    assert (whole.reasoning, whole.text) == ("Rome is in Italy.", "It is sunny.")
    whole, _ = read(tokenizers[name], f"{begin}hm{end}{family.call}")
    assert (whole.reasoning, whole.text, called(whole)) == ("hm", "", [("weather", {"city": "Rome"})])
    # The template has begun the thoughts; or they never end.
    whole, _ = read(tokenizers[name], f"hm{end}yes", channel="reasoning")
    assert (whole.reasoning, whole.text) == ("hm", "yes")
    whole, _ = read(tokenizers[name], f"{begin}hm and hm", end="length")
    assert (whole.reasoning, whole.text, whole.finish) == ("hm and hm", "", "length")


def thought_tokens(tokenizer, *parts, channel="normal", end="stop"):
    """Return how many tokens of an answer count as thoughts, and the number of tokens of each part."""
    pieces = [tokenizer.encode_fragment(part) if part.isalnum() else tokenizer.encode(part) for part in parts]
    tokens = [token for piece in pieces for token in piece] + (sorted(tokenizer.eos) if end == "stop" else [])
    reader = FamilyReader(tokenizer, channel=channel, tools=(WEATHER,), names=["weather"])
    answer = Answer(tokenizer, reader=reader)
    for position, token in enumerate(tokens):
        answer.take(TokenEvent(position, token, finish=end if position == len(tokens) - 1 else None))
    assert answer.completion_tokens == len(tokens)
    return answer.reasoning_tokens, [len(piece) for piece in pieces]


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.think[0]])
def test_thoughts_are_counted(tokenizers, name):
    """Including characters of many tokens. The end mark counts as a thought, the start mark does not."""
    tokenizer, family = tokenizers[name], FAMILIES[name]
    begin, end = (mark.strip() for mark in family.think)
    for thought in ("Rome", "日本語"):
        counted, (_, thought_size, end_size, _) = thought_tokens(tokenizer, begin, thought, end, "Sunny")
        assert counted == thought_size + end_size
        counted, (_, thought_size) = thought_tokens(tokenizer, begin, thought, end="length")
        assert counted == thought_size
        counted, (thought_size, end_size, _) = thought_tokens(tokenizer, thought, end, "Sunny", channel="reasoning")
        assert counted == thought_size + end_size
    assert thought_tokens(tokenizer, "Sunny", family.call)[0] == 0


THOUGHT = "<|channel|>analysis<|message|>Rome is in Italy.<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (f"{THOUGHT}<|channel|>final<|message|>It is sunny.", "Rome is in Italy.", "It is sunny.", []),
        ("<|channel|>final<|message|>Hi", "", "Hi", []),
        (
            f'{THOUGHT}<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{{"city": "Rome"}}<|call|>',
            "Rome is in Italy.", "", [("weather", {"city": "Rome"})],
        ),
        (
            ("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
            ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Rome"}'),
            "", "I look.", [("weather", {"city": "Rome"})],
        ),
        ("no header at all", "", "no header at all", []),
        ("<|channel|>final<|message|>a <|end|>", "", "a ", []),
    ],
)  # fmt: skip
def test_messages_with_headers(tmp_path, text, reasoning, content, calls):
    tokenizer = make(HARMONY, tmp_path)
    whole, _ = read(tokenizer, text, channel=tokenizer.dialect.channel_after([]))
    assert (whole.reasoning, whole.text, called(whole)) == (reasoning, content, calls)


def test_where_an_answer_begins(tokenizers):
    qwen = tokenizers["qwen"]
    for text, channel in (("", "normal"), ("<think>\n", "reasoning"), ("<think>\n\n</think>\n\n", "normal")):
        assert qwen.dialect.channel_after(qwen.encode(f"Hello {text}")) == channel


def test_markers_typed_by_a_person_are_no_markers(tokenizers):
    prompt = tokenizers["qwen"].encode_chat([{"role": "user", "content": "Hello <think>"}])
    assert tokenizers["qwen"].dialect.channel_after(prompt) == "normal"


def test_text_without_markers_is_untouched(tokenizers):
    for text in ("  two blanks\n\n and <tool", "\n\n", "a </think> b", "日本 😀"):
        whole, deltas = read(tokenizers["qwen"], text)
        assert whole.text == text
        assert "".join(delta.text for delta in deltas) == text


def test_stop_strings_are_of_the_text_alone(tokenizers):
    whole, _ = read(tokenizers["qwen"], "<think>\nRome END\n</think>\n\nIt END is", stops=["END"])
    assert (whole.reasoning, whole.text, whole.finish) == ("Rome END", "It ", "stop")
    whole, _ = read(tokenizers["qwen"], FAMILIES["qwen"].call, stops=["Rome"])
    assert called(whole) == [("weather", {"city": "Rome"})]


@pytest.mark.parametrize("logprobs", [False, True])
def test_no_stop_string_goes_on_behind_a_call(tokenizers, logprobs):
    call, stops = FAMILIES["qwen"].call, ["\n\nHuman:"]
    text = f"Let me look.\n\n{call}Human:\n\nHuman: no"
    whole, deltas = read(tokenizers["qwen"], text, stops=stops, logprobs=logprobs)
    (at,) = (index for index, delta in enumerate(deltas) if delta.calls)
    assert "".join(delta.text for delta in deltas[: at + 1]) == "Let me look.\n\n"
    assert (whole.text, called(whole)) == ("Let me look.\n\nHuman:", [("weather", {"city": "Rome"})])
    assert (deltas[-1].stop, whole.finish) == (stops[0], "tool_calls")
    assert "".join(token.text for delta in deltas for token in delta.tokens) == (whole.text if logprobs else "")


def test_a_stop_string_before_a_call_ends_the_answer(tokenizers):
    # A longer one might still have ended behind it.
    whole, deltas = read(tokenizers["qwen"], f"no ab{FAMILIES['qwen'].call}", stops=["b", "ab and so on"])
    assert (whole.text, called(whole), whole.finish) == ("no a", [], "stop")
    assert deltas[-1].stop == "b"


def test_log_probabilities_are_of_the_text_alone(tokenizers):
    text = "It 😀 is <b>sunny</b>."
    whole, _ = read(tokenizers["qwen"], f"<think>\nhm\n</think>\n\n{text}{FAMILIES['qwen'].call}", logprobs=True)
    assert whole.text == text
    assert "".join(token.text for token in whole.tokens) == text
    spelled = b"".join(tokenizers["qwen"].token_bytes(token.event.token) for token in whole.tokens)
    assert spelled.decode().strip() == text


def test_arguments_in_other_shapes(tokenizers):
    for arguments, expected in (
        ('"arguments": "{\\"city\\": \\"Rome\\"}"', {"city": "Rome"}),
        ('"parameters": {"city": "Rome"}', {"city": "Rome"}),
        ('"arguments": {}', {}),
        ('"arguments": null', {}),
        ('"x": 1', {}),
        ('"arguments": {"city": "日本 😀"}', {"city": "日本 😀"}),
    ):
        whole, _ = read(tokenizers["qwen"], f'<tool_call>{{"name": "weather", {arguments}}}</tool_call>')
        assert called(whole) == [("weather", expected)]
    for wrong in ('"arguments": [1]', '"arguments": "Rome"', '"arguments": 5'):
        text = f'<tool_call>{{"name": "weather", {wrong}}}</tool_call>'
        assert read(tokenizers["qwen"], text)[0].text == text


@given(st.lists(st.integers(0, 520), max_size=40))
@settings(max_examples=50, deadline=None)
def test_any_tokens_are_read_without_a_fault(tokenizers, tokens):
    for tokenizer in tokenizers.values():
        tokens = [token % tokenizer.vocab_size for token in tokens]
        tokens = [token for token in tokens if token not in (*tokenizer.eos, tokenizer.bos)] or [0]  # see `read`
        whole, deltas = read(tokenizer, tokens, end="length")
        assert whole.text == "".join(delta.text for delta in deltas)
        assert whole.finish == "length"


# --- calls that a grammar demanded ---


def written(reader, text, sizes):
    """Return the deltas of a text that arrives in pieces of these sizes."""
    deltas, start = [], 0
    parts = []
    for position, size in enumerate([*sizes, len(text)]):
        part = reader.push([Glyph(char, position) for char in text[start : start + size]])
        parts.append(part)
        deltas += part.calls
        start += size
    parts.append(reader.finish())
    return deltas, "".join(str(glyph.symbol) for part in parts for glyph in part.text)


def joined(deltas):
    whole = Collected()
    for delta in deltas:
        before = whole.calls.get(delta.index)
        whole.calls[delta.index] = before.grown(delta) if before else delta
    return called(whole)


ARGUMENTS = [{}, {"a": "}]{[\\\"'\n", "b": [{"c": {}}]}, {"日本": "😀"}]


@given(st.lists(st.integers(1, 9), max_size=60))
def test_demanded_calls_in_any_pieces(sizes):
    text = "\n".join(f"{call_head('f')}{json.dumps(arguments, ensure_ascii=False)}}}" for arguments in ARGUMENTS)
    deltas, left = written(CallReader(["f", "fg"]), text, sizes)
    assert joined(deltas) == [("f", arguments) for arguments in ARGUMENTS]
    assert left == ""
    assert [delta.index for delta in deltas if delta.id] == [0, 1, 2]
    assert len({delta.id for delta in deltas if delta.id}) == 3


@given(st.lists(st.integers(1, 9), max_size=30))
def test_the_arguments_of_the_only_call(sizes):
    for arguments in ARGUMENTS:
        deltas, left = written(CallReader(["f"], only="f"), json.dumps(arguments), sizes)
        assert joined(deltas) == [("f", arguments)]
        assert left == ""


def test_an_answer_instead_of_a_call():
    for text in ('{"name": "f"', '{"x": 1}', '{"name": "g", "arguments": {}}', "5", '{"name": 5}'):
        deltas, left = written(CallReader(["f"], or_text=True), text, [1] * 40)
        assert deltas == []
        assert left == text


def test_arguments_are_given_out_as_they_come():
    reader = CallReader(["f"], only="f")
    pieces = [reader.push([Glyph(char, 0)]).calls for char in '{"a": 1}']
    assert [call.arguments for calls in pieces for call in calls] == list('{"a": 1}')
    assert pieces[0][0].name == "f"


def test_a_call_that_ends_in_its_head_is_completed_only_if_the_answer_may_have_no_more_tokens():
    for cut in (False, True):
        reader = CallReader(["f"])
        assert reader.push([Glyph(char, 0) for char in '{"na']) == Parts()
        parts = reader.finish(cut=cut)
        assert [call.name for call in parts.calls] == ["f"] * cut
        assert parts.text == []


def test_a_demanded_call_ends_an_answer_as_a_call():
    tokenizer = Tokenizer(DEMO)
    answer = Answer(tokenizer, ["a"], reader=CallReader(["f"], only="f"))
    tokens = [*tokenizer.encode('{"a": 1}'), *tokenizer.eos]
    deltas = [
        answer.take(TokenEvent(position, token, finish="stop" if token in tokenizer.eos else None))
        for position, token in enumerate(tokens)
    ]
    assert deltas[-1].finish == "tool_calls"
    assert joined([call for delta in deltas for call in delta.calls]) == [("f", {"a": 1})]
