"""Clients of a real node that hang up: what they asked for ends with them."""

import json
import socket

import pytest

from tests.conftest import Cluster, chat_body, until

pytestmark = pytest.mark.slow

REQUESTS, TOKENS = 4, 1500
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n" + b" " * 1_000_000


@pytest.mark.parametrize("behind", [b"", GET * 40, LARGE], ids=["nothing", "many requests", "a large one"])
def test_answers_end_with_their_client_whatever_it_sent_behind_them(three: Cluster, behind: bytes) -> None:
    node = three.nodes[0]
    before = node.answered()
    body = json.dumps(chat_body("Count from 1 to 100", max_tokens=TOKENS, ignore_eos=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    clients = [socket.create_connection((node.host, node.port)) for _ in range(REQUESTS)]
    for client in clients:
        client.sendall(head + body)
    until(lambda: node.running() == REQUESTS, "all of them run")
    for client in clients:
        client.sendall(behind)
        client.close()
    until(lambda: node.running() == 0, "none of them runs")
    assert node.answered() - before < REQUESTS * TOKENS / 2, "they ended before they were complete"
