"""A node without free file descriptors keeps running, and serves again as soon as there are some."""

import resource
import socket
import sys
from contextlib import ExitStack

import pytest

from node.host.descriptors import MAX_DESCRIPTORS
from tests.conftest import BIN, MODEL, Cluster, Node, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of another process can be set on Linux only"),
]

TRIED = (
    "new connections have to wait",
    "The look at this machine's addresses failed",
    "The search for models on the disk failed",
    "may open 3 files",
)
"""What a node without descriptors tells, each once it has tried what it does every few seconds."""


def limit(node: Node, most: int) -> None:
    _, hard = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (most, hard))


def test_no_descriptor_is_left_for_a_while(cluster: Cluster, stock: dict[str, str]) -> None:
    """Connections to both ports wait meanwhile."""
    few = ("sh", "-c", 'ulimit -Sn 256; exec "$0" "$@"', str(BIN / "node"))
    options = ("--model", MODEL, "--stages", "2")
    first = cluster.launch(*options, program=few).started()
    second = cluster.launch(*options).started()
    status = cluster.ready(first, second, stages=2)
    soft, hard = resource.prlimit(first.process.pid, resource.RLIMIT_NOFILE)
    assert soft == min(hard, MAX_DESCRIPTORS) > 256
    address = next(node["address"] for node in status["nodes"] if node["name"] == first.name)
    grpc = (first.host, int(address.rpartition(":")[2]))
    limit(first, 3)
    with ExitStack() as waiting:
        for place in [(first.host, first.port), grpc] * 20:
            waiting.enter_context(socket.create_connection(place, 5))
        until(lambda: all(line in first.written for line in TRIED), "everything was tried")
        assert first.process.poll() is None
        assert second.state_of(first) in ("ready", "idle")  # its ring may have moved, but it lives
        limit(first, soft)
        cluster.ready(first, second)
        assert first.chat("Hello").text == second.chat("Hello").text == stock["Hello"]
    assert "Traceback" not in first.written
    assert len(first.written.splitlines()) < 100
