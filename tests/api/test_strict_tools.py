"""Calls of strict tools that a model may make, in the form of each family: free up to the mark, bound from there on."""

import random
from dataclasses import replace

import jsonschema
import pytest
from llguidance import LLTokenizer

from api.chat.constraint import make_grammar, make_optional_grammar
from node.core.errors import BadRequest
from node.text.grammar import split_mark
from node.text.grammar_job import _try
from node.text.grammars import Grammars
from tests.api.families import FAMILIES, HARMONY, make
from tests.api.test_agent_tools import use_of
from tests.api.test_reader import called, read
from tests.text.test_constraint import constraints_of

CITIES = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITIES, "strict": True}}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
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
    assert fits(family, grammar, call.replace("weather", "now").replace('"city": "Rome"', ""))
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
            whole, _ = read(tokenizer, tokens, tools=(WEATHER, NOW), many=many, channel=channel)
            calls = called(whole)
            assert calls
            for function, arguments in calls:
                jsonschema.validate(arguments, CITIES if function == "weather" else {"maxProperties": 0})
            counts.add(len(calls))
            names |= {function for function, _ in calls}
        assert names == {"weather", "now"}
        assert (max(counts) > 1) == (many and name != "gpt-oss")


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


async def test_only_strict_tools_are_bound_and_only_in_families_with_json(families, grammars, tmp_path):
    tokenizer, _ = families["qwen"]
    assert await grammar_of(grammars, tokenizer, NOW) == ""
    assert await make_grammar(grammars, use_of([WEATHER], "auto").tool_use, None, "a") == ""
    assert await grammar_of(grammars, make(FAMILIES["lfm"], tmp_path), WEATHER) == ""


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
