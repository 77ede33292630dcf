"""A node without free file descriptors keeps running, and serves again as soon as there are some."""

import resource
import socket
import sys
import time
from contextlib import ExitStack

import pytest

from node.host.descriptors import MAX_DESCRIPTORS
from tests.conftest import BIN, MODEL, Cluster, Node, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of another process can be set on Linux only"),
]

ALL_LOOKED_S = 12.0
"""Longer than a node's intervals for looking at its disk, its interfaces and its peers' addresses."""


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
        began = time.monotonic()
        until(lambda: time.monotonic() > began + ALL_LOOKED_S, "everything was tried")
        assert first.process.poll() is None
        assert second.state_of(first) in ("ready", "idle")  # its ring may have moved, but it lives
        limit(first, soft)
        cluster.ready(first, second)
        assert first.chat("Hello").text == second.chat("Hello").text == stock["Hello"]
    assert "Traceback" not in first.written
    assert len(first.written.splitlines()) < 100
