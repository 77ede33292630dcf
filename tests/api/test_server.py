"""The listening port of a node."""

import asyncio
import json
import logging

import pytest

from api.app import create_app
from api.server import ApiServer


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
