"""The listening port of a node."""

import asyncio
import json
import logging

import pytest

from api.app import create_app
from api.server import ApiServer


@pytest.fixture
async def port(backend):
    server = ApiServer(["127.0.0.1"], 0)
    await server.start(create_app(backend))
    yield server.port
    await server.stop(1)


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
