"""JSON schemas for answers: odd ones, and ones that cost their compiler a stack, a core or memory."""

from typing import Any

import wire_http
from drawing import batches
from hypothesis import strategies as st
from target import Target

from tests.api.fuzz import schemas
from tests.conftest import MODEL, Node

MAX_TOKENS = 12
DOUBLED = 10
"""How often a schema that contains itself twice is doubled."""
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
numbers = st.one_of(
    st.sampled_from([-(2**63), 2**63, 2**53, -(2**53) - 1, 1e308, -1e308, 5e-324, 10**40, 0, -0.0, 1e-300, 2**31]),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
)
counts = st.sampled_from([0, 1, 7, 100, 5_000, 2**31, 2**63, -1, 1e9])
patterns = st.one_of(
    st.sampled_from(
        [
            "(a+)+$",
            "(a|aa)+b",
            "(.*)*",
            "[a-z]{1,5000}",
            "(a{1,100}){1,100}",
            "(((((.{0,99}){0,99}){0,99})))",
            "\\p{L}+",
        ]
    ),
    st.text("ab.*+?|()[]{}^$\\dwsnux0123456789,-é", max_size=30),
)


def _deep(depth: int, kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(min(depth, DOUBLED) if kind == "p" else depth):
        match kind:
            case "a":
                schema = {"type": "array", "items": schema}
            case "o":
                schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
            case _:
                schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return schema


hostile = st.one_of(
    st.builds(dict, const=numbers),
    st.builds(dict, enum=st.lists(numbers, max_size=4)),
    st.builds(dict, type=st.sampled_from(["integer", "number"]), minimum=numbers, maximum=numbers),
    st.builds(dict, type=st.just("integer"), exclusiveMinimum=numbers, multipleOf=numbers),
    st.lists(st.sampled_from(PRIMES), min_size=1, max_size=12).map(
        lambda primes: {"type": "integer", "allOf": [{"multipleOf": prime} for prime in primes]}
    ),
    st.builds(dict, type=st.just("string"), pattern=patterns, minLength=counts),
    st.builds(dict, type=st.just("string"), minLength=counts, maxLength=counts),
    st.builds(dict, type=st.just("string"), format=st.sampled_from(["date-time", "email", "uri", "uuid", "x"])),
    st.builds(dict, type=st.just("array"), minItems=counts, maxItems=counts, items=schemas),
    st.builds(lambda count, of: {"allOf": [of] * count}, st.integers(1, 24), schemas),
    st.builds(lambda count, of: {"anyOf": [of] * count}, st.sampled_from([1, 30, 3_000]), schemas),
    st.sampled_from([100, 2_000, 30_000]).map(lambda size: {"const": {f"k{n}": n for n in range(size)}}),
    st.sampled_from([100, 2_000, 30_000]).map(lambda size: {"enum": [f"value {n}" for n in range(size)]}),
    st.sampled_from([100, 2_000]).map(
        lambda size: {"type": "object", "properties": {f"k{n}": {"type": "string"} for n in range(size)}}
    ),
    st.builds(_deep, st.sampled_from([5, 60, 110]), st.sampled_from("aop")),
    st.just({"$ref": "#"}),
    st.just({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    st.just({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 5}}, "$ref": "#/$defs/a"}),
    st.builds(lambda of: {"patternProperties": {"(a+)+": of, ".*": of}, "type": "object"}, schemas),
    st.builds(lambda inner, outer: {"allOf": [inner, outer], "oneOf": [outer, inner], "not": inner}, schemas, schemas),
)


async def attack(target: Target, count: int, seed: int) -> None:
    bodies = st.builds(
        _body, st.one_of(schemas, hostile), st.sampled_from(["format", "tool", "responses"]), st.booleans()
    )
    for batch in batches(bodies, count, seed):
        await target.each("schema", batch, lambda node, sent: _send(target, node, sent))


def _body(schema: Any, where: str, stream: bool) -> tuple[str, dict[str, Any]]:
    if where == "responses":
        text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
        # Not stored: stored responses hold their schemas, up to MAX_RESPONSES_BYTES, which would hide a leak.
        options = {"max_output_tokens": MAX_TOKENS, "store": False}
        return "/v1/responses", {"model": MODEL, "input": "Hello", "text": text, **options}
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": MAX_TOKENS,
    }
    if where == "tool":
        body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}]
        body["tool_choice"] = "required"
    else:
        named = {"name": "x", "schema": schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    return "/v1/chat/completions", {**body, "stream": stream}


async def _send(target: Target, node: Node, sent: tuple[str, dict[str, Any]]) -> str:
    path, body = sent
    status, answer = await wire_http.exchange(node.port, wire_http.post(path, body))
    if not status:
        target.findings.complain(f"schema: no answer to {str(body)[:600]}")
    return target.check_answer("schema", str(body)[:600], status, answer)
