"""Hundreds of histories of a whole cluster; whole_cluster.py replays one by its seed."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICK, ALL = 16, 200
"""Numbers of seeds; the slow test begins where the quick one ends. PIPPIN_SEEDS=20000 runs thousands."""


FAULTS = {
    "kills",
    "power cuts",
    "disks full",
    "disks: EIO",
    "disks: hangs",
    "disks: slow",
    "clock jumps",
    "writes to a full disk",
    "calls that end with EIO",
    "bits flipped on disks",
    "bits flipped on the wire",
    "files half written by kills",
    "files lost or torn by power cuts",
    "terms lost by power cuts",
}
"""Those of disks, clocks and single bits, all of which must have happened."""


def simulated(first: int, last: int) -> tuple[Counter[str], Counter[str]]:
    """Run these seeds, divided among the cores, in processes whose string hashes are always the same. Returns what happened,
    and the faults.
    """
    cores = os.cpu_count() or 1
    marks = [first + (last - first) * core // cores for core in range(cores + 1)]
    shares = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.sim.whole_cluster", str(begin), str(end)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        for begin, end in itertools.pairwise(marks)
        if begin < end
    ]
    ended = [(*share.communicate(), share.returncode) for share in shares]
    failed = [err[-3000:] for _, err, code in ended if code]
    assert not failed, "\n".join(failed)
    told = [json.loads(out) for out, _, _ in ended]
    happened, faults = (sum((Counter(each[what]) for each in told), Counter[str]()) for what in ("happened", "faults"))
    return happened, faults


def test_every_request_of_a_disturbed_cluster_ends_as_if_nothing_had_happened() -> None:
    happened, _ = simulated(0, QUICK)
    assert happened["requests"] > 5 * QUICK
    assert happened["frames"] > 10 * QUICK
    assert happened["states observed"] > 5 * QUICK
    assert happened["places of pictures computed"] > 10 * QUICK


@pytest.mark.slow
def test_a_seed_tells_the_same_story_each_time() -> None:
    assert simulated(0, 6) == simulated(0, 6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_and_so_in_hundreds_of_histories() -> None:
    happened, faults = simulated(QUICK, int(os.environ.get("PIPPIN_SEEDS", ALL)))
    assert happened["keys from disks"] > 0, "KV comes from disks"
    assert happened["steps again"] > 0, "steps are computed again without guesses"
    assert not FAULTS - faults.keys()
