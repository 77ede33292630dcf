"""Requests in the shapes that coding agents send, with all that surrounds the messages: each is answered, as a stream of one answer."""

import json

import pytest

from tests.api.test_chat import MODEL
from tests.api.test_responses import events_of

SYSTEM = {"role": "system", "content": "You are an agent."}
ASK = {"role": "user", "content": "What is in notes.txt?"}
READ = {
    "name": "read",
    "description": "Read a file.",
    "parameters": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"filePath": {"type": "string"}, "offset": {"type": "integer", "exclusiveMinimum": 0}},
        "required": ["filePath"],
        "additionalProperties": False,
    },
}
TOOL = {"type": "function", "function": READ}
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"filePath":"notes.txt"}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "Nothing yet."}
USAGE = {"include_usage": True}


def marked(text):
    return [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]


REQUESTS = {
    "opencode": {
        "max_tokens": 32000,
        "messages": [SYSTEM, ASK, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT],
        "tools": [TOOL],
        "tool_choice": "auto",
        "stream_options": USAGE,
    },
    "opencode with reasoning": {
        "messages": [
            SYSTEM,
            ASK,
            {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [CALL]},
            {**RESULT, "content": marked("Nothing yet.")},
        ],
        "tools": [TOOL],
        "tool_choice": "auto",
        "reasoning_effort": "medium",
        "temperature": 0.55,
        "top_p": 1,
        "stream_options": USAGE,
    },
    "aider": {
        "messages": [
            {**SYSTEM, "content": marked("You are an agent.")},
            ASK,
            {"role": "assistant", "content": marked("Ok.")},
            {"role": "user", "content": marked("I have added files.")},
            {"role": "assistant", "content": [{"type": "text", "text": "Ok."}]},
            ASK,
        ],
        "temperature": 0,
    },
    "Cline": {
        "messages": [
            {"role": "developer", "content": "You are an agent."},
            {"role": "user", "content": [{"type": "text", "text": "<task>Look.</task>"}, {"type": "text", "text": ""}]},
            {
                "role": "assistant",
                "tool_calls": [CALL],
                "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}],
            },
            RESULT,
            {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
        ],
        "temperature": 0,
        "reasoning_effort": "low",
        "tools": [TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "stream_options": USAGE,
    },
    "Continue": {
        "messages": [SYSTEM, ASK, {"role": "assistant", "content": " ", "tool_calls": [CALL]}, RESULT],
        "max_tokens": 4096,
        "stop": [],
        "tools": [{**TOOL, "function": {**READ, "strict": None}}],
        "prediction": {"type": "content", "content": "Nothing"},
    },
    "LiteLLM": {
        "messages": [
            {**SYSTEM, "cache_control": {"type": "ephemeral"}},
            ASK,
            {"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 0}], "function_call": None},
            {**RESULT, "name": "read"},
            {**ASK, "name": "me"},
        ],
        "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}, "function": {**READ, "strict": False}}],
        "tool_choice": {"type": "function", "function": {"name": "read"}},
        "max_completion_tokens": 100,
        "user": "me",
        "store": True,
        "metadata": {"session": "1"},
        "service_tier": "auto",
        "prompt_cache_key": "x",
        "verbosity": "low",
        "logit_bias": None,
        "functions": None,
        "n": 1,
        "stream_options": USAGE,
    },
    "tools are switched off": {
        "messages": [SYSTEM, ASK],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    },
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_requests_of_agents(server, name):
    server.backend.model.context = 4096
    server.backend.say('{"filePath": "notes.txt"}')
    body = {"model": MODEL, **REQUESTS[name]}
    response = await server.post("/v1/chat/completions", {**body, "stream": True})
    assert response.status == 200, response.body
    *events, last = response.events
    usage = last["usage"] if "stream_options" in body else None
    finish = (events if usage else [*events, last])[-1]["choices"][0]["finish_reason"]
    assert finish == ("tool_calls" if isinstance(body.get("tool_choice"), dict) else "stop")
    plain = await server.post("/v1/chat/completions", {**body, "stream_options": None})
    assert plain.json["usage"] == (usage or plain.json["usage"])
    tokenizer = server.backend.model.tokenizer
    prompt = b"".join(map(tokenizer.token_bytes, server.backend.requests[-1].prompt)).decode()
    assert "You are an agent." in prompt
    assert "ephemeral" not in prompt


async def test_a_request_of_codex(server):
    server.backend.model.context = 4096
    parameters = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
    tools = [
        {"type": "function", "name": "exec_command", "description": "", "strict": False, "parameters": parameters},
        {"type": "namespace", "name": "agents", "description": "", "tools": [{"type": "function", "name": "wait"}]},
        {"type": "web_search", "external_web_access": False},
    ]
    call = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "exec_command",
        "arguments": '{"cmd":"ls"}',
    }
    text = [{"type": "input_text", "text": "What is in notes.txt?"}]
    body = {
        "model": MODEL,
        "stream": True,
        "input": [
            {"type": "message", "id": "msg_1", "role": "developer", "content": text},
            {"type": "message", "id": "msg_2", "role": "user", "content": text},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
            call,
            {"type": "function_call_output", "call_id": "call_1", "output": "notes.txt"},
        ],
        "tools": tools,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a20966-e5b5-75c3-a82b-7c33421b2aa5",
        "client_metadata": {"session_id": "x", "turn": json.dumps({"id": 1})},
    }
    answer = await server.post("/v1/responses", body)
    assert answer.status == 200, answer.body
    assert events_of(answer)[-1]["type"] == "response.completed"
