"""Grammars of strangers: each is made, or refused within its limits, and the node continues."""

import asyncio
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.core.errors import BadRequest, Overloaded
from node.text import grammars as limits
from node.text.constraint import Constraint, Constraints
from node.text.grammar import Function, json_grammar
from node.text.grammars import MAX_BYTES, MAX_GRAMMAR, MAX_LEVELS, MAX_VALUES, Grammars, check
from node.text.json_schema import EXACT
from node.text.sandboxed_encoder import tokenizer_sandbox
from node.text.tokenizer import Tokenizer
from tests.text.test_constraint import DEMO, PERSON

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)


def nested(levels, wrap):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = wrap(schema)
    return schema


HARMFUL = {
    "a constant at which llguidance recurses without end": {"const": -(2**63)},
    "the same in an enum": {"enum": [1, -(2**63)]},
    "bounds that saturate": {"type": "integer", "minimum": -1e308, "maximum": -1e308},
    "a bound beyond floats": {"type": "integer", "maximum": 10**400},
    "infinity": {"type": "number", "maximum": float("inf")},
    "no number": {"type": "number", "minimum": float("nan")},
    "multiples of many primes": {"allOf": [{"type": "integer", "multipleOf": prime} for prime in PRIMES[:8]]},
    "a multiple of a large number": {"allOf": [{"type": "integer", "multipleOf": number} for number in (1009, 1013)]},
    "look-alikes": {"allOf": [{"type": "string", "pattern": f"^.*a.{{{place}}}b.*$"} for place in range(20)]},
    "a constant of many keys": {"const": {f"k{number}": number for number in range(500_000)}},
    "an enum of many values": {"enum": [str(number) for number in range(500_000)]},
    "one long text": {"const": "x" * 1_000_000},
    "a text that the tokenizer would encode for each token": {"const": "x" * 5_000},
    "one long name": {"properties": {"x" * 1_000_000: {}}},
    "deep arrays": nested(600, lambda inner: {"type": "array", "items": inner}),
    "deep choices": nested(300, lambda inner: {"anyOf": [inner, {"type": "null"}]}),
    "many properties": {"type": "object", "properties": {f"k{number}": {"type": "integer"} for number in range(6000)}},
    "choices of choices": {
        "allOf": [
            {"anyOf": [{"properties": {f"{side}{number}": {"type": "string"}}} for side in "ab"]}
            for number in range(20)
        ]
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMFUL)
async def test_harm_is_refused_and_the_next_grammar_is_there_at_once(grammars, name):
    with pytest.raises(BadRequest, match="Invalid 'response_format': the schema ") as refused:
        await grammars.json(HARMFUL[name], strict=False, param="response_format", client="a")
    assert refused.value.param == "response_format"
    assert len(refused.value.message) < 700
    assert await grammars.json(PERSON, strict=True, param="x", client="a") == json_grammar(
        PERSON, strict=True, param="x"
    )


async def test_the_limit_of_time_is_an_option_and_named(sandbox_server):
    grammars = Grammars(sandbox_server, seconds=0.2)
    with pytest.raises(BadRequest, match=r"it took more than 0\.2 s") as refused:
        await grammars.json(HARMFUL["a multiple of a large number"], strict=False, param="x", client="a")
    assert refused.value.hint == "Make it smaller or simpler."
    await grammars.end()


@pytest.mark.parametrize(
    "place", [lambda value: [value], lambda value: {"a": [value]}, lambda value: {"a": {"b": value}}]
)
def test_numbers_are_checked_wherever_they_are(place):
    for number in (EXACT, EXACT + 1, -EXACT - 1, 0.1, 1e15, True, None):
        check(place(number), "x")
    for number in (EXACT + 2, -EXACT - 2, 2**63, -(10**400), 1e16, -1e308, float("inf"), float("nan")):
        with pytest.raises(BadRequest, match="a number beyond"):
            check(place(number), "x")


def test_size_is_checked_to_the_letter():
    check(["x" * MAX_BYTES], "x")
    check([None] * (MAX_VALUES - 1), "x")
    check(nested(MAX_LEVELS - 1, lambda inner: [inner]), "x")
    for value, why in (
        (["x" * MAX_BYTES, "x"], "larger than"),
        ([{"x" * MAX_BYTES: "x"}], "larger than"),
        ([None] * MAX_VALUES, "values"),
        (nested(MAX_LEVELS, lambda inner: [inner]), "levels"),
    ):
        with pytest.raises(BadRequest, match=why):
            check(value, "x")


async def test_a_grammar_that_was_made_costs_nothing_again(grammars):
    first = await grammars.json(PERSON, strict=True, param="x", client="a")
    await grammars.end()  # the processes are gone, and no new ones start
    assert await grammars.json(PERSON, strict=True, param="x", client="a") is first
    assert not any(each.alive for each in grammars._sandboxes._alive)


async def test_calls_and_answers(grammars):
    functions = [Function("f", PERSON), Function("g", {"type": "object"})]
    grammar = await grammars.calls(functions, many=True, param="tools", client="a", answer=PERSON)
    assert "answer | calls" in grammar
    with pytest.raises(BadRequest, match="Invalid 'tools': the schema") as refused:
        await grammars.calls([Function("f", {"type": 5})], many=True, param="tools", client="a")
    assert refused.value.param == "tools"


# --- what a driver follows ---


@pytest.fixture(scope="module")
def constraints():
    return Constraints(DEMO, Tokenizer(DEMO).vocab_size)


@pytest.mark.slow
async def test_a_driver_compiles_nothing_that_was_not_tried(grammars, constraints, monkeypatch):
    """A peer's grammars are tested in a process, too."""
    compiled = []
    begin = Constraints.begin

    def watched(self, grammar, generated=()):
        compiled.append(grammar)
        return begin(self, grammar, generated)

    monkeypatch.setattr(Constraints, "begin", watched)
    style = {"x-guidance": {"whitespace_flexible": False}}
    harmful = [json.dumps({"grammars": [{"json_schema": schema | style}]}) for schema in HARMFUL.values()]
    harmful.remove(
        next(grammar for grammar in harmful if "x" * 1_000_000 in grammar and "properties" in grammar)
    )  # is no grammar
    for grammar in (*harmful, "start: " + "(" * 100_000, "x" * (MAX_GRAMMAR + 1), "{", ""):
        with pytest.raises(BadRequest):
            await grammars.begin(constraints, grammar, (), client="a")
    assert compiled == []
    good = await grammars.json(PERSON, strict=True, param="x", client="a")
    assert (await grammars.begin(constraints, good, (), client="a")).allowed(()) is not None
    assert compiled == [good]


async def test_grammars_of_all_sessions_have_a_bound_and_make_room_when_they_end(grammars, constraints, monkeypatch):
    monkeypatch.setattr(limits, "MAX_IN_USE", 6 * limits._MIN_IN_USE)
    grammar = await grammars.json(PERSON, strict=True, param="x", client="a")
    held = [await grammars.begin(constraints, grammar, (), client="a") for _ in range(3)]
    with pytest.raises(Overloaded, match=r"Your grammars take 12\.0 MB, .* 12\.0 MB of 24\.0 MB"):
        await grammars.begin(constraints, grammar, (), client="a")
    others = [await grammars.begin(constraints, grammar, (), client=client) for client in "bc"]
    with pytest.raises(Overloaded):
        await grammars.begin(constraints, grammar, (), client="b")
    for each in (held.pop(), *others):
        each.close()
    held.append(await grammars.begin(constraints, grammar, (), client="a"))
    assert all(isinstance(each, Constraint) for each in held)


async def test_grammars_that_begin_at_once_have_the_same_bound(grammars, constraints, monkeypatch):
    monkeypatch.setattr(limits, "MAX_IN_USE", 6 * limits._MIN_IN_USE)
    grammar = await grammars.json(PERSON, strict=True, param="x", client="a")
    begun = [grammars.begin(constraints, grammar, (), client="a") for _ in range(5)]
    held = await asyncio.gather(*begun, return_exceptions=True)
    assert [type(each) for each in held] == [Constraint] * 3 + [Overloaded] * 2


async def test_sessions_that_begin_at_once_have_the_tokenizer_read_once(grammars, monkeypatch):
    read, constraints = [], Constraints(DEMO, Tokenizer(DEMO).vocab_size)

    def watched(server, directory):
        read.append(directory)
        return tokenizer_sandbox(server, directory)

    monkeypatch.setattr(limits, "tokenizer_sandbox", watched)
    grammar = await grammars.json(PERSON, strict=True, param="x", client="a")
    await asyncio.gather(*(grammars.begin(constraints, grammar, (), client="a") for _ in range(5)))
    assert read == [DEMO]


# --- anything ---

numbers = st.one_of(
    st.integers(-20, 20),
    st.sampled_from([0.01, 0.5, 1e-9, 1e-300, 7919, 65537, 2**31, EXACT, 2**53, 2**63, -(2**63), 1e308, -1e308]),
)
patterns = st.sampled_from(
    [
        "^a*$",
        "(a|b)*a(a|b){20}",
        "^(.*a.{20}b.*c)*$",
        "((a{1,99}){1,99}){1,99}",
        "\\p{L}{1000}",
        "(",
        "[^\\x00]",
        "(?=a)b",
    ]
)
leaves = st.one_of(
    st.just({}),
    st.just(True),
    st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "number", "array", "object", "null", 5])}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])},
        optional=dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), numbers),
    ),
    st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"pattern": patterns, "minLength": numbers, "maxLength": numbers}
    ),
    st.fixed_dictionaries({"const": numbers | st.text(max_size=5)}),
    st.fixed_dictionaries({"enum": st.lists(numbers | st.text(max_size=5), max_size=50)}),
    st.fixed_dictionaries({"$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "http://x/y", 5])}),
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=12)}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=12)}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, max_size=6)}),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner}, optional={"minItems": numbers, "maxItems": numbers}
        ),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("abcd"), inner, max_size=4)},
            optional={"required": st.lists(st.sampled_from("abcd")), "additionalProperties": inner},
        ),
        st.fixed_dictionaries({"patternProperties": st.dictionaries(patterns, inner, max_size=3)}),
        st.fixed_dictionaries({"$defs": st.fixed_dictionaries({"a": inner}), "$ref": st.just("#/$defs/a")}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=20,
)


@pytest.mark.slow
@settings(max_examples=60)
@given(schema=schemas.filter(lambda schema: isinstance(schema, dict)), strict=st.booleans(), seed=st.integers(0, 9))
def test_any_schema_is_made_or_refused_and_can_be_followed(sandbox_server, constraints, schema, strict, seed):
    asyncio.run(follow(Grammars(sandbox_server, seconds=0.5), constraints, schema, strict, random.Random(seed)))


async def follow(grammars, constraints, schema, strict, choose):
    try:
        grammar = await grammars.json(schema, strict=strict, param="x", client="a")
        constraint = await grammars.begin(constraints, grammar, (), client="a")
        tokens = []
        while len(tokens) < 40 and (bits := constraint.allowed(tokens)):
            allowed = [token for token in range(len(bits) * 8) if bits[token // 8] >> token % 8 & 1]
            if not allowed:
                break
            tokens.append(choose.choice(allowed))
    except BadRequest as error:
        assert len(error.message) < 700  # noqa: PT017
    finally:
        await grammars.end()
