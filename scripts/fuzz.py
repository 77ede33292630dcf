#!/usr/bin/env python3
"""Attacks a cluster of two real nodes, once open and once with a secret, and checks that no harm is done.

    .venv/bin/python scripts/fuzz.py                                          all of it: hours
    .venv/bin/python scripts/fuzz.py --requests 2000 --schemas 1000 --pictures 500 --streams 500 --models 20 --kv 20
    .venv/bin/python scripts/fuzz.py --cluster open --requests 0 --schemas 5000 --pictures 0 --streams 0 --models 0 --kv 0 --seed 7

The numbers count all attacks of a kind, half of them for each cluster. The attacks depend on the seed alone. Exits with
1 if a node died, an answer took too long or is not documented in docs/troubleshooting.md, a log has a traceback, memory grew beyond
its limit, `/health` was late, or "Hello" is not answered as before.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent / "fuzz"))

import broken_models
import damaged_kv
import hostile_pictures
import hostile_schemas
import hostile_streams
import odd_requests
from target import Findings, Limits, NodeEnded, Target, running_target


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--requests", type=int, default=100_000, metavar="N", help="HTTP requests (default: %(default)s)")
    add("--schemas", type=int, default=100_000, metavar="N", help="JSON schemas of answers (default: %(default)s)")
    add("--pictures", type=int, default=10_000, metavar="N", help="pictures of chats (default: %(default)s)")
    add("--streams", type=int, default=10_000, metavar="N", help="gRPC calls and connections (default: %(default)s)")
    add("--models", type=int, default=1_000, metavar="N", help="damaged model folders (default: %(default)s)")
    add("--kv", type=int, default=1_000, metavar="N", help="prompts whose stored KV is damaged (default: %(default)s)")
    add("--cluster", choices=("both", "open", "secret"), default="both", help="default: %(default)s")
    add("--seed", type=int, default=0, metavar="N", help="of all attacks (default: %(default)s)")
    add("--health-p99-ms", type=float, default=50.0, metavar="MS", help="default: %(default)s")
    add("--health-max-ms", type=float, default=250.0, metavar="MS", help="default: %(default)s")
    add(
        "--growth",
        type=float,
        default=1.5,
        metavar="N",
        help="maximum growth of the memory that a node keeps (default: %(default)s)",
    )
    add("--keep", type=Path, metavar="DIR", help="keep logs and broken models there")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    kinds = ("open", "secret") if options.cluster == "both" else (options.cluster,)
    limits = Limits(options.health_p99_ms, options.health_max_ms, options.growth)
    with tempfile.TemporaryDirectory(prefix="pippin-fuzz-") as directory:
        keep = options.keep or Path(directory)
        found = [attack(kind, keep / kind, options, limits, len(kinds)) for kind in kinds]
    failed = [complaint for findings in found for complaint in findings.complaints]
    print(f"{sum(sum(findings.answers.values()) for findings in found):,} attacks, {len(failed)} complaints")
    sys.exit(1 if failed else 0)


def attack(kind: str, directory: Path, options: argparse.Namespace, limits: Limits, parts: int) -> Findings:
    """Attack one cluster in all ways, one after the other."""
    directory.mkdir(parents=True)
    with running_target(directory, limits, has_secret=kind == "secret") as target:
        try:
            asyncio.run(_all_kinds(target, options, parts))
        except* NodeEnded as ended:
            target.findings.complain(str(ended.exceptions[0]))
        else:
            target.report(kind)
    return target.findings


async def _all_kinds(target: Target, options: argparse.Namespace, parts: int) -> None:
    for module, count in (
        (damaged_kv, options.kv),  # first, as it needs a ring of both nodes: others drain nodes and load other models
        (odd_requests, options.requests),
        (hostile_schemas, options.schemas),
        (hostile_pictures, options.pictures),
        (hostile_streams, options.streams),
        (broken_models, options.models),
    ):
        if count:
            await module.attack(target, -(-count // parts), options.seed)
            await asyncio.to_thread(target.check, module.__name__)


if __name__ == "__main__":
    main()
