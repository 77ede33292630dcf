"""Tools, formats and thoughts through the Responses API."""

import json

import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from node.text.grammar import call_head
from tests.api.families import FAMILIES, make
from tests.api.test_responses import MODEL, ask, events_of, kinds
from tests.strict import strictly

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "weather", "description": "Weather", "parameters": CITY}
NOW = {"type": "function", "name": "now", "strict": True}
ROME = '{"city": "Rom"}'
FORMAT = {"format": {"type": "json_schema", "name": "city", "strict": True, "schema": CITY}}


def lark(text):
    return {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": text}}


def call(name, arguments):
    return f"{call_head(name)}{arguments}}}"


@pytest.mark.parametrize(
    ("choice", "text", "names"),
    [
        ("auto", f"I look.<tool_call>\n{call('weather', ROME)}\n</tool_call>", ["message", "weather"]),
        (
            "auto",
            f"<tool_call>\n{call('now', '{}')}\n</tool_call>\n<tool_call>\n{call('weather', ROME)}\n</tool_call>",
            None,
        ),
        ("required", call("weather", ROME), ["weather"]),
        ({"type": "function", "name": "weather"}, ROME, ["weather"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
            call("weather", ROME),
            ["weather"],
        ),
    ],
)
async def test_calls_plain_and_streamed(server, choice, text, names):
    server.backend.say(text)
    body = {"tools": [WEATHER, NOW], "tool_choice": choice}
    plain = strictly(Response, (await ask(server, **body)).json)
    assert [getattr(item, "name", item.type) for item in plain.output] == (names or ["now", "weather"])
    assert plain.output[-1].arguments == ROME
    assert plain.output[-1].call_id.startswith("call_")
    assert [(tool.name, tool.strict) for tool in plain.tools] == [("weather", False), ("now", True)]
    assert plain.status == "completed"

    events = events_of(await ask(server, **body, stream=True))
    assert kinds(events)[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    last = events[-1]["response"]["output"][-1]
    deltas = [
        event["delta"]
        for event in events
        if event["type"] == "response.function_call_arguments.delta" and event["item_id"] == last["id"]
    ]
    assert "".join(deltas) == last["arguments"] == ROME


async def test_results_go_back(server, tokenizer):
    server.backend.say(f"<tool_call>{call('weather', ROME)}</tool_call>")
    first = (await ask(server, "How is Rome?", tools=[WEATHER])).json
    (made,) = first["output"]
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "sunny"}
    server.backend.say("It is sunny.")
    second = await ask(server, [result], tools=[WEATHER], previous_response_id=first["id"])
    assert second.json["output"][0]["content"][0]["text"] == "It is sunny."
    asked = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "weather"}}]}
    asked["tool_calls"][0]["function"]["arguments"] = json.loads(ROME)
    messages = [
        {"role": "user", "content": "How is Rome?"},
        {**asked, "tool_calls": [{"id": made["call_id"], **asked["tool_calls"][0]}]},
        {"role": "tool", "tool_call_id": made["call_id"], "content": "sunny"},
    ]
    tool = {"type": "function", "function": {name: WEATHER[name] for name in ("name", "description", "parameters")}}
    assert server.backend.requests[-1].prompt == tuple(tokenizer.encode_chat(messages, [tool]))


async def test_functions_of_a_namespace(server, tokenizer):
    """As codex sends those of MCP servers, beside a tool that only OpenAI has and one with a grammar."""
    server.backend.say(f"<tool_call>{call('mcp__sky__weather', ROME)}</tool_call>")
    sky = {"type": "namespace", "name": "mcp__sky__", "description": "The sky", "tools": [WEATHER]}
    others = [{"type": "web_search"}, lark("start: /a/")]
    plain = (await ask(server, "How is Rome?", tools=[*others, sky, NOW])).json
    strictly(Response, plain)
    (made,) = plain["output"]
    assert (made["namespace"], made["name"], made["arguments"]) == ("mcp__sky__", "weather", ROME)
    assert [tool["type"] for tool in plain["tools"]] == ["web_search", "custom", "namespace", "function"]
    events = events_of(await ask(server, "How is Rome?", tools=[*others, sky, NOW], stream=True))
    assert events[-1]["response"]["output"][0]["namespace"] == "mcp__sky__"

    server.backend.say("It is sunny.")
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "sunny"}
    await ask(server, [made, result], tools=[sky])
    prompt = b"".join(map(tokenizer.token_bytes, server.backend.requests[-1].prompt)).decode()
    assert prompt.count('"name": "mcp__sky__weather"') == 2
    assert "patch" not in prompt


async def test_a_format(server):
    server.backend.say(ROME)
    response = strictly(Response, (await ask(server, text=FORMAT)).json)
    assert response.output_text == ROME
    assert response.text.format.schema_ == CITY
    assert server.backend.requests[-1].grammar
    cut = (await ask(server, text=FORMAT, max_output_tokens=3)).json
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


async def test_the_official_client_parses(server):
    class City(BaseModel):
        city: str

    server.backend.say(ROME)
    async with server.client() as client:
        parsed = await client.responses.parse(model=MODEL, input="Hello", text_format=City)
        assert parsed.output_parsed == City(city="Rom")
        async with client.responses.stream(model=MODEL, input="Hello", text_format=City) as stream:
            assert (await stream.get_final_response()).output_parsed == City(city="Rom")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search"}, {"type": "file_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}, {"type": "custom"}]}, "tools[1].name"),
        ({"tools": [{"type": "web_search"}, lark("start: nothing")]}, "tools[1].format.definition"),
        ({"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar"}}]}, "tools[0].format"),
        ({"tools": [WEATHER], "tool_choice": {"type": "custom", "name": "weather"}}, "tool_choice"),
        ({"tools": [{"type": "namespace", "name": "sky", "tools": []}]}, "tools[0].type"),
        ({"tools": [{"type": "namespace", "name": "sky"}]}, "tools[0]"),
        ({"tools": [{"name": "weather"}]}, "tools[0].type"),
        ({"tools": [WEATHER, {"type": 5}]}, "tools[1].type"),
        ({"tools": [{"type": "function", "name": "no spaces"}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "parameters": {"type": "array"}}]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "none"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": CITY}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}}, "text.format"),
    ],
)
async def test_refusals(server, body, param):
    answer = await ask(server, **body)
    assert answer.status == 400
    assert answer.error["param"].startswith(param)
    assert "function.name" not in answer.error["message"]
    assert "response_format" not in answer.error["message"]


async def test_thoughts_are_an_item_of_their_own(server, tmp_path):
    server.backend.model.tokenizer = make(FAMILIES["qwen"], tmp_path)
    server.backend.say("<think>\nA city\n</think>\n\nRome")
    response = strictly(Response, (await ask(server)).json)
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == "A city"
    assert response.output_text == "Rome"
    events = events_of(await ask(server, stream=True))
    assert "".join(event["delta"] for event in events if event["type"] == "response.reasoning_text.delta") == "A city"


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"name": "no blanks"}, "name"),
        ({}, "name"),
        ({"name": 5}, "name"),
        ({"name": "x", "parameters": {"type": "array"}}, "parameters"),
    ],
)
async def test_a_wrong_function_is_named_where_the_request_has_it(server, wrong, name):
    function = {"type": "function", **wrong}
    within = {"type": "namespace", "name": "space", "tools": [{"type": "custom"}, function]}
    for tools, param in (([{"type": "web_search"}, function], "tools[1]"), ([within], "tools[0].tools[1]")):
        response = await ask(server, tools=tools)
        assert (response.status, response.error["param"]) == (400, f"{param}.{name}")
        assert f"'{param}.{name}'" in response.error["message"]
