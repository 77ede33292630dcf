"""Issues of a machine and of a terminal, each provoked."""

import platform
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.core.health import Code
from node.host.examination import LOW_DISK, NEEDED_DESCRIPTORS, examine, examine_terminal


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has enough of all."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=LOW_DISK))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (NEEDED_DESCRIPTORS, NEEDED_DESCRIPTORS))


def test_nothing_is_wrong(tmp_path: Path) -> None:
    assert examine("mini", [tmp_path]) == ()


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told once, also if both folders are on it; they need not exist yet."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * 2**30))
    (issue,) = examine("mini", [tmp_path / "a" / "b", tmp_path])
    assert issue.code == Code.DISK_LOW
    assert issue.text == f"mini has 3.0 GB left on the disk of {tmp_path / 'a' / 'b'}, where it keeps models."


@pytest.mark.parametrize(("limit", "found"), [(256, True), (1024, False), (resource.RLIM_INFINITY, False)])
def test_few_descriptors(limit: int, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    issues = examine("mini", [])
    assert [issue.code for issue in issues] == [Code.FEW_DESCRIPTORS] * found
    assert all("mini may open 256 files" in issue.text for issue in issues)


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a program named `node` in a new directory."""

    def make(name: str) -> Path:
        (tmp_path / name).mkdir()
        path = tmp_path / name / "node"
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    return make


def test_a_shell_whose_node_is_another(program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = program("ours"), program("theirs")
    monkeypatch.setenv("PATH", f"{ours.parent}:{theirs.parent}")
    assert list(examine_terminal(ours.parent)) == []
    monkeypatch.setenv("PATH", f"{theirs.parent}:{ours.parent}")
    (issue,) = examine_terminal(ours.parent)
    assert issue.code == Code.NOT_NODEJS
    assert str(theirs) in issue.text
    monkeypatch.setenv("PATH", "/no/such")
    assert list(examine_terminal(ours.parent)) == []


def test_a_link_to_our_node_is_ours(
    program: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pipx and uv make it."""
    ours = program("ours")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "node").symlink_to(ours)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert list(examine_terminal(ours.parent)) == []


def test_rosetta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    (issue,) = examine_terminal(Path("/no/such"))
    assert issue.code == Code.ROSETTA
