"""HEAD on every route and every error, as bytes: a body after its headers would be taken for the next answer."""

import asyncio
import re

import pytest
from aiohttp import hdrs

from api.http.connections import ConnectionLimits
from node.core.errors import NodeNotFound

NEXT = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def heads(server, path, *headers):
    """Status and headers of HEAD and of GET. What follows the headers of the first must be the answer to a next request."""
    found = []
    for method, more in (("HEAD", NEXT), ("GET", b"")):
        close = () if more else ("Connection: close",)
        lines = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, *close, "", ""]).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(lines + more)
        async with asyncio.timeout(20):
            head = await reader.readuntil(b"\r\n\r\n")
            if more:
                rest = await reader.read()
                assert re.match(rb'HTTP/1.1 200 OK\r\n.*\r\n\r\n\{"version": [^{}]*\}$', rest, re.DOTALL), rest[:200]
        writer.close()
        found.append((int(head.split()[1]), dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])))
    return found


def paths(app):
    for resource in app.router.resources():
        if resource.canonical != "/{path}" and any(route.method == hdrs.METH_GET for route in resource):
            yield re.sub(r"\{[a-z]+\}", "plain", resource.canonical)


async def test_every_route(server, backend):
    backend.recent.write("a line\n")
    found = list(paths(server.app))
    assert {"/", "/cluster/logs", "/metrics", "/v1/models/plain", "/api/tags"} < set(found)
    for path in [*found, "/cluster/logs?follow=true", "/cluster/logs?node=mini-2&follow=true"]:
        (status, headers), (expected, others) = await heads(server, path)
        assert status == expected, path
        assert headers.get(b"Content-Type") == others.get(b"Content-Type"), path
        if path != "/metrics":  # which counts the requests before it
            assert headers.get(b"Content-Length") == others.get(b"Content-Length"), path


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/nowhere", (), 404),
        ("/v1/models/none", (), 404),
        ("/v1/chat/completions", (), 405),
        ("/cluster/logs?lines=x", (), 400),
        ("/cluster/logs?node=nobody", (), 404),
        ("/cluster/logs?node=nobody&follow=true", (), 404),
        ("/health", ("Origin: https://evil.example",), 403),
        ("/nowhere", ("Expect: tea",), 404),
    ],
)
async def test_errors(server, backend, path, headers, status):
    if "nobody" in path:
        backend.refusal = NodeNotFound("No node is named so.", param="node")
    (found, _), (expected, _) = await heads(server, path, *headers)
    assert found == expected == status


@pytest.mark.parametrize(("path", "status", "body"), [("/v1/models", 401, b""), ("/health", 200, b"12345")])
async def test_a_key_that_is_missing_and_a_body(serve, path, status, body):
    server = await serve(api_keys=["sk-a-key"])
    lines = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    answer = await server.raw(lines.encode() + body)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.endswith(b"\r\n\r\n")
    assert answer.count(b"\r\n\r\n") == 1


@pytest.mark.parametrize(
    ("rest", "status"), [(b"X: " + b"a" * 9000 + b"\r\n\r\n", 400), (b"bad\x00 header\r\n\r\n", 400), (b"", 431)]
)
async def test_requests_that_are_none(server, rest, status):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"HEAD /health HTTP/1.1\r\n" + rest)
    for number in range(0 if rest else 65):
        writer.write(b"X-%d: %b\r\n" % (number, b"x" * 1003))
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert body == b""
    writer.close()


async def test_a_server_without_a_place(serve, backend):
    server = await serve(limits=ConnectionLimits(total=1))
    backend.pause_at = 0
    chat = asyncio.create_task(server.chat())
    await backend.paused.wait()
    answer = await server.raw(b"HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert answer.endswith(b"\r\n\r\n")
    backend.go_on.set()
    assert (await chat).status == 200
