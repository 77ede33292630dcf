"""Calls of strict tools that a model may make, in the form of each family: free up to the mark, bound from there on."""

import json
import random
import sys
from dataclasses import replace

import jsonschema
import pytest
from llguidance import LLTokenizer

from api.chat.call_reader import CallReader
from api.chat.channels import Glyph
from api.chat.constraint import make_grammar, make_optional_grammar
from api.chat.reader import Parts
from node.core.errors import BadRequest
from node.text.grammar import call_head, split_mark
from node.text.grammar_job import _try
from node.text.grammars import Grammars
from tests.api.families import FAMILIES, HARMONY, make
from tests.api.test_agent_tools import use_of
from tests.api.test_reader import called, read
from tests.text.test_constraint import constraints_of

CITIES = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITIES, "strict": True}}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
TEXT = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
HARMONY_CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}'
HEADED = replace(
    FAMILIES["mistral"], special=("[TOOL_CALLS]", "[ARGS]"), call='[TOOL_CALLS]weather[ARGS]{"city": "Rome"}'
)
BOUND = {
    "qwen": FAMILIES["qwen"],
    "qwen without tokens": replace(FAMILIES["qwen"], added=("<think>", "</think>")),
    "mistral": FAMILIES["mistral"],
    "mistral with headers": HEADED,
    "kimi k2": FAMILIES["kimi k2"],
    "gpt-oss": replace(HARMONY, call=HARMONY_CALL),
    **{
        name: FAMILIES[name]
        for name in (
            *("qwen coder", "glm", "minimax", "muse spark", "longcat", "kimi k3", "minicpm"),
            *("lfm", "function gemma", "gemma 4"),
        )
    },
    "glm in lines": replace(
        FAMILIES["glm"],
        hint="<arg_key>{{ k }}</arg_key>\n<arg_value>",
        call="<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
    ),
    "glm without tokens": replace(FAMILIES["glm"], added=("<tool_call>", "</tool_call>")),
}
EACH = pytest.mark.parametrize("name", BOUND)


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """Of each family: its tokenizer, and what makes its constraints."""
    made = {}
    for name, family in BOUND.items():
        directory = tmp_path_factory.mktemp("family")
        tokenizer = make(family, directory)
        made[name] = tokenizer, constraints_of(directory, tokenizer.vocab_size)
    return made


@pytest.fixture
async def grammars(sandbox_server):
    made = Grammars(sandbox_server, seconds=10)
    yield made
    await made.end()


async def grammar_of(grammars, tokenizer, *tools, **more):
    return await make_optional_grammar(grammars, use_of(list(tools), "auto", **more).tool_use, tokenizer, "a")


def follow(constraint, tokens):
    """How many of the tokens are allowed, one after the other."""
    for count, token in enumerate(tokens):
        bits = constraint.allowed(tokens[:count])
        assert constraint.error is None
        if bits is not None and not bits[token // 8] >> token % 8 & 1:
            return count
    return len(tokens)


def fits(family, grammar, text, *, ends=True):
    tokenizer, constraints = family
    tokens = tokenizer.encode(text, bos=False) + (sorted(tokenizer.eos)[:1] if ends else [])
    return follow(constraints.begin(grammar), tokens) == len(tokens)


def drawn(family, grammar, begin, seed):
    """Tokens of a text up to its end, those after `begin` drawn from all that are allowed; the last one ends the answer."""
    tokenizer, constraints = family
    choose, tokens, constraint = random.Random(seed), list(begin), constraints.begin(grammar)
    while not tokens or tokens[-1] not in tokenizer.eos:
        bits = constraint.allowed(tokens)
        assert bits, constraint.error
        tokens.append(choose.choice([each for each in range(tokenizer.vocab_size) if bits[each // 8] >> each % 8 & 1]))
        if choose.random() < 0.3:  # another driver goes on
            constraint = constraints.begin(grammar, tokens) if tokens[-1] not in tokenizer.eos else constraint
    return tokens[:-1]


def without_city(family, name):
    """The family's call of `weather` without arguments."""
    call, form = BOUND[name].call, family[0].dialect.form
    if not form.value:
        return call.replace('"city": "Rome"', "")
    return call.replace(one_by_one(form, {"city": "Rome"}), "")


def one_by_one(form, arguments):
    """The arguments in a form that writes each by itself, a text as it is."""
    return form.comma.join(
        f"{form.key}{name}{form.value}{value_in(form, value)}{form.stop}" for name, value in arguments.items()
    ).replace("{kind}", "string")


def value_in(form, value):
    if not isinstance(value, str) or isinstance(value, Json) or not (form.stop or form.quote):
        return json.dumps(value)
    return value if form.stop else f"{form.quote}{value}{form.unquote}"


@EACH
async def test_a_text_without_a_call_is_free_and_unmasked(families, grammars, name):
    tokenizer, constraints = families[name]
    grammar = await grammar_of(grammars, tokenizer, WEATHER)
    for text in (
        "the lazy dog",
        'A {"name": "x", "arguments": 5} and 3 > 2, 大',
        f"{BOUND[name].think[0]}think of <tools>",
        "",
    ):
        assert fits(families[name], grammar, text)
    tokens = tokenizer.encode("the quick brown fox", bos=False)
    assert {constraints.begin(grammar, tokens[:count]).allowed(tokens[:count]) for count in range(len(tokens))} == {
        None
    }


@EACH
async def test_a_call_is_bound_from_the_mark_on(families, grammars, name):
    family, call = families[name], BOUND[name].call
    grammar = await grammar_of(grammars, family[0], WEATHER, NOW)
    for before in ("", "Let me see. ", f"{BOUND[name].think[0]}the fox{BOUND[name].think[1]}"):
        assert fits(family, grammar, before + call)
        assert fits(family, grammar, before + call.replace("Rome", "Oslo"))
        for wrong in ("Rom", "Paris"):
            assert not fits(family, grammar, before + call.replace("Rome", wrong))
        for wrong in ("weathers", "wea", "rain"):
            assert not fits(family, grammar, before + call.replace("weather", wrong))
    assert not fits(family, grammar, call.replace("weather", "now"))
    assert fits(family, grammar, without_city(family, name).replace("weather", "now"))
    assert not fits(family, grammar, without_city(family, name))
    assert not fits(family, grammar, call[: call.index("city")])


@EACH
async def test_calls_that_are_drawn_at_random_are_valid_and_read_as_calls(families, grammars, name):
    tokenizer, _ = families[name]
    for many in (True, False):
        grammar = await grammar_of(grammars, tokenizer, WEATHER, NOW, parallel_tool_calls=many)
        mark = tokenizer.encode(f"Yes. {split_mark(grammar)[0]}", bos=False)
        counts, names = set(), set()
        for seed in range(12):
            tokens = drawn(families[name], grammar, mark, seed)
            channel = tokenizer.dialect.initial
            whole, _ = read(tokenizer, tokens, tools=(WEATHER, NOW), many=many, channel=channel, bound=True)
            calls = called(whole)
            assert calls
            for function, arguments in calls:
                jsonschema.validate(arguments, CITIES if function == "weather" else {"maxProperties": 0})
            counts.add(len(calls))
            names |= {function for function, _ in calls}
        assert names == {"weather", "now"}
        assert (max(counts) > 1) == (many and name != "gpt-oss")


KINDS = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "any"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "days": {"type": ["integer", "null"], "maximum": 9},
        "place": {"$ref": "#/$defs/place"},
    },
    "required": ["text", "maybe", "unit", "zip", "days"],
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}
ALL_KINDS = {"type": "function", "function": {"name": "weather", "parameters": KINDS, "strict": True}}
ONE_BY_ONE = [name for name, family in BOUND.items() if "city" in family.call and '"city": ' not in family.call]
GIVEN = {
    "text": "a < b\n\n</x> null",
    "maybe": "null and none",
    "unit": "F",
    "zip": "01234",
    "days": 3,
    "place": {"x": 1.5},
}


class Json(str):
    """A text that is written in JSON, as those with a pattern are."""

    __slots__ = ()


def written(family, name, arguments):
    """The family's call of `weather` with these arguments."""
    form = family[0].dialect.form
    return BOUND[name].call.replace(one_by_one(form, {"city": "Rome"}), one_by_one(form, arguments))


@pytest.mark.parametrize("name", ONE_BY_ONE)
async def test_arguments_between_tags(families, grammars, name):
    """Texts are written as they are, others in JSON, where a text with a pattern is one of these."""
    family = families[name]
    grammar = await grammar_of(grammars, family[0], ALL_KINDS)
    optional = {key: value for key, value in GIVEN.items() if key != "place"}
    for given in (
        GIVEN,
        optional,
        {**GIVEN, "maybe": None, "days": None},
        {**GIVEN, "text": "null"},
        {**GIVEN, "text": ""},
    ):
        call = written(family, name, {**given, "zip": Json(given["zip"])})
        assert fits(family, grammar, call)
        tokens = family[0].encode(call, bos=False)
        whole, _ = read(family[0], tokens, tools=(ALL_KINDS,), channel=family[0].dialect.initial, bound=True)
        assert called(whole) == [("weather", given)]
        tail = str(family[0].dialect.form.tail).strip()  # a limit cuts the next call, or the end of all
        cut = family[0].encode(call[: call.rindex(tail) + len(tail)], bos=False)
        channel = family[0].dialect.initial
        whole, _ = read(family[0], cut, tools=(ALL_KINDS,), end="length", channel=channel, bound=True)
        assert called(whole) == [("weather", given)]
    right = {**GIVEN, "zip": Json("01234")}
    assert fits(family, grammar, written(family, name, right))
    for wrong in ({"unit": "K"}, {"days": 10}, {"days": "x"}, {"zip": Json("123")}, {"place": {}}):
        assert not fits(family, grammar, written(family, name, {**right, **wrong}))
    if name != "lfm":  # whose texts are all JSON
        assert not fits(family, grammar, written(family, name, GIVEN))
    assert not fits(family, grammar, written(family, name, {"text": "without the others"}))


async def test_a_schema_that_says_more_than_its_arguments_is_refused_between_tags(families, grammars):
    family = families["qwen coder"]
    both = {**CITIES, "anyOf": [{"required": ["city"]}, {}]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": both, "strict": True}}
    with pytest.raises(BadRequest, match="'anyOf' of all can't be followed") as refused:
        await grammar_of(grammars, family[0], NOW, tool)
    assert refused.value.param == "tools[1].function.parameters"
    loose = {"type": "function", "function": {"name": "any", "parameters": both}}
    grammar = await grammar_of(grammars, family[0], WEATHER, loose)
    call = BOUND["qwen coder"].call.replace("weather", "any").replace("city", "place").replace("Rome", "Ur")
    assert fits(family, grammar, call)
    assert not fits(family, grammar, call.replace("any", "weather"))


@pytest.mark.parametrize(
    ("name", "as_written", "given"),
    [
        ("lfm", 'a="x, b=1", c={"d": "}, e"}', {"a": "x, b=1", "c": {"d": "}, e"}}),
        ("function gemma", 'a:<escape>}, b:1<escape>,c:{"d": "}, e:5"}', {"a": "}, b:1", "c": {"d": "}, e:5"}}),
        ("gemma 4", 'a:<|"|>}, b:1<|"|>,c:{"d": "}, e:5"}', {"a": "}, b:1", "c": {"d": "}, e:5"}}),
    ],
)
async def test_any_arguments_without_tags(families, grammars, name, as_written, given):
    """Of a tool that is not strict, and whose schema says more than its arguments."""
    family = families[name]
    loose = {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {}]}
    tool = {"type": "function", "function": {"name": "any", "parameters": loose}}
    grammar = await grammar_of(grammars, family[0], WEATHER, tool)
    form = family[0].dialect.form
    call = BOUND[name].call.replace("weather", "any").replace(one_by_one(form, {"city": "Rome"}), as_written)
    assert fits(family, grammar, call)
    whole, _ = read(family[0], family[0].encode(call, bos=False), tools=(WEATHER, tool), bound=True)
    assert called(whole) == [("any", given)]


async def test_arguments_that_may_be_left_out_have_commas_between_them(families, grammars):
    names = "abcd"
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "required": ["c"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema, "strict": True}}
    for name in ("lfm", "gemma 4"):
        family = families[name]
        grammar = await grammar_of(grammars, family[0], tool)
        for given in ("c", "ac", "bc", "cd", "abc", "acd", "bcd", "abcd"):
            assert fits(family, grammar, written(family, name, dict.fromkeys(given, 1)))
        for wrong in ("", "a", "ab", "abd", "ca", "cc"):
            pairs = ",".join(one_by_one(family[0].dialect.form, {each: 1}) for each in wrong)
            call = written(family, name, {}).replace("()", f"({pairs})").replace("{}", f"{{{pairs}}}")
            assert not fits(family, grammar, call)
        call = written(family, name, {"b": 1, "c": 1})
        for wrong in (
            call.replace(family[0].dialect.form.comma, ""),
            call.replace("b", f"{family[0].dialect.form.comma}b"),
        ):
            assert not fits(family, grammar, wrong)


def spelled(tokenizer, text):
    """The text without tokens of more than a byte, so that a mark in it is none."""
    ids = {tokenizer.token_bytes(token): token for token in reversed(range(tokenizer.vocab_size))}
    return [ids[bytes([byte])] for byte in text.encode()]


@EACH
async def test_what_is_bound_is_read_as_it_was_bound_whatever_is_written_in_it(families, grammars, name):
    """A text that holds what ends a text, a call or all of them, spelled out: it can't be made, or is read whole."""
    tokenizer, constraints = families[name]
    tool = {"type": "function", "function": {"name": "weather", "parameters": TEXT, "strict": True}}
    grammar, form = await grammar_of(grammars, tokenizer, tool), tokenizer.dialect.form
    before, after = (tokenizer.encode(part, bos=False) for part in BOUND[name].call.split("Rome"))
    parts = {str(part).strip() for part in (form.mark, form.stop, form.unquote, form.tail, form.end)} - {""}
    made = set()
    for part in sorted(parts):
        for text in (f"a{part}b", f"{part}{part}", f"{part}\n{BOUND[name].call}"):
            as_json = not (form.stop or form.quote)
            value = json.dumps(text)[1:-1] if as_json or not form.value else text
            tokens = [*before, *spelled(tokenizer, value), *after]
            ended = [*tokens, min(tokenizer.eos)]
            if follow(constraints.begin(grammar), ended) == len(ended):
                made.add(part)
                whole, _ = read(tokenizer, tokens, tools=(tool,), channel=tokenizer.dialect.initial, bound=True)
                assert called(whole) == [("weather", {"city": text})]
            cut = tokens[: len(before) + len(value)]
            if follow(constraints.begin(grammar), cut) == len(cut):
                whole, _ = read(
                    tokenizer, cut, tools=(tool,), channel=tokenizer.dialect.initial, bound=True, end="length"
                )
                (call,) = whole.calls.values()
                assert not call.ended
                assert not whole.text
    ends = str(form.stop or form.unquote).strip()
    assert made >= parts - {ends} - {part for part in parts if ends and ends in part}


@EACH
async def test_a_number_of_thousands_of_digits_is_the_largest_number(families, grammars, name):
    tokenizer, _ = families[name]
    schema = {"type": "object", "properties": {"city": {"type": "number"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema, "strict": True}}
    few = "123454321"
    as_json = BOUND[name].call.replace('"Rome"', few)
    call = written(families[name], name, {"city": int(few)}) if tokenizer.dialect.form.value else as_json
    call = call.replace(few, "9" * 4400)
    assert fits(families[name], await grammar_of(grammars, tokenizer, tool), call)
    whole, _ = read(tokenizer, call, tools=(tool,), channel=tokenizer.dialect.initial, bound=True)
    assert called(whole) == [("weather", {"city": sys.float_info.max})]


@EACH
async def test_two_calls_of_which_the_first_holds_the_second(families, grammars, name):
    tokenizer, constraints = families[name]
    form = tokenizer.dialect.form
    if not form.again:
        return
    tool = {"type": "function", "function": {"name": "weather", "parameters": TEXT, "strict": True}}
    grammar = await grammar_of(grammars, tokenizer, tool)
    (first, last), more = BOUND[name].call.split("Rome"), f"{form.tail}{form.again}weather"
    again = str(form.again).replace("{number}", "0")
    second = first[first.index("weather") + len("weather") :]
    tail = last[: len(last) - len(str(form.end))]
    inner = json.dumps(more)[1:-1] if not form.value else more.replace(str(form.stop) or "\0", "")
    if form.value and not (form.stop or form.quote):
        inner = json.dumps(inner)[1:-1]
    encode = lambda text: tokenizer.encode(text, bos=False)  # noqa: E731
    tokens = [*encode(first), *spelled(tokenizer, inner), *encode(f"{tail}{again}weather{second}Oslo{last}")]
    ended = [*tokens, min(tokenizer.eos)]
    assert follow(constraints.begin(grammar), ended) == len(ended)
    whole, _ = read(tokenizer, tokens, tools=(tool,), channel=tokenizer.dialect.initial, bound=True)
    cities = [arguments["city"] for _, arguments in called(whole)]
    assert cities == [more, "Oslo"]


@pytest.mark.parametrize(("name", "numbers"), [("kimi k2", (":0", ":{}")), ("kimi k3", ('"1"', '"{}"'))])
async def test_a_model_counts_its_calls_itself(families, grammars, name, numbers):
    """Kimi K2 those of the whole conversation, K3 those of an answer."""
    family, call = families[name], BOUND[name].call
    tail = str(family[0].dialect.form.tail)
    grammar = await grammar_of(grammars, family[0], WEATHER)
    first, again = call[: call.index(tail) + len(tail)], str(family[0].dialect.form.again)
    second = first[first.index(again) :]
    both = "".join(part.replace(numbers[0], numbers[1].format(at)) for part, at in ((first, 7), (second, 8)))
    both += call[len(first) :]
    assert fits(family, grammar, both)
    assert not fits(family, grammar, both.replace("7", "x"))
    whole, _ = read(family[0], family[0].encode(both, bos=False), channel=family[0].dialect.initial, bound=True)
    assert called(whole) == [("weather", {"city": "Rome"})] * 2


async def test_the_types_that_kimi_k3_tells(families, grammars):
    family, call = families["kimi k3"], BOUND["kimi k3"].call
    grammar = await grammar_of(grammars, family[0], ALL_KINDS)
    whole = written(family, "kimi k3", {**GIVEN, "zip": Json("01234")})
    assert fits(family, grammar, whole.replace('key="days" type="string"', 'key="days" type="number"'))
    assert not fits(family, grammar, whole.replace('key="days" type="string"', 'key="days" type="text"'))
    assert 'type="string"' in call


@pytest.mark.parametrize("text", ["a < b\n", "a</param>b", '</param><param name="city">', "a]]>b", ""])
async def test_minicpms_texts_may_be_quoted(families, grammars, text):
    family = families["minicpm"]
    tool = {"type": "function", "function": {"name": "weather", "parameters": TEXT, "strict": True}}
    call = BOUND["minicpm"].call.replace("Rome", f"<![CDATA[{text}]]>")
    assert fits(family, await grammar_of(grammars, family[0], tool), call)
    whole, _ = read(family[0], family[0].encode(call, bos=False), tools=(tool,), bound=True)
    assert called(whole) == [("weather", {"city": text})]


@pytest.mark.parametrize("text", ["<![CDATA[a", "a</param>b", "a</param></function>"])
async def test_minicpms_texts_hold_nothing_that_ends_them(families, grammars, text):
    family = families["minicpm"]
    tool = {"type": "function", "function": {"name": "weather", "parameters": TEXT, "strict": True}}
    assert not fits(family, await grammar_of(grammars, family[0], tool), BOUND["minicpm"].call.replace("Rome", text))


@EACH
async def test_a_mark_that_is_spelled_out_binds_where_it_is_read_as_one(families, grammars, name):
    """A text about the mark of a family whose mark has control tokens stays a text."""
    tokenizer, constraints = families[name]
    grammar = await grammar_of(grammars, tokenizer, WEATHER)
    tokens = spelled(tokenizer, f"The mark {split_mark(grammar)[0]}")
    constraint = constraints.begin(grammar, tokens)
    has_control = any(isinstance(each, int) for each in tokenizer.symbols(split_mark(grammar)[0]))
    assert constraint.binds == (not has_control)
    assert (constraint.allowed(tokens) is None) == has_control
    tokens += tokenizer.encode(BOUND[name].call, bos=False) if has_control else []
    assert constraints.begin(grammar, tokens).binds


async def test_no_token_goes_over_the_end_of_a_mark(families, grammars):
    tokenizer, constraints = families["qwen without tokens"]
    grammar = await grammar_of(grammars, tokenizer, WEATHER)
    constraint = constraints.begin(grammar)
    constraint._tokens = [*constraint._tokens[:-1], b"all>{"]
    tokens = tokenizer.encode("<tool_c", bos=False)
    bits = constraint.allowed(tokens)
    last = tokenizer.vocab_size - 1
    assert not bits[last // 8] >> last % 8 & 1
    assert all(bits[each // 8] >> each % 8 & 1 for each in range(last))


@EACH
@pytest.mark.parametrize("many", [True, False])
async def test_required_calls_may_be_closed_as_the_family_does(families, grammars, name, many):
    """Else a model takes the line break before its closing mark, and has to go on with another call."""
    tokenizer, _ = families[name]
    use = use_of([WEATHER, NOW], "required", parallel_tool_calls=many).tool_use
    grammar = await make_grammar(grammars, use, None, "a", tokenizer.call_form)
    line, other = call_head("weather") + '{"city": "Rome"}}', call_head("now") + "{}}"
    end, between = "\n</tool_call>", "\n</tool_call>\n<tool_call>\n"
    closes = name in ("qwen", "qwen without tokens")
    written = {
        line: 1,
        f"{line}{end}": closes,
        f"{line}\n{other}": 2 * many,
        f"{line}{between}{other}": 2 * many * closes,
    }
    written |= {f"{line}{between}{other}{end}": 2 * many * closes, f"{line}{end}{end}": 0, f"{line}\n": 0, end: 0}
    for text, calls in written.items():
        assert fits(families[name], grammar, text) == bool(calls)
        for size in (1, 7, len(text)) if calls else ():
            reader, parts = CallReader(use.names), Parts()
            glyphs = [Glyph(symbol, place) for place, symbol in enumerate(tokenizer.symbols(text))]
            for at in range(0, len(glyphs), size):
                parts.add(reader.push(glyphs[at : at + size]))
            parts.add(reader.finish())
            read = {}
            for delta in parts.calls:
                read[delta.index] = read[delta.index].grown(delta) if delta.index in read else delta
            assert all(call.ended for call in read.values())
            expected = [("weather", {"city": "Rome"}), ("now", {})][:calls]
            assert [(call.name, json.loads(call.arguments)) for call in read.values()] == expected
            assert not parts.text


async def test_only_strict_tools_are_bound_and_only_in_families_of_known_form(families, grammars, tmp_path):
    tokenizer, _ = families["qwen"]
    assert await grammar_of(grammars, tokenizer, NOW) == ""
    assert await make_grammar(grammars, use_of([WEATHER], "auto").tool_use, None, "a") == ""
    without_calls = make(replace(FAMILIES["qwen"], hint="", added=()), tmp_path)
    assert await grammar_of(grammars, without_calls, WEATHER) == ""


async def test_a_schema_that_cant_be_followed_is_refused_if_strict_else_any_object(families, grammars):
    tokenizer, _ = families["qwen"]
    odd = {"type": "object", "properties": {"x": {"$ref": "#/$defs/nothing"}}}
    with pytest.raises(BadRequest) as refused:
        await grammar_of(
            grammars, tokenizer, {"type": "function", "function": {"name": "odd", "parameters": odd, "strict": True}}
        )
    assert refused.value.param == "tools[0].function.parameters"
    loose = {"type": "function", "function": {"name": "odd", "parameters": odd}}
    grammar = await grammar_of(grammars, tokenizer, WEATHER, loose)
    call = BOUND["qwen"].call.replace("weather", "odd")
    assert fits(families["qwen"], grammar, call.replace('"Rome"', "[1]"))
    assert not fits(families["qwen"], grammar, call.replace('{"city": "Rome"}', "[1]"))


@pytest.mark.parametrize(
    "grammar", ['{"mark": ', '{"mark": "x"}', '{"mark": "", "bound": "x"}', '{"mark": "x", "bound": 1}']
)
async def test_a_peers_grammar_with_a_mark_is_read_with_care(families, grammars, grammar):
    with pytest.raises(BadRequest):
        await grammars.begin(families["qwen"][1], grammar, (), client="a")


async def test_a_sandbox_tries_a_grammar_without_the_models_tokens(families, grammars):
    grammar = await grammar_of(grammars, families["kimi k2"][0], WEATHER)
    assert "<[" in grammar
    assert _try(LLTokenizer("byte"), grammar, None) >= 0
    constraint = await grammars.begin(families["kimi k2"][1], grammar, (), client="a")
    assert constraint.error is None
    constraint.close()
