"""A ring of two `node` processes, one of which has half a core: layers cut by measured speed against equal halves.

Both rings run on the same two cores at the same time, and take turns. A process that only counts shares the second core with
the second node of each ring, so that node has half of it (Linux shares a core equally between process groups). The ring with
equal halves was loaded before that process began. The other one was loaded beside it: its nodes have measured their speed, and
the head has moved the ring 10 s later. Nothing else is told to it.

The first core is also the client's, and the driver's HTTP server runs there, so the bound of 1.5 is not reached.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import bars
import processes
import prompts
import ring_nodes
from figures import Row, at_least, header, machine, median, report, write_json
from ring_nodes import NodeRing
from sse import Json

HELP = "a ring on unequal machines: layers by measured speed against equal halves"
MODELS = Path(tempfile.gettempdir()) / "pippin-bench-models"
TARGET = 1.3
MOVED_S = 180.0
"""Timeout for the move: it needs 10 s, and the time to load the layers beside a busy process."""
OWN = (("--memory", "8GB"), ("--memory", "6GB"))
"""The node with more memory drives, in both rings the one with a whole core."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--preset", default="25m", help="of scripts/make_model.py (default: %(default)s)")
    add("--preload", type=Path, metavar="LIB", help="a tuned BLAS for all nodes (LD_PRELOAD, one thread)")
    add("--pairs", type=int, default=5, metavar="N", help="counted pairs of runs (default: %(default)s)")
    add("--sessions", type=int, default=8, metavar="N", help="requests at once (default: %(default)s)")
    add("--tokens", type=int, default=64, metavar="N", help="of each answer (default: %(default)s)")
    add("--models-dir", type=Path, default=MODELS, metavar="DIR", help="generated models (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    bars.add_argument(parser)


def run(options: argparse.Namespace) -> None:
    cores = processes.cores()
    if len(cores) < 2:
        raise SystemExit("This needs two cores, and a system that can pin processes to them (Linux).")
    where = machine() | {"preset": options.preset, "BLAS": str(options.preload or "of the wheel")}
    print(header(where))
    model = ring_nodes.make_model(options.preset, options.models_dir)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pippin-bench-")))

        def ring(name: str) -> NodeRing:
            (scratch / name).mkdir()
            running = ring_nodes.running(2, model, scratch / name, options.preload, own=OWN)
            return stack.enter_context(running)

        equal = ring("equal")
        stack.enter_context(_neighbour(cores[1]))
        measured = ring("measured")
        _wait_until_moved(measured)
        rows = [_compared(equal, measured, options)]
    report("Layers by measured speed against equal halves", rows)
    write_json(options.json, "unequal", where, rows)
    bars.write_bars(options.plot, "Layers by measured speed against equal halves", rows, "ratio", ("",))


@contextlib.contextmanager
def _neighbour(core: int) -> Iterator[None]:
    """A process that keeps a core busy."""
    with processes.on_cores([core]):
        process = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        yield
    finally:
        processes.end([process])


def _layers(ring: NodeRing) -> list[int]:
    """Layers of each stage of the only ring; empty while it is moved or loads."""
    with urllib.request.urlopen(f"{ring.url.removesuffix('/v1')}/cluster/status", timeout=5) as answer:  # noqa: S310
        status: Json = json.load(answer)
    rings = [each for model in status["models"] for each in model["rings"]]
    if status["state"] != "ready" or len(rings) != 1:
        return []
    return [stage["end"] - stage["start"] for stage in rings[0]["stages"]]


def _wait_until_moved(ring: NodeRing) -> None:
    deadline = time.monotonic() + MOVED_S
    while len(set(_layers(ring))) < 2:
        if time.monotonic() > deadline:
            raise SystemExit(f"The ring was not moved within {MOVED_S:.0f} s: its nodes seem equally quick.")
        time.sleep(0.5)


def _compared(equal: NodeRing, measured: NodeRing, options: argparse.Namespace) -> Row:
    """Runs alternate; the first pair is a warm-up."""
    before = _layers(equal), _layers(measured)
    rates = [(_rate(equal, options), _rate(measured, options)) for _ in range(options.pairs + 1)][1:]
    if (_layers(equal), _layers(measured)) != before:
        raise SystemExit("A ring was moved during the measurement.")
    ratios = [quick / slow for slow, quick in rates]
    return {
        "": f"{options.sessions} sessions",
        "equal layers": "+".join(map(str, before[0])),
        "equal tok/s": median([slow for slow, _ in rates]),
        "measured layers": "+".join(map(str, before[1])),
        "measured tok/s": median([quick for _, quick in rates]),
        "pairs": len(rates),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
        "ratio": round(median(ratios), 3),
    } | at_least(median(ratios), TARGET)


def _rate(ring: NodeRing, options: argparse.Namespace) -> float:
    """Tokens per second of all requests together."""
    asked = [prompts.token_ids(16) for _ in range(options.sessions)]
    return float(options.sessions * options.tokens / asyncio.run(ring.batch(asked, options.tokens)))
