"""The benchmarks run: their stand-ins for parts of a node are what the product asks of these parts."""

import subprocess
import sys

from tests.conftest import ROOT


def test_the_gateway_is_measured() -> None:
    command = [sys.executable, ROOT / "scripts" / "bench.py", "gateway", "--quick"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    for case in ("driver here", "driver elsewhere"):
        (rate,) = [line.split() for line in ran.stdout.splitlines() if line.startswith(case) and " tokens/s " in line]
        assert float(rate[3].replace(",", "")) > 0
