"""Hundreds of histories of a whole cluster; whole_cluster.py replays one by its seed."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICK, ALL = 16, 200
"""Numbers of seeds; the slow test begins where the quick one ends. PIPPIN_SEEDS=20000 runs thousands."""


def simulated(first: int, last: int) -> list[tuple[int, ...]]:
    """Run these seeds, divided among the cores, in processes whose string hashes are always the same."""
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
    return [tuple(map(int, re.findall(r"\d+", out))) for out, _, _ in ended]


def test_every_request_of_a_disturbed_cluster_ends_as_if_nothing_had_happened() -> None:
    shares = simulated(0, QUICK)
    assert sum(requests for requests, *_ in shares) > 5 * QUICK
    assert sum(frames for *_, frames, _, _, _ in shares) > 10 * QUICK
    assert sum(observed for *_, observed, _ in shares) > 10 * QUICK


@pytest.mark.slow
def test_a_seed_tells_the_same_story_each_time() -> None:
    assert simulated(0, 6) == simulated(0, 6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_and_so_in_hundreds_of_histories() -> None:
    shares = simulated(QUICK, int(os.environ.get("PIPPIN_SEEDS", ALL)))
    assert sum(keys for *_, keys, _, _ in shares) > 0, "KV comes from disks"
    assert sum(again for *_, again in shares) > 0, "steps are computed again without guesses"
