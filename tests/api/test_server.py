"""The listening port of a node."""

import asyncio
import json
import logging
import socket
from contextlib import suppress

import pytest

from api.app import create_app
from api.http.connections import ConnectionLimits
from api.http.server import ApiServer


@pytest.fixture
async def server(backend):
    server = ApiServer(["127.0.0.1"], 0)
    await server.start(create_app(backend))
    yield server
    await server.stop()


@pytest.fixture
def port(server):
    return server.port


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"\0" * 100 + b"\r\n\r\n",
        b"GET /\xff\x00 HTTP/9\r\n\r\n",
    ],
)
async def test_who_speaks_no_http_leaves_no_traceback(port, noise, caplog):
    caplog.set_level(logging.INFO)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(noise)
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.0 400 ")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)
    writer.close()
    await writer.wait_closed()
    assert caplog.text == ""


async def test_what_comes_after_the_end_has_begun_is_told_so_until_the_node_is_gone(server):
    await server.finish(1)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body)["error"]["code"] == "shutting_down"
    writer.close()
    await writer.wait_closed()


# --- readers that take little or nothing ---


@pytest.fixture
async def hasty(backend):
    """A server that waits 0.3 s for its readers, and has small socket buffers."""
    server = ApiServer(["127.0.0.1"], 0, ConnectionLimits(stall_s=0.3))
    server._sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    await server.start(create_app(backend))
    yield server
    await server.stop()


async def asking(server, body):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", server.port))
    data = json.dumps({"model": "pippin/demo", "prompt": "x", **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    await loop.sock_sendall(client, head.encode() + data)
    return client


@pytest.mark.parametrize(
    ("stream", "tokens"), [(True, 100), (True, 500), (True, 100_000), (False, 30_000), (False, 300_000)]
)
async def test_a_reader_that_takes_nothing_is_given_up(hasty, backend, caplog, stream, tokens):
    """In the middle of an answer, and after the whole answer was made."""
    backend.model.context = 1_000_000
    backend.script = lambda request: [300] * tokens
    body = {"max_tokens": tokens, "stream": True} if stream else {"prompt": [300] * tokens, "echo": True}
    with await asking(hasty, body):
        await backend.asked.wait()
        async with asyncio.timeout(20):
            while hasty._runner.server.connections:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.02)
    assert backend.running == 0
    assert caplog.text == ""


async def test_a_reader_that_takes_next_to_nothing_is_given_up(hasty, backend, monkeypatch):
    monkeypatch.setattr("api.http.reading_pace.READ_RATE", 2**40)
    backend.model.context = 1_000_000
    backend.script = lambda request: [300] * 100_000
    with await asking(hasty, {"max_tokens": 100_000, "stream": True}) as client, suppress(ConnectionResetError):
        while await asyncio.get_running_loop().sock_recv(client, 64):  # noqa: ASYNC110 - it reads slowly
            await asyncio.sleep(0.01)
    await backend.idle.wait()


async def test_a_slow_reader_gets_it_all(hasty, backend):
    backend.script = lambda request: [300] * 300
    with await asking(hasty, {"max_tokens": 300, "stream": True}) as client:
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            part = await asyncio.get_running_loop().sock_recv(client, 4096)
            assert part  # else the connection was closed
            answer += part
            await asyncio.sleep(0.05)
    assert answer.count(b"data: {") == 300
