"""Requests in the shapes of programs that are not installed here, and what each program reads of the answer.

The shapes are those of the programs' sources: goose, Continue, AnythingLLM, LibreChat, n8n, Home Assistant, Copilot for Obsidian, Zed, VS
Code's Copilot, HELM, and the tests of SGLang and LocalAI.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.api.conftest import MODEL
from tests.text.test_fim import FAMILIES, make

NAME = f"{MODEL}:latest"
"""As the lists of Ollama's API write it, from which programs take it."""
SAID = "Hello there!"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather", "parameters": CITY}}
SYSTEM, USER = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}
USAGE = {"include_usage": True}
Reads = Mapping[str, type]
"""Paths of what a program reads, with slashes as keys have points, and its type; `*` is each member of a list."""

MODELS: Reads = {"models/*/name": str, "models/*/model": str}
LINE: Reads = {"model": str, "created_at": str, "message/role": str, "message/content": str, "done": bool}
COUNTS: Reads = {"prompt_eval_count": int, "eval_count": int, "total_duration": int, "eval_duration": int}
CALLED: Reads = {"message/tool_calls/*/function/name": str, "message/tool_calls/*/function/arguments": dict}
CHUNK: Reads = {"id": str, "model": str, "object": str, "created": int, "choices": list}
USED: Reads = {"usage/prompt_tokens": int, "usage/completion_tokens": int, "usage/total_tokens": int}
DELTAS: Reads = {
    "choices/*/delta/tool_calls/*/index": int,
    "choices/*/delta/tool_calls/*/function/arguments": str,
}


@dataclass
class Exchange:
    program: str
    path: str
    body: Any = None
    """None: GET."""
    says: str = SAID
    """What the model writes."""
    whole: Reads = field(default_factory=dict)
    """Read of a plain answer."""
    each: Reads = field(default_factory=dict)
    """Read of each event or line of a stream."""
    last: Reads = field(default_factory=dict)
    """Read of its last one."""
    somewhere: Reads = field(default_factory=dict)
    """Read of at least one of them."""
    text: str = ""
    """Path of the text, which is SAID altogether."""


def ollama(program: str, *messages: Any, **more: Any) -> dict[str, Any]:
    """Fields of an exchange with /api/chat."""
    return {"program": program, "path": "/api/chat", "body": {"model": NAME, "messages": [*messages], **more}}


def streamed(**more: Any) -> dict[str, Any]:
    return {"each": LINE, "last": {**COUNTS, "done_reason": str}, "text": "message/content", **more}


def openai(program: str, *messages: Any, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [*messages], **more}
    return {"program": program, "path": "/v1/chat/completions", "body": body}


HELM = {
    "temperature": 0.0,
    "top_p": 1,
    "n": 2,
    "stop": None,
    "max_tokens": 100,
    "presence_penalty": 0,
    "frequency_penalty": 0,
}
GIVEN_BACK = {"name": "weather", "arguments": '{"id":"c"}'}
CALLED_BEFORE = [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}]
ZED = {
    "keep_alive": -1,
    "options": {"num_ctx": 4096, "num_predict": None, "stop": [], "temperature": 1.0, "top_p": None},
    "think": False,
}
COPILOT = {"temperature": 0.1, "top_p": 1, "max_tokens": 4096, "n": 1, "stream": True, "stream_options": USAGE}
EXCHANGES = [
    Exchange("goose", "/api/tags", whole=MODELS),
    Exchange(
        **openai(
            *("goose", SYSTEM, USER),
            stream=True,
            stream_options=USAGE,
            tools=[TOOL],
            max_tokens=4096,
            options={"num_ctx": 8192},
        ),
        each=CHUNK,
        last=USED,
        text="choices/*/delta/content",
    ),
    Exchange(
        **openai("goose", SYSTEM, USER, stream=True, stream_options=USAGE, tools=[TOOL]),
        says=CALL,
        each=CHUNK,
        somewhere={**DELTAS, "choices/*/delta/tool_calls/*/id": str, "choices/*/delta/tool_calls/*/function/name": str},
        last=USED,
    ),
    Exchange(
        **ollama(
            *("Continue", SYSTEM, USER),
            options={"temperature": 0.5, "num_predict": 2048, "stop": ["<x>"], "num_ctx": 8192, "mirostat": 0},
            keep_alive=1800,
            stream=True,
        ),
        **streamed(),
    ),
    Exchange(
        **ollama("Continue", SYSTEM, USER, options={"num_ctx": 8192}, keep_alive=1800, stream=False, tools=[TOOL]),
        says=CALL,
        whole={"message/role": str, "message/content": str, **CALLED},
    ),
    Exchange("AnythingLLM", "/api/tags", whole=MODELS),
    Exchange(
        **ollama(
            *("AnythingLLM", SYSTEM, USER),
            stream=True,
            keep_alive=300,
            options={"temperature": 0.7, "use_mlock": True, "num_ctx": 4096},
        ),
        **streamed(),
    ),
    Exchange(
        **ollama(
            "AnythingLLM", SYSTEM, USER, stream=False, keep_alive=300, options={"temperature": 0.7, "useMLock": True}
        ),
        whole={"message/content": str, **COUNTS},
    ),
    Exchange(
        *("AnythingLLM", "/api/embed"),
        {"model": NAME, "input": ["one", "two"], "options": {"num_ctx": 512}},
        whole={"embeddings/*": list},
    ),
    Exchange(
        **openai("AnythingLLM", SYSTEM, USER, stream=True, temperature=0.7, max_tokens=1024),
        each=CHUNK,
        text="choices/*/delta/content",
    ),
    Exchange("LibreChat", "/v1/models", whole={"data/*/id": str}),
    Exchange("LibreChat", "/api/tags", whole=MODELS),
    Exchange(
        **openai(
            *("LibreChat", SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}),
            stream=True,
            stream_options=USAGE,
            user="65f0c0ffee",
            temperature=1,
            top_p=1,
            presence_penalty=0,
            frequency_penalty=0,
        ),
        each=CHUNK,
        last=USED,
        text="choices/*/delta/content",
    ),
    Exchange(
        **ollama("LibreChat", SYSTEM, USER, stream=True, temperature=1, top_p=1, seed=None, stop=["x"], num_ctx=4096),
        **streamed(),
    ),
    Exchange("n8n", "/api/tags", whole=MODELS),
    Exchange(
        **ollama(
            *("n8n", {**USER, "images": []}),
            stream=True,
            keep_alive="5m",
            options={"temperature": 0.7, "top_k": -1, "top_p": 1, "numCtx": 2048},
        ),
        **streamed(),
    ),
    Exchange(
        **ollama("n8n", USER, stream=True, format="json", options={}, tools=[TOOL], keep_alive="5m"),
        says='{"city": "Rome"}',
        each=LINE,
        last=COUNTS,
    ),
    Exchange(
        **openai(
            *("n8n", USER),
            {
                "role": "assistant",
                "content": [],
                "tool_calls": [{"id": "c", "type": "function", "function": GIVEN_BACK}],
            },
            {"role": "tool", "content": '""', "tool_call_id": "c"},
            stream=False,
            tools=[{"type": "function", "function": {**TOOL["function"], "strict": False}}],
        ),
        whole={"choices/*/message/content": str, **USED},
    ),
    Exchange("Home Assistant", "/api/tags", whole=MODELS),
    Exchange(
        **ollama(
            *("Home Assistant", SYSTEM, USER),
            stream=True,
            tools=[TOOL],
            keep_alive=-1,
            options={"num_ctx": 8192},
            think=False,
        ),
        says=CALL,
        each=LINE,
        somewhere=CALLED,
    ),
    Exchange(
        **ollama(
            *("Home Assistant", SYSTEM, USER, {"role": "assistant", "content": None, "tool_calls": CALLED_BEFORE}),
            {"role": "tool", "content": '{"data": {"sky": "clear"}, "error": null}'},
            stream=True,
            tools=[TOOL],
            keep_alive="60s",
            options={"num_ctx": 8192},
            think=None,
        ),
        **streamed(),
    ),
    Exchange(
        **ollama("Home Assistant", SYSTEM, USER, stream=True, format=CITY, keep_alive=-1, options={"num_ctx": 8192}),
        says='{"city": "Rome"}',
        each=LINE,
    ),
    Exchange(
        **ollama(
            *("Copilot for Obsidian", SYSTEM, USER, {"role": "assistant", "content": ""}),
            {"role": "tool", "content": "clear", "tool_name": "unknown"},
            stream=True,
            options={"temperature": 0.1, "top_p": 0.9, "num_predict": 4000},
        ),
        **streamed(),
    ),
    Exchange(
        "Zed",
        "/api/tags",
        whole={
            **dict.fromkeys(("models/*/name", "models/*/modified_at", "models/*/digest"), str),
            "models/*/size": int,
            **{
                f"models/*/details/{name}": str for name in ("format", "family", "parameter_size", "quantization_level")
            },
        },
    ),
    Exchange("Zed", "/api/show", {"model": NAME}, whole={"capabilities/*": str}),
    Exchange(**ollama("Zed", SYSTEM, USER, stream=True, tools=[], **ZED), **streamed()),
    Exchange(
        **ollama(
            *("Zed", SYSTEM, USER, {"role": "assistant", "content": "", "tool_calls": CALLED_BEFORE, "thinking": None}),
            *({"role": "tool", "tool_name": "weather", "content": "clear"}, USER),
            **{"stream": True, "tools": [TOOL], **ZED},
        ),
        says=CALL,
        each=LINE,
        somewhere=CALLED,
        last=COUNTS,
    ),
    Exchange("VS Code", "/api/version", whole={"version": str}),
    Exchange("VS Code", "/api/tags", whole=MODELS),
    Exchange(
        *("VS Code", "/api/show", {"model": NAME}),
        whole={
            "template": str,
            "capabilities/*": str,
            "details/family": str,
            "model_info/general.basename": str,
            "model_info/llama.context_length": int,
        },
    ),
    Exchange(
        **openai("VS Code", SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}, **COPILOT),
        each=CHUNK,
        last=USED,
        text="choices/*/delta/content",
    ),
    Exchange(
        **openai("VS Code", SYSTEM, USER, tools=[TOOL], tool_choice="auto", **COPILOT),
        says=CALL,
        each=CHUNK,
        somewhere={**DELTAS, "choices/*/delta/tool_calls/*/function/name": str},
    ),
    Exchange(
        **openai("HELM", USER, **HELM),
        whole={"choices/*/message/content": str, "choices/*/finish_reason": str, **USED},
    ),
    Exchange(
        **openai(
            *("HELM", USER),
            **HELM,
            response_format={
                "type": "json_schema",
                "json_schema": {
                    "name": "response",
                    "description": "",
                    "schema": {**CITY, "additionalProperties": False},
                    "strict": True,
                },
            },
        ),
        says='{"city": "Rome"}',
        whole={"choices/*/message/content": str},
    ),
    Exchange("HELM", "/v1/embeddings", {"model": MODEL, "input": "one"}, whole={"data/*/embedding/*": float}),
    Exchange(
        "SGLang's tests",
        "/v1/completions",
        {
            "model": MODEL,
            "prompt": ["The capital of France is"] * 2,
            "temperature": 0,
            "max_tokens": 32,
            "echo": True,
            "logprobs": None,
            "n": 2,
        },
        whole={"choices/*/text": str, "created": int, **USED},
    ),
    Exchange(
        "SGLang's tests",
        "/v1/responses",
        {
            "model": MODEL,
            "input": "The capital of France is",
            "temperature": 0.0,
            "top_p": 1.0,
            "store": True,
            "max_output_tokens": 32,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "truncation": "disabled",
        },
        whole={"object": str, "created_at": int, "status": str, "output/*/type": str, "usage/total_tokens": int},
    ),
    Exchange(
        **openai("LocalAI's tests", USER, response_format={"type": "json_object"}),
        says='{"name": "Ant", "legs": 6}',
        whole={"choices/*/message/content": str},
    ),
    Exchange(
        "LocalAI's tests",
        *("/v1/embeddings", {"model": MODEL, "input": ["doc", "cat"]}),
        whole={"data/*/embedding/*": float},
    ),
]


def found(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """What is at a path; nothing where it does not lead on."""
    if not path:
        yield value
    elif path[0] == "*" and isinstance(value, list):
        for member in value:
            yield from found(member, path[1:])
    elif isinstance(value, dict) and path[0] in value:
        yield from found(value[path[0]], path[1:])


def read(answers: Sequence[Any], reads: Reads, *, every: bool = True) -> None:
    """Check that the answers, or one of them, have what is read."""
    for path, kind in reads.items():
        values = [list(found(answer, path.split("/"))) for answer in answers]
        assert all(values) if every else any(values), f"there is no {path}"
        assert all(type(value) is kind for each in values for value in each), f"{path} is no {kind.__name__}"


def events_of(body: bytes, content_type: str) -> list[Any]:
    lines = body.decode().split("\n")
    if content_type.startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in lines if line.startswith("data: ") and "[DONE]" not in line]
    return [json.loads(line) for line in lines if line]


@pytest.mark.parametrize(
    "exchange", EXCHANGES, ids=[f"{number}-{each.program}-{each.path}" for number, each in enumerate(EXCHANGES)]
)
async def test_a_program_reads_what_it_needs(server, exchange):
    server.backend.say(exchange.says)
    if exchange.body is None:
        async with server.http.get(server.url + exchange.path) as response:
            status, kind, body = response.status, response.content_type, await response.read()
    else:
        answer = await server.post(exchange.path, exchange.body)
        status, kind, body = answer.status, answer.headers["Content-Type"], answer.body
    assert status == 200, body
    if exchange.whole:
        read([json.loads(body)], exchange.whole)
        return
    events = events_of(body, kind)
    read(events, exchange.each)
    read(events[-1:], exchange.last)
    read(events, exchange.somewhere, every=False)
    if exchange.text:
        assert "".join(piece for event in events for piece in found(event, exchange.text.split("/"))) == SAID


async def test_continue_reads_the_parameters_and_fills_in(server, tmp_path):
    """It looks for the place of a suffix in the template, and takes each line of the parameters apart."""
    server.backend.model.tokenizer = make(tmp_path, FAMILIES["qwen"][0], bos=False)
    server.backend.fills_in = True
    server.backend.say(SAID)
    shown = (await server.post("/api/show", {"name": NAME})).json
    assert all(re.fullmatch(r"(\S+)\s+(\".*\"|\S+)", line) for line in shown["parameters"].split("\n"))
    assert re.search(r"^num_ctx\s+[0-9]+$", shown["parameters"], re.MULTILINE)
    assert ".Suffix" in shown["template"]
    assert "insert" in shown["capabilities"]
    options = {"temperature": 0.01, "num_predict": 256, "stop": ["\n\n", "<|endoftext|>"], "num_ctx": 8192}
    body = {"model": NAME, "prompt": "def f(", "suffix": "):\n", "options": options, "keep_alive": 1800, "stream": True}
    answer = await server.post("/api/generate", body)
    lines = events_of(answer.body, answer.headers["Content-Type"])
    read(lines, {"response": str, "done": bool})
    assert "".join(line["response"] for line in lines) == SAID
    assert server.backend.requests[-1].prompt == tuple(server.backend.model.tokenizer.encode_fim("def f(", "):\n"))


async def test_vs_code_takes_the_version_for_new_enough(server):
    async with server.http.get(f"{server.url}/api/version") as response:
        version = (await response.json())["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4]
