"""HTTP requests that no client should send: invalid by schema, by JSON or by HTTP, or of absurd sizes."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import wire_http
from drawing import batches
from hypothesis import strategies as st
from target import Target

from api.http.limits import MAX_WAITING
from tests.api.fuzz import GOOD, JSON_PIECES, Request, answers_to, bodies, damaged, pipelines, raw_requests, written
from tests.conftest import MODEL, Node

PATHS = sorted(GOOD)
QUIET_S = 0.5
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW")
TARGETS = (
    *("/", "/v1", "/v1/models", "/v1/models/x", "/v1/models/a%2Fb", "/models/%00", "/health", "/metrics", "/version"),
    *("/v1/responses/x", "/v1/responses/x/input_items?limit=x&after=%ff", "/v1/responses/x/cancel", "/cluster/status"),
    *("/cluster/nodes/x/drain", "/v1/chat/completions?stream=true", "//", "/../etc/passwd", "/v1/%2e%2e", "/a" * 2000),
)
HEADERS = (
    *("Origin: https://evil.example", "Origin: null", "Host: evil.example", "Authorization: Bearer \x7f", "Expect: x"),
    *("Content-Encoding: gzip", "Content-Encoding: br", "Transfer-Encoding: chunked", "Accept: */*", "Range: bytes=0-"),
    *("X-Forwarded-For: 8.8.8.8", "Upgrade: websocket", "Connection: upgrade", "Content-Type: text/plain"),
)
Sent = tuple[str, bytes | list[Request]]
"""Kind of an attack, and the bytes or requests that are sent on one connection."""
SIZES = (10, 300, 5_000, 40_000, 200_000)


async def attack(target: Target, count: int, seed: int) -> None:
    for batch in batches(_requests(), count, seed):
        await target.each("request", batch, lambda node, sent: _send(target, node, sent))


async def _send(target: Target, node: Node, sent: Sent) -> str:
    kind, data = sent
    if not isinstance(data, bytes):
        return await _send_at_once(target, node, data)
    quiet_s = QUIET_S if kind == "bytes" else None
    status, body = await wire_http.exchange(node.port, data, quiet_s)
    if not status:
        if kind != "bytes":
            target.findings.complain(f"request: no answer to {kind} {data[:300]!r}")
        return f"{kind}: no answer"
    return f"{kind}: {target.check_answer('request', (kind, data[:600]), status, body)}"


async def _send_at_once(target: Target, node: Node, requests: list[Request]) -> str:
    """Each request has one answer, and HEAD's has no body: else a proxy would take its rest for the next answer."""
    whole = b"".join(data for _, data in requests)
    answer = await wire_http.received(node.port, whole)
    try:
        answers = answers_to([method for method, _ in requests], answer)
    except ValueError as error:
        target.findings.complain(f"request: {error} to {whole[:600]!r}")
        return "pipeline: out of step"
    if not answers and len(requests) <= MAX_WAITING:  # the connection is closed when more wait
        target.findings.complain(f"request: no answer to pipeline {whole[:300]!r}")
    for status, body in answers:
        target.check_answer("request", ("pipeline", whole[:600]), status, body)
    return f"pipeline: {'all' if len(answers) == len(requests) else 'some'} answered"


def _requests() -> st.SearchStrategy[Sent]:
    one = st.integers(0, 99).flatmap(_kind)
    several = st.sampled_from(PATHS).flatmap(lambda path: pipelines(path, MODEL)).map(lambda sent: ("pipeline", sent))
    return st.integers(0, 19).flatmap(lambda number: one if number else several)


def _kind(number: int) -> st.SearchStrategy[tuple[str, bytes]]:
    paths = st.sampled_from(PATHS)
    if number < 50:
        posts = paths.flatmap(lambda path: bodies(path, MODEL).map(lambda body: wire_http.post(path, body)))
        return posts.map(lambda data: ("schema", data))
    if number < 65:
        return paths.flatmap(_damaged_json).map(lambda data: ("json", data))
    if number < 80:
        return paths.flatmap(lambda path: raw_requests(path, MODEL)).map(lambda data: ("bytes", data))
    if number < 92:
        headers = st.lists(st.sampled_from(HEADERS), max_size=3)
        built = st.builds(_request, st.sampled_from(METHODS), st.sampled_from(TARGETS), headers)
        return built.map(lambda data: ("bytes", data))
    if number < 98:
        sized = st.builds(_absurd, paths, st.sampled_from([*ABSURD, "depth"]), st.sampled_from(SIZES))
        return sized.map(lambda data: ("size", data))
    packed = st.builds(_packed, st.sampled_from(["gzip", "deflate"]), st.sampled_from(SIZES), st.integers(0, 60))
    return packed.map(lambda data: ("packed", data))


def _damaged_json(path: str) -> st.SearchStrategy[bytes]:
    good: bytes = written({"model": MODEL, **GOOD[path], "stream": True})
    around: st.SearchStrategy[bytes] = damaged(good, JSON_PIECES)
    return around.map(lambda body: wire_http.request("POST", path, body))


def _request(method: str, path: str, headers: list[str]) -> bytes:
    return wire_http.request(method, path, written({"model": MODEL, **GOOD[PATHS[0]]}), *headers)


def _said(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ABSURD: dict[str, Callable[[int], dict[str, Any]]] = {
    "messages of a wrong type": lambda n: {"messages": _said(5) * n, "input": _said(5) * n},
    "messages": lambda n: {"messages": _said("a") * n, "input": _said("a") * n},
    "content": lambda n: {"messages": _said("a" * n), "input": "a" * n, "prompt": "a" * n},
    "content without blanks": lambda n: {"messages": _said("é" * n), "input": "é" * n, "prompt": "é" * n},
    "parts": lambda n: {"messages": _said([{"type": "text", "text": "a"}] * n)},
    "tool calls": lambda n: {"messages": [{"role": "assistant", "tool_calls": [CALL] * n}]},
    "tools": lambda n: {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(n)]},
    "prompts": lambda n: {"prompt": [[1]] * n, "input": [[1]] * n},
    "tokens": lambda n: {"prompt": [1] * n, "input": [1] * n},
    "stop": lambda n: {"stop": ["ab" * (n // 2)] * 4},
    "biases": lambda n: {"logit_bias": {str(i): 1 for i in range(n)}},
    "keys": lambda n: {f"key{i}": i for i in range(n)},
    "an enum": lambda n: {"response_format": _format({"enum": list(range(n))})},
    "adapter": lambda n: {"adapter": {"templates": {str(i): {"start": "a"} for i in range(n)}}},
    "template arguments": lambda n: {"chat_template_kwargs": {f"k{i}": i for i in range(n)}},
    "metadata": lambda n: {"metadata": {f"k{i}": "v" for i in range(n)}},
    "texts": lambda n: dict.fromkeys(("user", "suffix", "instructions"), "a" * n),
    "a model's name": lambda n: {"model": "a/" * n},
    "lists": lambda n: dict.fromkeys(("include", "stop", "modalities"), ["a"] * n),
}
"""Bodies with far too many of something, by its name."""


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def _absurd(path: str, what: str, size: int) -> bytes:
    if what == "depth":
        return wire_http.request("POST", path, b'{"messages":' + b"[" * size + b"]" * size + b"}")
    return wire_http.post(path, {"model": MODEL, **GOOD[path], **ABSURD[what](size)})


def _packed(encoding: str, size: int, damage: int) -> bytes:
    """Return a compressed body, mostly one byte repeated; some are damaged."""
    plain = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "a" * size * 100}]}).encode()
    data = gzip.compress(plain, 1) if encoding == "gzip" else zlib.compress(plain, 1)
    data = data[: -damage or None] if damage > 30 else data[:damage] + bytes(damage) + data[damage:]
    return wire_http.request("POST", PATHS[0], data, f"Content-Encoding: {encoding}")
