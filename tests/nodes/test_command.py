"""`cluster` against real nodes."""

import json
import socket
from dataclasses import replace

import pytest

from tests.conftest import Cluster

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_status(three: Cluster) -> None:
    three.ready(*three.nodes)
    for node in three.nodes:
        done = node.command("status", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["state"] == "ready"
    table = three.nodes[0].command("status")
    assert all(node.name in table.stdout for node in three.nodes)
    assert replace(three.nodes[0], port=free_port()).command("status").returncode == 3


def test_wait(three: Cluster) -> None:
    node = three.nodes[0]
    assert node.command("wait", "--ready", "--nodes", "3").returncode == 0
    missing = node.command("wait", "--ready", "--nodes", "4", "--timeout", "3")
    assert missing.returncode == 4
    assert "3 of 4 nodes" in missing.stderr
    assert node.command("wait", "--model", "no/model", "--timeout", "0.5").returncode == 4
