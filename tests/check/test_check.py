"""`node --check` on this machine, with small models: what a Mac is asked to run works at all."""

import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from node.check import command, parts, processes
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
    assert re.search(r"Two streams at once, .*\n.*ok    Answers\n.*\n +found: +[2-9]\d*, all whole", report)
    for found in ("they found each other", "2 of 2 as one node's", "loopback", "All is as expected"):
        assert found in report
    assert len(re.findall(r"[\d.]+ of [\d.]+ tokens/s: [\d.]+$", report, re.MULTILINE)) == 3
    assert re.search(r"Numbers of tokens with equal bits\n +found: +\{1[,}]", report)
    assert 1 <= len(re.findall(r"[\d.]+ times that of one token\n", report)) <= 4, (
        "a busy machine leaves out the longer ones"
    )
    assert "BAD" not in report


def test_a_part_that_crashes_is_told(tmp_path: Path) -> None:
    with pytest.raises(PartFailed, match=r"ended with 1: (?s:.*)No such file"):
        compute("split", folder=str(tmp_path / "none"), cuts=[0, 1, 2])


class Told(Report):
    """A report that is kept as one text."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        super().__init__(self.texts.append)

    @property
    def text(self) -> str:
        return "\n".join(self.texts).strip() + "\n"


def report_of(part: Any, monkeypatch: pytest.MonkeyPatch, found: Any) -> Told:
    """The report of a part whose process finds this, or fails with it."""

    def computed(*_: Any, **__: Any) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(parts, "compute", computed)
    report = Told()
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


def suite_of(tests: str, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    (checkout / "tests" / "engine").mkdir(parents=True)
    (checkout / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["slow"]\n')
    (checkout / "tests" / "engine" / "test_x.py").write_text(tests)
    monkeypatch.setattr(parts, "ROOT", checkout)
    report = Told()
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


@pytest.mark.parametrize(
    ("printed", "found", "bad"),
    [
        (b"........................... [ 12%]\n.....s..x", "with 34 passed, 0 failed", 0),
        (b"....F...................... [ 12%]\n..E", "with 28 passed, 2 failed", 1),
        (None, "with 0 passed, 0 failed", 1),
    ],
)
def test_tests_that_do_not_end_in_time_are_counted(
    printed: bytes | None, found: str, bad: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow Mac is no bad one."""

    def run(command: list[str], timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout, output=printed)

    monkeypatch.setattr(subprocess, "run", run)
    report = suite_of("", tmp_path, monkeypatch)
    assert f"stopped after 600 s {found}" in report.text
    assert report.bad == bad


def test_a_device_without_bfloat16(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such as the virtual GPU of a hosted Mac: the facts are told, and no part waits for what can't work."""
    asked = []

    def computed(part: str, **_: Any) -> Any:
        asked.append(part)
        if part == "device":
            return {"mlx": "1", "mlx-lm": "1", "computes on": "gpu", "is gpu": True, "for models": 1, "info": {}}
        raise PartFailed("ended with 1: bfloat16 is not supported")

    for module in (command, parts):
        monkeypatch.setattr(module, "compute", computed)
    report = Told()
    command._check(report, tmp_path, quick=False)
    assert asked == ["device", "bfloat16"]
    assert "bfloat16 is not supported. The parts that compute are left out" in report.text
    assert report.bad == 1


def test_the_last_part_is_announced_and_what_was_found_before_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may bring the Mac down, which no process survives."""
    out = tmp_path / "report.txt"
    written = []

    def check(report: Report, _: Path, *, quick: bool) -> None:
        report.add(Line("Chip", "M4"))
        written.append(out.read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(command, "_check", check)
    with pytest.raises(KeyboardInterrupt):
        command.main(["--out", str(out)])
    (before,) = written
    assert "some Macs have restarted (kernel panic" in before
    assert "/Library/Logs/DiagnosticReports" in before
    assert "found:    M4" in before
    assert "It was stopped here." in out.read_text()
    assert f"This is in {out}: read it, and attach it to an issue of this repository." in capsys.readouterr().out


def test_a_report_that_cannot_be_written_is_told_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_check", None)
    with pytest.raises(SystemExit, match="2"):
        command.main(["--out", str(tmp_path / "none" / "report.txt")])
    assert "can't be written: No such file or directory" in capsys.readouterr().err


def test_a_package_has_no_tests_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    report = Told()
    parts.suite(report)
    assert "not run: needs a checkout" in report.text
    assert not report.bad


@pytest.mark.parametrize(
    ("mac", "setting", "expected"),
    [
        ("macbook-pro-m3-max", "sleep", "Battery Power 1, AC Power 0"),
        ("macbook-pro-m3-max", "lowpowermode", "Battery Power 0, AC Power 0"),
        ("mini-m4", "sleep", "AC Power 1"),
    ],
)
def test_power_settings(mac: str, setting: str, expected: str) -> None:
    text = (ROOT / "tests" / "data" / "macs" / mac / "pmset.txt").read_text()
    assert parts.power_settings(text, setting) == expected
    assert parts.power_settings("(no such command)", setting) == "unknown"


@pytest.mark.parametrize("part", [parts.split, parts.pool])
def test_a_crash_is_bad_and_does_not_end_the_check(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(part, monkeypatch, PartFailed("ended with -6: the GPU went away"))
    assert report.bad
    assert "the GPU went away" in report.text


def test_the_report_says_what_was_expected() -> None:
    report = Told()
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
    assert len(report.texts) == 5


def test_a_node_that_ends_at_once_is_told(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("node: the port is taken")
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        with pytest.raises(PartFailed, match="the node ended with 0.*the port is taken"):
            processes.Node(process, tmp_path / "log").started()
