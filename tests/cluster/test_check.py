"""`node --check` on this machine, with small models: what a Mac is asked to run works at all."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from node.check import parts, processes
from node.check.processes import PartFailed, compute
from node.check.report import Line, Report
from node.check.sizes import QUICK
from tests.conftest import ROOT


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everything_is_as_expected_and_in_the_report(tmp_path: Path) -> None:
    out = tmp_path / "report.txt"
    command = [sys.executable, "-m", "node", "--check", "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    report = out.read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    assert report.strip() in done.stdout
    assert re.findall(r"the same bits in (\d+) of (\d+) steps, the same token in (\d+)", report) == [("22",) * 3] * 4
    assert re.search(r"ok    Limit of open files\n.*\n      found:    [\d,]+, and [\d,]+ once", report)
    for found in ("they found each other", "2 of 2 as one node's", "loopback", "All is as expected"):
        assert found in report
    assert len(re.findall(r"[\d.]+ of [\d.]+ tokens/s: [\d.]+$", report, re.MULTILINE)) == 3
    assert len(re.findall(r"[\d.]+ times that of one token; (?:the same|other) bits", report)) == 3
    assert "BAD" not in report


def test_a_part_that_crashes_is_told(tmp_path: Path) -> None:
    with pytest.raises(PartFailed, match=r"ended with 1: (?s:.*)No such file"):
        compute("split", folder=str(tmp_path / "none"), cuts=[0, 1, 2])


def report_of(part: Any, monkeypatch: pytest.MonkeyPatch, found: Any) -> Report:
    """The report of a part whose process finds this, or fails with it."""

    def computed(*_: Any, **__: Any) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(parts, "compute", computed)
    report = Report(lambda _: None)
    part(report, Path("/none"), QUICK)
    return report


def test_a_split_that_differs_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"steps": 22, "equal": 21, "chosen": 22, "farthest": 0.004}
    report = report_of(parts.split, monkeypatch, found)
    assert report.bad == 4
    assert "in 21 of 22 steps, the same token in 22; the farthest logit is off by 0.004 of their spread" in report.text


def test_free_buffers_that_grow_are_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"middle": 2**30, "end": 10 * 2**30, "active": 2**29}
    assert report_of(parts.pool, monkeypatch, held).bad == 1
    assert report_of(parts.pool, monkeypatch, held | {"end": 2**30}).bad == 0


def suite_of(tests: str, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    (checkout / "tests" / "engine").mkdir(parents=True)
    (checkout / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["slow"]\n')
    (checkout / "tests" / "engine" / "test_x.py").write_text(tests)
    monkeypatch.setattr(parts, "ROOT", checkout)
    report = Report(lambda _: None)
    parts.suite(report)
    return report


PRECISE = "import os\ndef test_precise(): assert os.environ['MLX_ENABLE_TF32'] == '0'\n"


def test_the_tests_of_the_engine_run_with_full_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = suite_of(PRECISE, tmp_path, monkeypatch)
    assert "1 passed" in report.text
    assert not report.bad


def test_a_test_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = suite_of(f"{PRECISE}def test_kernel(): assert 1 == 2\n", tmp_path, monkeypatch)
    assert "1 failed, 1 passed" in report.text
    assert "FAILED tests/engine/test_x.py::test_kernel" in report.text
    assert report.bad == 1


def test_a_package_has_no_tests_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    report = Report(lambda _: None)
    parts.suite(report)
    assert "not run: needs a checkout" in report.text
    assert not report.bad


@pytest.mark.parametrize(
    ("mac", "expected"), [("macbook-pro-m3-max", "Battery Power 1, AC Power 0"), ("mini-m4", "AC Power 1")]
)
def test_sleep_settings(mac: str, expected: str) -> None:
    assert parts.sleep_settings((ROOT / "tests" / "data" / "macs" / mac / "pmset.txt").read_text()) == expected
    assert parts.sleep_settings("(no such command)") == "unknown"


@pytest.mark.parametrize("part", [parts.split, parts.pool])
def test_a_crash_is_bad_and_does_not_end_the_check(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(part, monkeypatch, PartFailed("ended with -6: the GPU went away"))
    assert report.bad
    assert "the GPU went away" in report.text


def test_the_report_says_what_was_expected() -> None:
    said: list[str] = []
    report = Report(said.append)
    report.section("Speed")
    report.add(Line("Prompt", "1 of 2", "at least 0.9", good=False), Line("Chip", "M4"), Line("Split", "22", good=True))
    report.end()
    expected = (
        "Speed\n"
        "BAD   Prompt\n      expected: at least 0.9\n      found:    1 of 2\n"
        "-     Chip\n      found:    M4\n"
        "ok    Split\n      found:    22\n"
        "\n1 of these are not as expected.\n"
    )
    assert report.text == expected
    assert len(said) == 5


def test_a_node_that_ends_at_once_is_told(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("node: the port is taken")
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        with pytest.raises(PartFailed, match="the node ended with 0.*the port is taken"):
            processes.Node(process, tmp_path / "log").started()
