"""What the control plane costs: the processor time of idle nodes, and how soon a large cluster agrees.

`idle`: 1, 2, 4 and 16 nodes of this machine, without a model. Each table row is one cluster, measured after it has come to rest.
A share is processor time of a node, with its child processes, per second of one core.

`converges`: a simulated cluster (tests/sim) of 64 nodes that start at once, until all know each other and follow one head.
Seconds of the simulation, in which messages take 0.2 to 2 ms and computation takes no time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import processes
import psutil
import victims
from figures import ROOT, Row, at_most, median, report

HELP = "processor time of idle nodes; how soon 64 simulated nodes agree"
START_S = 240.0
SIMULATED = 64
FEW = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--nodes", default="1,2,4,16", metavar="N,N", help="sizes of the clusters (default: %(default)s)")
    add("--rest", type=float, default=90.0, metavar="S", help="seconds before a measurement (default: %(default)g)")
    add("--measure", type=float, default=60.0, metavar="S", help="seconds of a measurement (default: %(default)g)")
    add("--seeds", type=int, default=3, metavar="N", help="simulations (default: %(default)s)")


def run(options: argparse.Namespace) -> list[Row]:
    converging = [_converge(seed) for seed in range(options.seeds)]
    if converging:
        report(f"{SIMULATED} simulated nodes agree; seconds", converging)
    idle = [_idle(int(count), options.rest, options.measure) for count in options.nodes.split(",") if count]
    report("Processor time of an idle node; percent of one core", idle)
    return [*converging, *idle]


# --- idle nodes -------------------------------------------------------------------------------------------------------


def _idle(count: int, rest_s: float, measure_s: float) -> Row:
    with tempfile.TemporaryDirectory(prefix="pippin-control-") as directory, _nodes(Path(directory), count) as pids:
        time.sleep(rest_s)
        before, began = [_used_s(pid) for pid in pids], time.monotonic()
        time.sleep(measure_s)
        after, took = [_used_s(pid) for pid in pids], time.monotonic() - began
    shares = [100 * (end - begin) / took for begin, end in zip(before, after, strict=True)]
    most = max(shares)
    return {"nodes": count, "median %": median(shares), "max %": most, **at_most(most, 1.0 if count <= FEW else 2.5)}


@contextmanager
def _nodes(directory: Path, count: int) -> Iterator[list[int]]:
    """Start nodes, and wait until the first one sees all as idle."""
    started: list[subprocess.Popen[bytes]] = []
    log = directory / "0.log"
    try:
        for number in range(count):
            started.append(_launch(directory, number))
            victims.wait(partial(_says_port, directory / f"{number}.log"), START_S, f"node {number} starts")
        port = _says_port(log)
        victims.wait(lambda: _sees(port, count), START_S, f"node 0 sees {count} nodes")
        yield [process.pid for process in started]
    finally:
        processes.end(started)


def _launch(directory: Path, number: int) -> subprocess.Popen[bytes]:
    arguments = [
        *("--name", f"node-{number}", "--cluster", f"control-{os.getpid()}", "--host", "127.0.0.1"),
        *("--api-port", "0", "--data-dir", str(directory / str(number)), "--memory", "1GB"),
    ]
    with (directory / f"{number}.log").open("wb") as out:
        return processes.start_node(arguments, out)


def _says_port(log: Path) -> int | None:
    _, found, rest = log.read_text(errors="replace").partition("API on http://127.0.0.1:")
    return int(rest.partition("/")[0]) if found else None


def _sees(port: int | None, count: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/cluster/status", timeout=5) as answer:
        return [node["state"] for node in json.load(answer)["nodes"]] == ["idle"] * count


def _used_s(pid: int) -> float:
    """Processor time of a process and its children so far."""
    node = psutil.Process(pid)
    times = [process.cpu_times() for process in (node, *node.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


# --- simulated nodes --------------------------------------------------------------------------------------------------


def _converge(seed: int) -> Row:
    command = [sys.executable, "-m", "tests.sim.convergence", str(SIMULATED), str(seed)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, check=True, timeout=600
    )
    took = float(done.stdout)
    return {"nodes": SIMULATED, "seed": seed, "seconds": took, **at_most(took, 5.0)}
