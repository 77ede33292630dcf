"""Every failure is OpenAI's error object with the right status: as JSON before a stream begins, then as an event."""

import json
import re

import openai
import pytest

from api.app import answer_errors
from node.core.errors import NoCapacity, NotReady, Overloaded, RingLost

MODEL = "pippin/demo"
USER = [{"role": "user", "content": "Hello"}]
HUGE = 10**30


def tool(name, parameters=None):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


CUSTOM = {"type": "custom", "custom": {"name": "patch"}}


GRAMMAR = "tools[0].custom.format.grammar"


def custom(form):
    return {"type": "custom", "custom": {"name": "patch", "format": form}}


def custom_lark(text):
    return custom({"type": "grammar", "grammar": {"syntax": "lark", "definition": text}})


def required(*tools):
    return {"tools": list(tools), "tool_choice": "required"}


def json_schema(schema, **more):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 7}, "model"),
        ({"model": ""}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": ["Hello"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [*USER, {"role": "robot", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "poem", "text": "x"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "name": 5}]}, "messages[0].name"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": HUGE}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -1}, "top_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": HUGE}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"seed": "x"}, "seed"),
        ({"seed": HUGE}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": list("abcdefghijklmnopq")}, "stop"),
        ({"logit_bias": []}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (json_schema({"type": "poem"}), "response_format"),
        (json_schema({"$ref": "#/$defs/nothing"}), "response_format"),
        (json_schema({"not": {"type": "string"}}, strict=True), "response_format"),
        (json_schema(5), "response_format.json_schema.schema"),
        ({"response_format": {"type": "poem"}}, "response_format.type"),
        ({"response_format": "text"}, "response_format"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": [tool("f")] * 129}, "tools"),
        ({"tools": [tool("f"), tool("f")]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"tools": [{"type": "custom", "custom": {"name": "not a name"}}]}, "tools[0].custom.name"),
        ({"tools": [custom({"type": "poem"})]}, "tools[0].custom.format.type"),
        ({"tools": [custom({"type": "grammar"})]}, "tools[0].custom.format"),
        (
            {"tools": [custom({"type": "grammar", "grammar": {"syntax": "bnf", "definition": "a"}})]},
            f"{GRAMMAR}.syntax",
        ),
        ({"tools": [custom_lark("start: nothing")]}, f"{GRAMMAR}.definition"),
        (required(custom_lark("start: nothing")), f"{GRAMMAR}.definition"),
        ({"tools": [CUSTOM, CUSTOM]}, "tools"),
        ({"tools": [CUSTOM], "tool_choice": {"type": "function", "function": {"name": "patch"}}}, "tool_choice"),
        ({"tools": [tool("f"), tool("not a name")]}, "tools[1].function.name"),
        ({"tools": [tool("f", {"type": "array"})]}, "tools[0].function.parameters"),
        ({"tools": [tool("f", {"properties": []})]}, "tools[0].function.parameters"),
        (required(tool("f"), tool("g", {"properties": {"x": {"type": "poem"}}})), "tools[1].function.parameters"),
        (required(CUSTOM, tool("g", {"properties": {"x": {"type": "poem"}}})), "tools[1].function.parameters"),
        ({"tools": [CUSTOM, tool("f"), tool("not a name")]}, "tools[2].function.name"),
        ({"tools": [tool("f"), None]}, "tools[1]"),
        ({"tools": [tool("f"), CUSTOM], "tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tool_choice": {"type": "function"}, "tools": [tool("f")]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [tool("f")]}, "tool_choice"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"functions": [{"name": 5}]}, "functions[0].name"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
        ({"function_call": {"name": "g"}}, "function_call"),
        ({"stream_options": 5}, "stream_options"),
        ({"stream_options": {"include_usage": "x"}}, "stream_options.include_usage"),
        ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"prediction": "Hello"}, "prediction"),
        ({"prediction": []}, "prediction"),
        ({"prediction": {"content": "x"}}, "prediction.type"),
        ({"prediction": {"type": "poem", "content": "x"}}, "prediction.type"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"prediction": {"type": "content", "content": None}}, "prediction.content"),
        ({"prediction": {"type": "content", "content": 5}}, "prediction.content"),
        ({"prediction": {"type": "content", "content": [5.5]}}, "prediction.content"),
        ({"prediction": {"type": "content", "content": [{"type": "text"}]}}, "prediction.content"),
        ({"prediction": {"type": "content", "content": [{"type": "image_url"}]}}, "prediction.content"),
    ],
)
async def test_bad_values_are_refused_by_name(server, body, param, stream):
    response = await server.post(
        "/v1/chat/completions", {"model": MODEL, "messages": USER, "stream": stream, **body}
    )  # fmt: skip
    assert response.status == 400
    assert response.error["param"] == param
    assert response.error["type"] == "invalid_request_error"
    assert param.split(".")[0].split("[")[0] in response.error["message"]
    assert server.backend.requests == []


@pytest.mark.parametrize(
    ("kind", "what", "instead"),
    [
        ("video_url", "a video", "a description"),
        ("input_audio", "audio", "a transcript"),
        ("file", "a file", "its text"),
        ("input_file", "a file", "its text"),
    ],
)
async def test_the_refusal_of_a_medium_names_it_and_says_what_to_do(server, kind, what, instead):
    content = [{"type": kind, kind: {"url": "data:image/png;base64,iVBORw0KGgo="}}]
    user = {"role": "user", "content": content}
    chat = await server.post("/v1/chat/completions", {"model": MODEL, "messages": [user]})
    response = await server.post("/v1/responses", {"model": MODEL, "input": [user]})
    for refused in (chat, response):
        assert refused.status == 400
        assert refused.error["code"] == "unsupported"
        said = refused.error["message"]
        assert f"is {what} ({kind}), and models get only text and pictures here" in said
        assert f"send {instead}" in said
    assert server.backend.requests == []


async def test_a_wrong_stream_flag_and_lonely_stream_options(server):
    assert (await server.chat(stream="yes")).error["param"] == "stream"
    assert (await server.chat(stream_options={"include_usage": True})).error["param"] == "stream_options"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"  \n",
        b"{",
        b"nonsense",
        b"[]",
        b'"text"',
        b"null",
        b"5",
        b"\xff\xfe{}",
        b'{"model": "m\xe9"}',
        b'{"model": "m", "temperature": NaN}',
        b'{"model": "m", "temperature": Infinity}',
        b'{"model": "m", "temperature": -Infinity}',
        b'{"model": "m", "temperature": 1e999}',
        b'{"model": "m", "seed": ' + b"9" * 5000 + b"}",
        b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model": "m", "x": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"model": "m", "x": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}",
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d"}]}',
        b'{"model": "m", "x": {"\\udc00": 1}}',
        b"model=m&prompt=x",
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n',
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_bad_bodies_are_refused(server, path, data):
    response = await server.post(path, data=data)
    assert response.status == 400
    assert response.error["type"] == "invalid_request_error"
    assert len(response.error["message"]) < 300


async def test_an_unknown_model(server):
    for stream in (False, True):
        response = await server.chat(model="gpt-5", stream=stream)
        assert (response.status, response.error["code"]) == (404, "model_not_found")
        assert "gpt-5" in response.error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/page", 404),
        ("GET", "/page/none.js", 404),
        ("POST", "/", 405),
        ("GET", "/v2/models", 404),
        ("POST", "/v1/chat", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/models/pippin/demo", 405),
        ("PUT", "/health", 405),
    ],
)
async def test_unknown_paths_and_wrong_methods(server, method, path, status):
    async with server.http.request(method, f"{server.url}{path}") as response:
        assert response.status == status
        error = (await response.json())["error"]
        assert path in error["message"]
        assert ("Allow" in response.headers) == (status == 405)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "retry_after"),
    [
        (Overloaded("The queue is full."), 429, "2"),
        (NotReady("The model is loading."), 503, "2"),
        (NoCapacity("It needs 18.4 GB.", hint="Add a Mac."), 503, "30"),
    ],
)
async def test_a_refusal_has_its_status_also_for_a_stream(server, refusal, status, retry_after, stream):
    server.backend.refusal = refusal
    response = await server.chat(stream=stream)
    assert response.status == status
    assert response.headers["Retry-After"] == retry_after
    assert response.error["code"] == refusal.code
    assert response.error["message"] == str(refusal)
    async with server.client() as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model=MODEL, messages=USER, stream=stream)
    assert caught.value.status_code == status


async def test_an_error_within_a_stream_is_its_last_event(server):
    server.backend.failure = (2, RingLost("mini-2 went away."))
    response = await server.chat(stream=True)
    assert response.status == 200
    *chunks, last, end = response.body.decode().split("\n\n")
    assert end == ""
    assert chunks
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["code"], error["message"]) == ("ring_lost", "mini-2 went away.")
    assert b"[DONE]" not in response.body
    assert (await server.chat()).status == 503


async def test_a_defect_is_logged_and_not_shown(server, caplog):
    server.backend.failure = (1, ZeroDivisionError("secret detail"))
    plain = await server.chat()
    assert (plain.status, plain.error["type"], plain.error["code"]) == (500, "server_error", "internal_error")
    assert "ZeroDivisionError: secret detail" in caplog.text
    streamed = await server.chat(stream=True)
    assert b'"code":"internal_error"' in streamed.body
    for response in (plain, streamed):
        assert b"secret" not in response.body
        assert b"Traceback" not in response.body


async def test_a_failing_choice_ends_the_others(server):
    server.backend.failure = (3, RingLost("gone"))
    assert (await server.chat(n=4)).status == 503
    assert server.backend.running == 0


def test_only_the_middleware_catches_everything():
    from pathlib import Path

    api = Path(answer_errors.__code__.co_filename).parent
    broad = [
        path.name for path in api.glob("*.py") if re.search(r"except (Base)?Exception\b|except:", path.read_text())
    ]
    assert broad == ["app.py"]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"model=pippin&messages=hello"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"--x--\r\n"),
        ({"Content-Encoding": "rot13"}, b"{}"),
    ],
)
async def test_forms_and_unknown_encodings(server, headers, body):
    response = await server.post("/v1/chat/completions", data=body, headers={**headers, "Connection": "close"})
    assert response.status == 415
    assert response.error["code"] == "unsupported_media_type"
