"""`cluster` against real nodes."""

import json
import socket
import subprocess
from typing import Any

import pytest

from tests.conftest import BIN, PATIENCE_S, ROOT, Cluster

pytestmark = pytest.mark.slow


def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [str(argument) for argument in arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_status(three: Cluster) -> None:
    three.ready(*three.nodes)
    for node in three.nodes:
        done = run(BIN / "cluster", "status", "--json", "--api", node.url)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["state"] == "ready"
    table = run(BIN / "cluster", "status", "--api", three.nodes[0].url)
    assert all(node.name in table.stdout for node in three.nodes)
    assert run(BIN / "cluster", "status", "--api", f"127.0.0.1:{free_port()}").returncode == 3


def test_wait(three: Cluster) -> None:
    api = ["--api", three.nodes[0].url]
    assert run(BIN / "cluster", "wait", "--ready", "--nodes", "3", *api).returncode == 0
    missing = run(BIN / "cluster", "wait", "--ready", "--nodes", "4", "--timeout", "0.5", *api)
    assert missing.returncode == 4
    assert "3 of 4 nodes" in missing.stderr
    assert run(BIN / "cluster", "wait", "--model", "no/model", "--timeout", "0.5", *api).returncode == 4
