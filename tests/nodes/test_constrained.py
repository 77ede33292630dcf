"""Demanded tool calls and formats on real nodes: valid whatever the model prefers."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest

from tests.conftest import MODEL, Cluster
from tests.nodes.calls import DIALECTS, Called

pytestmark = pytest.mark.slow

MOVE = {
    "type": "object",
    "properties": {
        "to": {"$ref": "#/$defs/side"},
        "steps": {"type": "integer", "minimum": 1, "maximum": 99},
        "then": {"anyOf": [{"$ref": "#/$defs/side"}, {"type": "null"}]},
    },
    "required": ["to", "steps", "then"],
    "$defs": {"side": {"enum": ["links", "rechts", "前"]}},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "move", "parameters": MOVE}},
    {"type": "function", "function": {"name": "halt"}},
]
MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "move", "strict": True, "schema": MOVE}}

FORECAST = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["celsius", "kelvin"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
"""The built-in model, left to itself, writes the city alone."""


@pytest.fixture
def client(three: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{three.nodes[-1].url}/v1", api_key="any", max_retries=0)


def check(name: str, arguments: str) -> None:
    if name == "halt":
        assert arguments == "{}"
    else:
        assert name == "move"
        jsonschema.validate(json.loads(arguments), MOVE)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "move"}}])
def test_demanded_calls(client: openai.OpenAI, choice: Any) -> None:
    def ask(seed: int) -> list[tuple[str, str]]:
        asked: Any = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice}
        asked |= {"seed": seed, "temperature": 2}
        answer = client.chat.completions.create(**asked).choices[0]
        assert answer.finish_reason == "tool_calls"
        plain = [(call.function.name, call.function.arguments) for call in answer.message.tool_calls or []]
        streamed: dict[int, list[str]] = {}
        for chunk in client.chat.completions.create(**asked, stream=True):
            for delta in chunk.choices[0].delta.tool_calls or []:
                name, arguments = streamed.setdefault(delta.index, ["", ""])
                streamed[delta.index] = [
                    name + (delta.function.name or ""),
                    arguments + (delta.function.arguments or ""),
                ]
        assert [tuple(call) for call in streamed.values()] == plain
        return plain

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    assert all(answers)
    for name, arguments in (call for calls in answers for call in calls):
        check(name, arguments)
    assert len({str(calls) for calls in answers}) > 2


def test_calls_of_strict_tools_are_valid_if_they_come(three: Cluster) -> None:
    tool = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": FORECAST}
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]

    def ask(seed: int) -> Called:
        more: Any = {"model": MODEL, "temperature": 1, "seed": seed}
        return [call for dialect in DIALECTS for call in dialect(three.nodes[-1], messages, tool, **more)]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(12)))
    assert sum(map(len, answers)) > 12
    for name, arguments in (call for calls in answers for call in calls):
        assert name == "get_weather"
        jsonschema.validate(arguments, FORECAST)


def test_inputs_of_custom_tools_follow_their_grammars(three: Cluster) -> None:
    node = three.nodes[-1]
    steps = {
        "syntax": "lark",
        "definition": 'start: step (LF step){0,3}\nstep: ("go " | "turn ") SIDE\nSIDE: /left|右/\nLF: /\\n/',
    }
    date = {"syntax": "regex", "definition": "[0-9]{4}/[0-9]{2}"}
    follows = {
        "steps": re.compile(r"(go|turn) (left|右)(\n(go|turn) (left|右)){0,3}"),
        "date": re.compile(r"\d{4}/\d{2}"),
    }
    given = {"steps": steps, "date": date}

    def ask(seed: int) -> list[tuple[str, str]]:
        more: Any = {"model": MODEL, "temperature": 2, "seed": seed}
        name = {0: "date", 1: "steps"}.get(seed % 3)
        chosen: Any = {"type": "custom", "custom": {"name": name}} if name else "required"
        tools: list[Any] = [
            {"type": "custom", "custom": {"name": name, "format": {"type": "grammar", "grammar": grammar}}}
            for name, grammar in given.items()
        ]
        chat = node.post("/v1/chat/completions", {"messages": MESSAGES, "tools": tools, "tool_choice": chosen, **more})
        (call,) = chat.json["choices"][0]["message"]["tool_calls"]
        tools = [
            {"type": "custom", "name": name, "format": {"type": "grammar", **grammar}}
            for name, grammar in given.items()
        ]
        chosen = {"type": "custom", "name": name} if name else "required"
        (item,) = node.post("/v1/responses", {"input": "Hello", "tools": tools, "tool_choice": chosen, **more}).json[
            "output"
        ]
        return [(call["custom"]["name"], call["custom"]["input"]), (item["name"], item["input"])]

    with ThreadPoolExecutor(4) as pool:
        calls = [call for calls in pool.map(ask, range(12)) for call in calls]
    for name, text in calls:
        assert follows[name].fullmatch(text), (name, text)
    assert {name for name, _ in calls} == {"steps", "date"}
    assert len(set(calls)) > 6


def test_formats_beside_free_answers(client: openai.OpenAI, stock: dict[str, str]) -> None:
    def ask(number: int) -> str:
        form: Any = {"response_format": FORMAT, "n": 2, "seed": number} if number % 2 else {"temperature": 0}
        answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, **form)
        for choice in answer.choices if number % 2 else []:
            assert choice.finish_reason == "stop"
            jsonschema.validate(json.loads(choice.message.content or ""), MOVE)
        return answer.choices[0].message.content or ""

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(ask, range(8)))
    assert set(texts[::2]) == {stock["Hello"]}


def test_a_schema_that_cant_be_followed_is_refused_and_harms_nobody(client: openai.OpenAI) -> None:
    broken: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/$defs/nothing"}}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=broken, stream=stream)
        assert caught.value.param == "response_format"
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=5
    )
    assert answer.choices[0].finish_reason in ("length", "stop")


def test_schemas_that_end_or_hold_up_whoever_compiles_them_harm_no_node(client: openai.OpenAI) -> None:
    harmful: list[Any] = [
        {"const": -(2**63)},
        {"type": "integer", "minimum": -1e308, "maximum": -1e308},
        {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (2, 3, 5, 7, 11, 13, 17, 19)]},
        {"allOf": [{"type": "string", "pattern": f"^.*a.{{{place}}}b.*$"} for place in range(20)]},
        {"const": {f"k{number}": number for number in range(50_000)}},
    ]

    def ask(schema: Any) -> Any:
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
        return client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=form)

    with ThreadPoolExecutor(len(harmful)) as pool:
        for asked in [pool.submit(ask, schema) for schema in harmful]:
            with pytest.raises(openai.BadRequestError, match="the schema"):
                asked.result()
    json.loads(ask({"type": "object", "properties": {"ok": {"type": "boolean"}}}).choices[0].message.content or "")
