"""A short run of `scripts/fuzz.py`: odd requests, hostile schemas and pictures, lying peers, damaged models and damaged KV harm no node."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

FEW = {
    "open": {"--requests": 60, "--schemas": 25, "--pictures": 40, "--streams": 40, "--models": 0, "--kv": 6},
    "secret": {"--requests": 40, "--schemas": 0, "--pictures": 0, "--streams": 60, "--models": 6, "--kv": 0},
}
BUSY = {"--health-p99-ms": 2_000, "--health-max-ms": 10_000, "--growth": 3}
"""Looser limits, because CI's machine has other work and memory grows most at first."""


@pytest.mark.parametrize("cluster", FEW)
def test_attacks(cluster: str) -> None:
    options = [str(word) for option in (FEW[cluster] | BUSY).items() for word in option]
    command = [sys.executable, str(ROOT / "scripts" / "fuzz.py"), "--cluster", cluster, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert " 0 complaints" in done.stdout
