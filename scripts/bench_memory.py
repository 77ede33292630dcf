#!/usr/bin/env python3
"""Shows that a node which holds half of a model takes about half of the memory.

    scripts/bench_memory.py                   # writes a 400 MB model and loads it whole and in halves, each in a process
    scripts/bench_memory.py --model DIR       # the same with a model that is there

Prints the resident memory of each process after loading and its warm-up steps, and its highest. Fails when a half takes more
than 60 % of the whole.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 0.6
SCRIPTS = Path(__file__).resolve().parent
MB = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model's directory (default: write a model of 400 MB)")
    parser.add_argument("--layers", type=int, nargs=2, metavar=("START", "END"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.layers:
        measure(args.model, *args.layers)
        return 0
    if args.model:
        return compare(args.model.resolve())
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "400mb"
        maker = [sys.executable, str(SCRIPTS / "make_model.py"), "--preset", "400mb", "--out", str(model)]
        subprocess.run(maker, check=True)
        return compare(model)


def compare(model: Path) -> int:
    """Load the model whole and in halves, each in its own process; print the memory of each."""
    layers = int(json.loads((model / "config.json").read_text())["num_hidden_layers"])
    bounds = [(0, layers), (0, layers // 2), (layers // 2, layers)]
    whole, *halves = [run(model, start, end) for start, end in bounds]
    print(f"{'layers':>8} {'weights':>10} {'resident':>10} {'highest':>10} {'of whole':>9}")
    for (start, end), found in zip(bounds, [whole, *halves], strict=True):
        share = found["resident"] / whole["resident"]
        print(
            f"{start:>4}-{end:<3} {found['weights'] // MB:>7} MB {found['resident'] // MB:>7} MB "
            f"{found['highest'] // MB:>7} MB {share:>9.1%}"
        )
    good = all(half[figure] <= LIMIT * whole[figure] for half in halves for figure in ("resident", "highest"))
    print(f"{'good' if good else 'BAD'}: a half may take {LIMIT:.0%} of the whole")
    return 0 if good else 1


def run(model: Path, start: int, end: int) -> dict[str, int]:
    command = [
        sys.executable,
        str(SCRIPTS / "bench_memory.py"),
        "--model",
        str(model),
        "--layers",
        str(start),
        str(end),
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=SCRIPTS.parent)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def measure(model: Path, start: int, end: int) -> None:
    """In the child: load, run a few steps, and print this process's memory in bytes."""
    import psutil  # noqa: PLC0415  (not in the parent, whose memory is none of the matter)

    from node.engine.compute import Compute  # noqa: PLC0415
    from node.engine.load import load_stage  # noqa: PLC0415
    from node.model.layouts import Layout  # noqa: PLC0415

    compute = Compute()
    compute.start()
    stage = asyncio.run(compute.run_pieces(load_stage(model, start, end, Layout(model).weights.tensors)))
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    resident = psutil.Process().memory_info().rss
    compute.stop()
    print(json.dumps({"weights": stage.weight_bytes, "resident": resident, "highest": highest}))


if __name__ == "__main__":
    sys.exit(main())
