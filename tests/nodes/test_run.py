"""What scripts/run starts after the installation."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import MODEL, NODE_ENVIRONMENT, PATIENCE_S, ROOT, Cluster, Node, until

pytestmark = pytest.mark.slow


@dataclass
class Script:
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def written(self) -> str:
        return self.log.read_text()

    def nodes(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children() if self.process.poll() is None else []

    def says(self, pattern: str) -> re.Match[str]:
        def find() -> re.Match[str] | None:
            found = re.search(pattern, self.written)
            if not found and self.process.poll() is not None:
                pytest.fail(f"the script ended with {self.process.returncode}: {self.written}")
            return found

        return until(find, f"the script says {pattern!r}")


@contextlib.contextmanager
def script(log: Path, *options: str, **more: str) -> Iterator[Script]:
    """`more`: of its environment."""
    command = [sys.executable, str(ROOT / "scripts" / "run_nodes.py"), *options]
    environment = {**os.environ, **NODE_ENVIRONMENT, "HF_HUB_OFFLINE": "1", "HF_HOME": str(log.parent / "hub"), **more}
    with log.open("wb") as file:
        running = Script(subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT, env=environment), log)
    nodes: list[psutil.Process] = []
    try:
        yield running
        nodes = running.nodes()
    finally:
        for process in [*nodes, *running.nodes()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        running.process.kill()
        running.process.wait()


def ask(written: str) -> Any:
    """Send the request that the script shows."""
    curl = next(line for line in written.splitlines() if line.strip().startswith("curl"))
    done = subprocess.run([*shlex.split(curl), "-s"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return json.loads(done.stdout)


def test_three_nodes_share_the_model(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"  # of the node that the user otherwise runs here
    config.write_text('name = "mine"\napi-port = 52416\ngrpc-port = 52417\ndata-dir = "mine"\nlog-file = "mine.log"\n')
    with script(tmp_path / "log", "--nodes", "3", "--api-port", "0", PIPPIN_CONFIG=str(config)) as run:
        port = run.says(r"Pippin is ready at http://localhost:(\d+)/v1")[1]
        run.says("Ctrl-C stops it")
        assert not re.search(r"is loading; node-\d is loading", run.written), "what it waits for is said once"
        assert len(re.findall(rf"{MODEL}: layers (\d)-(\d) on (node-\d)", run.written)) == 3, run.written
        assert ask(run.written)["choices"][0]["message"]["content"]
        assert re.search(rf"^node-1 \| .* API on http://127.0.0.1:{port}/v1$", run.written, re.MULTILINE)
        run.says(r"\nnode-3 \| .* loaded pippin-demo layers")
        nodes = run.nodes()
        assert len(nodes) == 3
        next(node for node in nodes if "node-3" in node.cmdline()).kill()
        run.says(r"node-3 has ended with exit code -9. Still running: node-1, node-2\.")
        assert ask(run.written)["choices"][0]["message"]["content"]
        for _ in range(2):  # a terminal's shell repeats what the system sends
            run.process.send_signal(signal.SIGHUP)
        assert run.process.wait(PATIENCE_S) == 9, run.written
        assert run.written.count("stopped") == 2, run.written
        assert not any(node.is_running() for node in nodes)


def test_the_real_model_is_greedy_where_requests_do_not_say_it(tmp_path: Path) -> None:
    name = "SmolLM2-135M-Instruct-4bit"  # what the script finds in its place, so that nothing is fetched
    shutil.copytree(ROOT / "node" / "builtin" / MODEL, tmp_path / "pippin" / name)
    options = ("--real", "--host", "127.0.0.1", "--api-port", "0", "--cluster", f"test-{os.getpid()}", "--data-dir")
    with script(tmp_path / "log", *options, str(tmp_path / "own"), XDG_CACHE_HOME=str(tmp_path)) as run:
        run.says("Pippin is ready")
        assert own(run).get(f"/cluster/models/{name}").json["sampling"]["temperature"] == 0
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(PATIENCE_S) == 0, run.written


def test_a_node_joins_a_cluster_that_waits_for_another_model(cluster: Cluster, tmp_path: Path) -> None:
    """`ready` is the own node's; a model that cannot be had stops nothing."""
    (other,) = cluster.start(1, "--model", "org/not-there")
    joining = ("--cluster", cluster.name, "--host", "127.0.0.1", "--api-port", "0", "--data-dir", str(tmp_path / "own"))
    with script(tmp_path / "joining", *joining, "--name", "own") as run:
        run.says("Pippin is ready")
        cluster.agreed(other, own(run))
        until(lambda: other.status()["state"] == "degraded", "the other node's model is refused")
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(PATIENCE_S) == 0, run.written
    until(lambda: other.state_of(own(run)) == "left", "it said goodbye")


def own(run: Script) -> Node:
    port = int(re.findall(r"API on http://\S*:(\d+)/v1", run.written)[0])
    return Node("own", run.process, run.log, port=port)


def test_a_model_that_cannot_be_had_is_awaited(tmp_path: Path) -> None:
    options = ("--host", "127.0.0.1", "--api-port", "0", "--cluster", f"test-{os.getpid()}", "--data-dir")
    with script(tmp_path / "log", *options, str(tmp_path / "own"), "--model", "org/not-there") as run:
        run.says(r"waiting: org/not-there is refused; .*org/not-there")
        assert "Pippin is ready" not in run.written
        assert own(run).chat("Hello").status == 200
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(PATIENCE_S) == 0, run.written


def test_a_port_that_is_taken_is_told_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with script(tmp_path / "log", "--nodes", "2", "--api-port", port) as run:
            assert run.process.wait(PATIENCE_S) == 1
            assert run.written.startswith(f"API port {port} is taken."), run.written
            assert len(run.written.splitlines()) == 1


def test_no_node_is_a_usage_error(tmp_path: Path) -> None:
    with script(tmp_path / "log", "--nodes", "0") as run:
        assert run.process.wait(PATIENCE_S) == 2
        assert "--nodes 0" in run.written
