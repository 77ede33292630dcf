"""Nodes on this machine that can be lost and started again, with their logs. One of them, the
gateway, is never lost.
"""

import asyncio
import contextlib
import datetime as dt
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import processes

MODEL = "pippin-demo"
READY_S = 90.0
Json = dict[str, Any]
Found = TypeVar("Found")
_LINE = re.compile(r"(\d\d):(\d\d):(\d\d)\.(\d{3}) \w+ +(.*)")


@dataclass(slots=True)
class Victim:
    name: str
    arguments: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes]
    port: int = 0
    read: int = 0
    """Bytes of the log that have been read."""

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def log_lines(self) -> list[tuple[float, str]]:
        """Return the new lines, each with its time (seconds since the epoch)."""
        with self.log.open("rb") as file:
            file.seek(self.read)
            text = file.read().decode(errors="replace")
            self.read = file.tell()
        midnight = dt.datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
        found = []
        for match in map(_LINE.match, text.splitlines()):
            if match:
                hour, minute, second, milli = map(int, match.groups()[:4])
                found.append((midnight + hour * 3600 + minute * 60 + second + milli / 1000, match[5]))
        return found


@dataclass(slots=True)
class Cluster:
    """A gateway that holds no layers and never becomes head, and other nodes, of which `stages` form the ring."""

    directory: Path
    stages: int
    model: str = MODEL
    models_dir: Path | None = None
    options: Sequence[str] = ()
    """More of them, for each node."""
    nodes: dict[str, Victim] = field(default_factory=dict)

    @property
    def gateway(self) -> Victim:
        return self.nodes["gateway"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    def launch(self, name: str) -> Victim:
        """Start a node, or restart it with its identity."""
        log = self.directory / f"{name}.log"
        memory = "1MB" if name == "gateway" else "1GB"
        arguments = [
            *("--name", name, "--cluster", f"bench-{os.getpid()}", "--host", "127.0.0.1", "--api-port", "0"),
            *("--data-dir", str(self.directory / name), "--model", self.model),
            *("--stages", str(self.stages), "--memory", memory),
            *(("--models-dir", str(self.models_dir)) if self.models_dir else ()),
            *self.options,
        ]
        with log.open("ab") as out:
            process = processes.start_node(arguments, out)
        node = Victim(name, arguments, log, process, read=log.stat().st_size)
        self.nodes[name] = node
        return node

    def start(self, others: int) -> None:
        self.launch("gateway")
        for number in range(others):
            self.launch(f"node-{number}")
        self.gateway.port = int(self.wait_for_line(self.gateway, r"API on http://\S*:(\d+)/")[1])

    def wait_for_line(self, node: Victim, pattern: str) -> re.Match[str]:
        def find() -> re.Match[str] | None:
            return re.search(pattern, node.log.read_text(errors="replace"))

        return wait(find, READY_S, f"{node.name} says {pattern}")

    def status(self) -> Json:
        with urllib.request.urlopen(f"{self.url}/cluster/status", timeout=5) as answer:  # noqa: S310 - our own URL
            status: Json = json.load(answer)
            return status

    def ready(self) -> Json:
        """Block until all running nodes are here and the ring has loaded; return the status."""
        running = {node.name for node in self.nodes.values() if node.alive}

        def is_ready() -> Json | None:
            status = self.status()
            here = {node["name"] for node in status["nodes"] if node["state"] in ("ready", "idle")}
            rings = [ring for model in status["models"] for ring in model["rings"]]
            whole = bool(rings) and len(rings[0]["stages"]) == min(self.stages, len(running) - 1)
            return status if here == running and status["state"] == "ready" and whole else None

        return wait(is_ready, READY_S, f"{', '.join(sorted(running))} are ready")

    def named(self, status: Json, node_id: str) -> Victim:
        return self.nodes[next(node["name"] for node in status["nodes"] if node["id"] == node_id)]

    def ring(self, status: Json) -> list[Victim]:
        return [self.named(status, stage["node"]) for stage in status["models"][0]["rings"][0]["stages"]]

    def end(self) -> None:
        for node in self.nodes.values():
            with contextlib.suppress(ProcessLookupError):
                node.process.send_signal(signal.SIGCONT)
        processes.end([node.process for node in self.nodes.values()])


def reset_connections(node: Victim) -> None:
    """Reset the connections that other nodes opened to this one. Needs root, and iproute2's `ss`."""
    listening = subprocess.run(["ss", "-tHlnp"], capture_output=True, text=True, check=True).stdout
    for line in listening.splitlines():
        if f"pid={node.process.pid}," in line and (port := re.search(r":(\d+)\s", line)):
            command = ["ss", "-tHK", "state", "established", "sport", "=", f":{port[1]}"]
            subprocess.run(command, capture_output=True, check=False)


def wait(ask: Callable[[], Found | None], within_s: float, what: str) -> Found:
    """Poll until `ask` returns a value. Raises SystemExit after `within_s`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            if found := ask():
                return found
        time.sleep(0.05)
    raise SystemExit(f"Not within {within_s:.0f} s: {what}.")


@contextlib.contextmanager
def running(
    directory: Path,
    others: int,
    stages: int,
    model: str = MODEL,
    models_dir: Path | None = None,
    options: Sequence[str] = (),
) -> Iterator[Cluster]:
    cluster = Cluster(directory, stages, model, models_dir, options)
    try:
        cluster.start(others)
        cluster.ready()
        yield cluster
    finally:
        cluster.end()


async def ready(cluster: Cluster) -> Json:
    return await asyncio.to_thread(cluster.ready)
