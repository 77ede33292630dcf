"""Real nodes: `--allow-model`, and equal shares for clients."""

import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.conftest import MODEL, Cluster, Node, chat_body, running_cluster

pytestmark = pytest.mark.slow

GREEDY = 40


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("pair")) as cluster:
        options = ("--stages", "2", "--max-batch", "2", "--allow-model", "nothing/*")
        nodes = [cluster.launch("--model", MODEL, *options), cluster.launch(*options)]
        cluster.ready(*[node.started() for node in nodes], stages=2)
        yield cluster


def test_requests_have_only_allowed_models_loaded(pair: Cluster) -> None:
    for node in pair.nodes:
        answer = node.post("/v1/chat/completions", chat_body("Hello", model="someone/other"))
        assert (answer.status, answer.error["code"]) == (403, "model_not_allowed")
        assert "--allow-model" in answer.error["message"]
        assert [model["id"] for model in node.get("/v1/models").json["data"]] == [MODEL]
        assert node.chat("Hello").status == 200, "one that a node preloads is allowed"


def from_elsewhere(address: tuple[str, int], timeout: float, _: object = None) -> socket.socket:
    return socket.create_connection(address, timeout, ("127.0.0.2", 0))


@contextlib.contextmanager
def streams(node: Node, count: int) -> Iterator[list[socket.socket]]:
    """Open `count` long answers at once; nothing reads them."""
    body = json.dumps(chat_body("Tell me a story.", stream=True, max_tokens=200, ignore_eos=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_connection((node.host, node.port))) for _ in range(count)]
        for each in found:
            each.sendall(head.encode() + body)
        for each in found[:2]:
            assert each.recv(1).startswith(b"H"), "it has begun, or waits with comments"
        yield found


def ended(stream: socket.socket) -> bool:
    stream.setblocking(False)
    told = b""
    with contextlib.suppress(BlockingIOError):
        while data := stream.recv(1 << 16):
            told += data
    return b"[DONE]" in told


@pytest.mark.skipif(sys.platform != "linux", reason="has one loopback address only")
def test_a_greedy_client_keeps_nobody_waiting(pair: Cluster) -> None:
    """Through the driver itself, and through a gateway on another node."""
    for node in pair.nodes:
        with streams(node, GREEDY) as asked:
            assert replace(node, connect=from_elsewhere).chat("Hello", max_tokens=5).status == 200
            assert sum(map(ended, asked)) < GREEDY / 2
