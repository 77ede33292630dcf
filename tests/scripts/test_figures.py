"""scripts/figures: what it counts, and that a room above its budget fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCE = '''
SLOW = 5.0
STEP_MS = 1.0
PLACE = "a_S"


class Wide:
    def __init__(self, a, b, c, d, e, f, g, h, *, i, done: Callable[[], None]):
        """Ten of them."""
        self._once()

    def _once(self):
        self._twice() or self._twice()

    def _twice(self):
        pass
'''


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "figures"), "--root", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("node/ring/driver.py", "node/start.py", "node/wire/a_pb2.py", "api/chat/answer.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("class Wide: pass\n")
    (tmp_path / "node/ring/driver.py").write_text(SOURCE)
    (tmp_path / "pyproject.toml").write_text('[tool.pippin.lines]\napi = 1\nnode = 1\n"node/ring" = 15\n')
    return tmp_path


@pytest.mark.parametrize(
    ("figure", "places"),
    [
        ("one-caller", ["   1 _once  node/ring/driver.py:12"]),
        ("constructors", ["  10 Wide  node/ring/driver.py:8"]),
        ("callbacks", ["   1 __init__(done)  node/ring/driver.py:8"]),
        ("timing", ["   1 STEP_MS  node/ring/driver.py:3"]),
        ("names", ["   3 Wide  node/ring/driver.py:7 node/start.py:1 api/chat/answer.py:1"]),
        ("short", [f"   1 {name}  node/ring/driver.py:{line}" for name, line in {"__init__": 8, "_once": 12}.items()]),
    ],
)
def test_it_lists_the_places_behind_a_figure(tree: Path, figure: str, places: list[str]) -> None:
    printed = run(tree, "--list", figure).stdout.splitlines()
    assert printed[: len(places)] == places
    assert len(printed) == len(places) + (figure == "short")  # and _twice


def test_a_room_above_its_budget_fails(tree: Path) -> None:
    checked = run(tree, "--check")
    assert (checked.returncode, checked.stdout) == (1, "node/ring has 16 lines, 1 above its budget.\n")
    (tree / "pyproject.toml").write_text('[tool.pippin.lines]\napi = 1\n"node/ring" = 16\n"node/text" = 9\n')
    checked = run(tree, "--check")
    assert checked.stdout == "node has 1 lines and no budget.\nnode/text has a budget and no lines.\n"
    (tree / "pyproject.toml").write_text('[tool.pippin.lines]\napi = 1\nnode = 1\n"node/ring" = 16\n')
    assert run(tree, "--check").returncode == 0


def test_the_table_counts_lines_without_generated_code(tree: Path) -> None:
    assert "files, lines                                 3, 18" in run(tree).stdout
