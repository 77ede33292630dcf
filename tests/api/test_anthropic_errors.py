"""Every failure of Anthropic's surface is an error object of Anthropic's, which its clients know and retry or report."""

import io
import json
import re

import anthropic
import pytest

from api.http.limits import MAX_BODY
from node.core.errors import ContextExceeded, NoCapacity, NotReady, Overloaded
from tests.api.test_anthropic import CITY, HEADERS, MODEL, NOW, USER, WEATHER, ask, body, client
from tests.api.test_anthropic_chat import USE, result

TEXT = {"type": "text", "text": "Hello"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}


def user(content):
    return {"messages": [{"role": "user", "content": content}]}


def tool(**more):
    return {"tools": [{**WEATHER, **more}]}


def thinking(**more):
    return {"thinking": {"type": "enabled", **more}}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"model": None}, "'model'"),
        ({"max_tokens": None}, "Missing required parameter: 'max_tokens'"),
        ({"max_tokens": -1}, "'max_tokens'"),
        ({"max_tokens": "5"}, "'max_tokens'"),
        ({"messages": None}, "'messages'"),
        ({"messages": []}, "'messages'"),
        ({"messages": "Hello"}, "'messages'"),
        ({"messages": ["Hello"]}, "'messages[0].role'"),
        ({"messages": [{"content": "x"}]}, "'messages[0].role'"),
        ({"messages": [*USER, {"role": "tool", "content": "x"}]}, "'messages[1].role'"),
        ({"messages": USER * 5000}, "4096"),
        ({"messages": [{"role": "user"}]}, "'messages[0].content'"),
        (user(5), "'messages[0].content'"),
        (user(["x"]), "'messages[0].content[0]'"),
        (user([TEXT] * 1025), "1025 blocks"),
        (user([{"type": "text"}]), "'messages[0].content[0].text'"),
        (user([{"type": "text", "text": 5}]), "'messages[0].content[0].text'"),
        (user([TEXT, {"type": "image"}]), "'messages[0].content[1]': it has no picture"),
        (user([{"type": "document"}]), "it is a file (document), and models get only text and pictures here"),
        (user([{"type": "poem"}]), "blocks of type 'poem'"),
        (user([{"type": ["text"]}]), "'messages[0].content[0]'"),
        (user([USE]), "'tool_use'"),
        (
            user([result([TEXT, {**IMAGE, "source": {"type": "url", "url": "https://x/y.png"}}])]),
            "'messages[0].content[0].content[1]': it is the address of a picture, but this server fetches nothing",
        ),
        (user([result(5)]), "'messages[0].content[0].content'"),
        (user([{"type": "tool_result", "content": "x"}]), "'messages[0].content[0].tool_use_id'"),
        (user([result("x", is_error="no")]), "'messages[0].content[0].is_error'"),
        ({"messages": [{"role": "assistant", "content": [{**USE, "input": "x"}]}]}, "'messages[0].content[0].input'"),
        ({"messages": [{"role": "assistant", "content": [result("x")]}]}, "'tool_result'"),
        ({"system": 5}, "'system'"),
        ({"system": [IMAGE]}, "'system[0]'"),
        ({"temperature": 9}, "'temperature'"),
        ({"top_p": 2}, "'top_p'"),
        ({"top_k": -2}, "'top_k'"),
        ({"stop_sequences": "x"}, "'stop_sequences'"),
        ({"stop_sequences": ["x"] * 17}, "'stop_sequences'"),
        ({"stop_sequences": ["x" * 1025]}, "'stop_sequences[0]'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305'"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "'tools[0]': tools of type 'bash_20250124'"),
        ({"tools": [WEATHER, {"name": "x"}]}, "'tools[1].input_schema'"),
        (tool(name="no blanks"), "'tools[0].name'"),
        (tool(input_schema={"type": "array"}), "'tools[0].input_schema'"),
        (tool(input_schema=5), "'tools[0].input_schema'"),
        ({"tools": [WEATHER, WEATHER]}, "'tools'"),
        ({"tools": [WEATHER] * 129}, "'tools'"),
        ({"tool_choice": {"type": "any"}}, "'tool_choice'"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "'tool_choice.name'"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "'tool_choice'"),
        ({"tools": [WEATHER], "tool_choice": "auto"}, "'tool_choice'"),
        (
            {**tool(input_schema={"properties": {"a": {"$ref": "#/x"}}}), "tool_choice": {"type": "any"}},
            "'tools[0].input_schema'",
        ),
        (thinking(), "'thinking.budget_tokens'"),
        (thinking(budget_tokens=1023), "'thinking.budget_tokens'"),
        (thinking(budget_tokens=1024, display="loud"), "'thinking.display'"),
        ({**thinking(budget_tokens=2000), "max_tokens": 2000}, "'max_tokens' (2000)"),
        ({"output_config": {"effort": "some"}}, "'output_config.effort'"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "'output_config.format.schema'"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"$ref": "#/x"}}}},
            "'output_config.format'",
        ),
        ({"metadata": {"user_id": "x" * 513}}, "'metadata.user_id'"),
        ({"service_tier": "best"}, "'service_tier'"),
        ({"mcp_servers": [{"type": "url"}]}, "'mcp_servers'"),
        ({"stream": "yes"}, "'stream'"),
    ],
)
async def test_bad_requests_are_named(server, wrong, named):
    """Also those of streams, of which none has begun."""
    answer = await server.post("/v1/messages", {**body(), "stream": True, **wrong}, headers=HEADERS)
    assert answer.status == 400, answer.body
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert named in answer.json["error"]["message"]
    assert not server.backend.requests


@pytest.mark.parametrize(
    "more",
    [
        {"mcp_servers": []},
        {"container": None},
        {"context_management": {"edits": []}},
        {"made_up": 5},
        {"speed": "fast"},
        {"inference_geo": "us"},
        {"tools": [{**NOW, "type": "custom", "cache_control": {"type": "ephemeral"}}]},
        {"tools": [{**WEATHER, "strict": True, "eager_input_streaming": True, "input_examples": [{"city": "Rome"}]}]},
        {"tools": [{**NOW, "name": "mcp__" + "a" * 123}]},
        {"thinking": {"type": "between_tools"}},
        {"tools": []},
        {"tool_choice": {"type": "auto"}},
        {"metadata": {}},
        {"chat_template_kwargs": {"function": 1}},
        {"output_config": {"task_budget": {"total": 5}}},
    ],
)
async def test_harmless_parameters_are_taken(server, more):
    answer = await ask(server, **more)
    assert answer.status == 200, answer.body


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/messages/count_tokens?beta=true"])
async def test_the_kinds_of_errors(server, path):
    for status, kind, how in (
        (404, "not_found_error", {"body": body(model="nothing")}),
        (413, "request_too_large", {"data": io.BytesIO(b" " * (MAX_BODY + 1))}),
        (400, "invalid_request_error", {"data": b"{"}),
        (415, "invalid_request_error", {"headers": {"Content-Encoding": "poem"}, "data": b"{}"}),
    ):
        answer = await server.post(path, **how)
        assert (answer.status, answer.json["error"]["type"]) == (status, kind)
        assert answer.headers["Request-Id"]
    async with server.http.get(f"{server.url}{path}") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert (await response.json())["error"]["type"] == "invalid_request_error"
    async with server.http.post(f"{server.url}/v1/messages/batches", data=b"{}") as response:
        assert (response.status, (await response.json())["error"]["type"]) == (404, "not_found_error")


async def test_a_prompt_that_is_too_long_is_told_as_agents_expect(server):
    """Claude Code reads the numbers, to leave out as many of the oldest messages as necessary."""
    answer = await ask(server, [{"role": "user", "content": "word " * 3000}])
    assert answer.status == 400
    said = answer.json["error"]["message"]
    found = re.match(r"prompt is too long: (\d+) tokens > 2048 maximum\. ", said)
    assert found, said
    assert int(found[1]) > 3000
    server.backend.refusal = ContextExceeded("There is no room.")
    assert (await ask(server)).json["error"]["message"] == "prompt is too long: There is no room."


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_the_clients_exceptions(server, stream):
    async with client(server) as official:
        for refusal, kind, name in (
            (Overloaded("Full."), anthropic.RateLimitError, "rate_limit_error"),
            (NotReady("Loading."), anthropic.InternalServerError, "overloaded_error"),
            (NoCapacity("No memory."), anthropic.InternalServerError, "overloaded_error"),
        ):
            server.backend.refusal = refusal
            with pytest.raises(kind, match=refusal.message) as raised:
                await official.messages.create(**body(), stream=stream)
            assert raised.value.body["error"]["type"] == name
            assert raised.value.request_id.startswith("req_")
            assert raised.value.response.headers["Retry-After"]
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            await official.messages.create(**{**body(), "max_tokens": -1}, stream=stream)


async def test_a_refusal_is_retried_by_the_client(server):
    server.backend.refusal = NotReady("Loading.")

    class Patient(anthropic.AsyncAnthropic):
        async def _sleep_for_retry(self, **_):
            server.backend.refusal = None

    async with Patient(base_url=server.url, api_key="any", max_retries=1) as official:
        assert (await official.messages.create(**body())).content[0].text == "Hello there!"
    assert len(server.backend.requests) == 2


async def test_keys(serve):
    server = await serve(api_keys=["sk-1"])
    answer = await ask(server)
    assert (answer.status, answer.json["error"]["type"]) == (401, "authentication_error")
    assert "'x-api-key: KEY'" in answer.json["error"]["message"]
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="sk-2", max_retries=0) as official:
        with pytest.raises(anthropic.AuthenticationError):
            await official.messages.create(**body())
    for given in ({"api_key": "sk-1"}, {"auth_token": "sk-1"}):
        async with anthropic.AsyncAnthropic(base_url=server.url, max_retries=0, **given) as official:
            assert (await official.messages.create(**body())).model == MODEL
            assert (await official.models.retrieve("plain")).id == "plain"


async def test_pages_in_browsers_may_send_its_headers(server):
    names = "x-api-key,anthropic-version,anthropic-dangerous-direct-browser-access,content-type"
    asked = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    for more in ({"Access-Control-Request-Headers": names}, {}):
        async with server.http.options(f"{server.url}/v1/messages", headers={**asked, **more}) as response:
            allowed = response.headers["Access-Control-Allow-Headers"].lower().split(", ")
            assert (response.status, set(names.split(",")) - set(allowed)) == (204, set())
    answer = await server.post("/v1/messages", body(), headers={**HEADERS, "Origin": "http://localhost:3000"})
    assert "Request-Id" in answer.headers["Access-Control-Expose-Headers"]
    refused = await server.post("/v1/messages", body(), headers={**HEADERS, "Origin": "https://example.com"})
    assert (refused.status, refused.json["error"]["type"]) == (403, "permission_error")


async def test_the_surface_of_an_error_is_the_requests(server):
    """Both surfaces have /v1/models; clients tell them apart by a header."""
    for headers, own in ((HEADERS, True), ({}, False)):
        async with server.http.get(f"{server.url}/v1/models/nothing", headers=headers) as response:
            assert response.status == 404
            assert ("type" in json.loads(await response.read())) == own


async def test_schemas_with_a_grammar(server):
    server.backend.say('{"city": "Rome"}')
    answer = await ask(server, tools=[{**WEATHER, "input_schema": {"$schema": "http://json-schema.org/x", **CITY}}])
    assert answer.status == 200
