"""Grammars from JSON schemas and for tool calls: the texts that they accept, and the bounds that they add."""

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.core.errors import BadRequest
from node.text.grammar import Function, call_head, calls_grammar, json_grammar
from node.text.json_schema import EXACT
from node.text.tokenizer import Tokenizer
from tests.text.test_constraint import constraints_of

DEMO = Path(__file__).parents[2] / "node" / "builtin" / "pippin-demo"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(DEMO)


@pytest.fixture(scope="module")
def constraints(tokenizer):
    return constraints_of(DEMO, tokenizer.vocab_size)


@pytest.fixture
def accepts(tokenizer, constraints):
    """Return a function that tells whether a grammar accepts a whole text."""

    def accepts(grammar: str, text: str) -> bool:
        try:
            bits = constraints.begin(grammar, tokenizer.encode(text)).allowed(tokenizer.encode(text))
        except BadRequest:
            return False
        return any(bits[end // 8] >> end % 8 & 1 for end in tokenizer.eos)

    return accepts


def of(schema, *, strict=True):
    return json_grammar(schema, strict=strict, param="response_format")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [0, -5, EXACT, -EXACT], [EXACT + 1, 1.5, "1", None]),
        ({"type": "integer", "minimum": 3}, [3, EXACT], [2, EXACT + 1]),
        ({"type": "integer", "exclusiveMaximum": 3}, [2, -EXACT], [3, -EXACT - 1]),
        ({"type": "number", "minimum": 0, "maximum": 1}, [0, 0.25, 1], [1.5, -0.1, 0.1234567890123]),
        ({"type": "number", "minimum": 0}, [0, 12.5, EXACT], [-1, 2.0**60]),
        ({"type": "number", "minimum": 1 / 3, "maximum": 2 / 3}, [0.4], [0.3, 0.7]),
        ({"type": "number", "minimum": 0.0001, "maximum": 0.0002}, [0.00012345678912], [0.3]),
        ({"type": "number", "minimum": 0.5, "maximum": 0.5}, [0.5], [0.3]),
        ({"type": "number"}, [6.02e23, -1e-20, 0.12345678901234], ["1"]),
        ({"type": "string", "format": "time"}, ["23:59:60.123456789+08:38"], ["23:59:59.1234567890Z", "25:00:00Z"]),
        (
            {"type": ["string", "null"], "format": "date-time", "pattern": "5"},
            ["2026-11-26T21:18:32.5Z", None],
            ["2026-11-26T21:18:32.1234567895Z", "2026-11-26T21:18:32Z"],
        ),
        (
            {"format": "duration", "allOf": [{"maxLength": 14}]},
            ["P1Y2M3DT4H", "PT123456789S", 5],
            ["PT1234567890S", "P"],
        ),
        ({"const": "00:00:00.1234567890Z", "format": "time"}, ["00:00:00.1234567890Z"], ["00:00:00Z"]),
        ({"enum": ["a", 1, None, "日本 \U0001f600"]}, ["a", 1, None, "日本 \U0001f600"], ["b", 2]),
        ({"const": {"a": [1]}}, [{"a": [1]}], [{"a": [2]}]),
        ({"type": "string", "maxLength": 3}, ["", "äöü", '"'], ["abcd", 3]),
        ({"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["", "d"]),
        ({"type": ["string", "null"]}, ["x", None], [1]),
        (
            {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
            [[True]],
            [[], [True] * 3, [1]],
        ),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {}}]}, ["a", [1, "b", {}]], [1]),
        ({"type": "object"}, [{}, {"any": ["thing", {"x": None}]}], [[], "x"]),
        ({}, [1, "x", {"a": 1}, [None]], []),
    ],
)
def test_values_of_a_schema(accepts, schema, good, bad):
    grammar = of(schema)
    for value in good:
        jsonschema.validate(value, schema)
        assert accepts(grammar, json.dumps(value, ensure_ascii=False)), value
    for value in bad:
        assert not accepts(grammar, json.dumps(value, ensure_ascii=False)), value


NESTED = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "who": {"$ref": "#/$defs/person"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "properties": {"type": "object", "properties": {"additionalProperties": {"type": "integer"}}},
    },
    "required": ["who"],
    "$defs": {
        "person": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "boss": {"anyOf": [{"$ref": "#/$defs/person"}, {"type": "null"}]},
            },
            "required": ["name"],
        }
    },
}


def test_references_nesting_and_properties_with_the_names_of_keywords(accepts):
    grammar = of(NESTED)
    good = {
        "who": {"name": "Ärne", "boss": {"name": "B", "boss": None}},
        "tags": ["x"],
        "properties": {"additionalProperties": 5},
    }
    jsonschema.validate(good, NESTED)
    assert accepts(grammar, json.dumps(good, ensure_ascii=False))
    assert accepts(grammar, '{"who": {"name": "A"}}')
    assert not accepts(grammar, "{}")
    assert not accepts(grammar, '{"who": {"boss": null}}')


def test_properties_that_nobody_named_are_left_out_unless_the_schema_speaks_of_them(accepts):
    plain = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert accepts(of(plain), '{"a": 1}')
    assert not accepts(of(plain), '{"b": 1}')
    assert accepts(of({**plain, "additionalProperties": True}), '{"a": 1, "b": 1}')
    assert accepts(of({**plain, "required": ["b"]}), '{"a": 1, "b": 1}')
    both = {"allOf": [plain, {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}]}
    assert accepts(of(both), '{"a": 1, "b": 2}')
    beside = {**plain, "anyOf": [{"properties": {"b": {"const": 1}}, "required": ["b"]}, {"required": ["a"]}]}
    assert accepts(of(beside, strict=False), '{"a": 1, "b": 1}')


@pytest.mark.parametrize(
    ("names", "good", "bad"),
    [
        ({"type": "string"}, ["a", "B c"], []),
        ({"pattern": "^[a-c]+$"}, ["a", "cab"], ["d", "aB"]),
        ({"type": "string", "enum": ["good", "so-so."]}, ["good", "so-so."], ["soso.", "so-sox", "goodso-so."]),
    ],
)
def test_names_of_properties(accepts, names, good, bad):
    schema = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}}
    for name in good:
        assert accepts(of(schema), json.dumps({name: 1}))
        assert not accepts(of(schema), json.dumps({name: "x"}))
        assert accepts(of({**schema, "additionalProperties": False}), "{}")
        assert not accepts(of({**schema, "additionalProperties": False}), json.dumps({name: 1}))
    for name in bad:
        assert not accepts(of(schema), json.dumps({name: 1}))
    with pytest.raises(BadRequest):
        of({**schema, "propertyNames": {**names, "maxLength": 3}})


@pytest.mark.parametrize(
    "text", ['{"a":1}', '{ "a": 1}', '{"a": 1 }', '{"a":  1}', '{"a": 1}\n', ' {"a": 1}', '{\n"a": 1}']
)
def test_white_space_is_where_json_dumps_puts_it(accepts, text):
    assert not accepts(of({"type": "object"}), text)


@given(st.text(max_size=20))
def test_any_text_may_be_a_string(tokenizer, constraints, text):
    written = json.dumps(text, ensure_ascii=False)
    if "\\u" in written or "\x7f" in written:  # control characters, which a grammar need not allow
        return
    constraint = constraints.begin(of({"type": "string"}))
    assert constraint.allowed(tokenizer.encode(written)) is not None


@pytest.mark.parametrize("text", [r'"\ud83d"', r'"\ude00 x"', '"\t"', '"\n"'])
def test_no_string_has_half_characters_or_bare_control_characters(accepts, text):
    assert not accepts(of({"type": "string"}), text)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "poem"},
        {"$ref": "#/$defs/nothing"},
        {"$ref": "https://example.com/schema.json"},
        {"enum": []},
        {"type": "string", "pattern": "["},
        {"type": "string", "minLength": 5, "maxLength": 2},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"properties": 5},
        {"type": "integer", "minimum": 2**60},
        {"anyOf": 5},
    ],
)
def test_schemas_that_cant_be_followed_are_refused_by_name(schema):
    for strict in (False, True):
        with pytest.raises(BadRequest) as caught:
            json_grammar(schema, strict=strict, param="response_format")
        assert caught.value.param == "response_format"


@pytest.mark.parametrize("extra", [{"not": {"const": 1}}, {"format": "poem"}, {"type": "array", "uniqueItems": True}])
def test_what_is_beyond_grammars_is_refused_only_when_strict(extra):
    schema = {"type": "string", **extra}
    assert of(schema, strict=False)
    with pytest.raises(BadRequest):
        of(schema)


KEYWORDS = """type object string integer array properties items required enum anyOf allOf oneOf $ref # #/$defs/a $defs a
pattern [ minimum maximum minItems format date $schema additionalProperties multipleOf const not if x-guidance $id $anchor
prefixItems"""
words = st.sampled_from(KEYWORDS.split())
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
schemas = st.deferred(lambda: plain | st.lists(schemas, max_size=2) | st.dictionaries(words, schemas, max_size=3))


@given(st.dictionaries(words, schemas, max_size=5), st.booleans())
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_any_schema_is_a_grammar_or_a_refusal(schema, strict):
    def attempt(make):
        try:
            return make()
        except BadRequest as refusal:
            return refusal.param

    functions = [Function("f", schema, strict=strict), NOW]
    assert attempt(lambda: json_grammar(schema, strict=strict, param="x"))
    assert attempt(lambda: calls_grammar(functions, many=True, param="x", answer=schema))


def test_a_schema_cant_set_the_options_of_the_grammar(accepts):
    assert not accepts(of({"type": "object", "x-guidance": {"whitespace_flexible": True}}), "{ }")


# --- calls ---

WEATHER = Function(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}},
        "required": ["city"],
        "$defs": {"city": {"enum": ["Rome", "日本"]}},
    },
)
NOW = Function("now", {"type": "object", "properties": {}})


def call(name, arguments):
    return f"{call_head(name)}{json.dumps(arguments, ensure_ascii=False)}}}"


def test_calls_have_names_and_arguments_of_the_same_function(accepts):
    grammar = calls_grammar([WEATHER, NOW], many=False, param="tools")
    assert accepts(grammar, call("get_weather", {"city": "日本"}))
    assert accepts(grammar, call("now", {}))
    for wrong in (
        call("now", {"city": "Rome"}),
        call("get_weather", {}),
        call("other", {}),
        call("now", {}) + "\n" + call("now", {}),
        "{}",
        "",
    ):
        assert not accepts(grammar, wrong)
    assert json.loads(call("now", {})) == {"name": "now", "arguments": {}}


def test_many_calls_have_a_line_each(accepts):
    grammar = calls_grammar([WEATHER, NOW], many=True, param="tools")
    assert accepts(grammar, "\n".join([call("now", {}), call("get_weather", {"city": "Rome"}), call("now", {})]))
    assert not accepts(grammar, call("now", {}) + "\n")
    assert not accepts(grammar, call("now", {}) * 2)


def test_an_answer_may_be_possible_instead_of_a_call(accepts):
    answer = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    grammar = calls_grammar([NOW], many=True, param="tools", answer=answer)
    assert accepts(grammar, '{"x": 5}')
    assert accepts(grammar, call("now", {}))
    assert not accepts(grammar, call("now", {}) + '\n{"x": 5}')


def test_the_arguments_of_the_only_call(accepts):
    assert accepts(of(NOW.parameters, strict=NOW.strict), "{}")
    assert accepts(of(WEATHER.parameters, strict=WEATHER.strict), '{"city": "Rome"}')
    with pytest.raises(BadRequest) as caught:
        json_grammar({"type": "object", "properties": {"x": {"type": 5}}}, strict=False, param="tools[0]")
    assert caught.value.param == "tools[0]"
