"""Pages that scripts/pages.py draws."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def pages(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "pages.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)})


def test_a_table_that_differs_from_its_runs_is_found_and_drawn_anew(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "scripts" / "pages", tmp_path / "scripts" / "pages")
    shutil.copy(ROOT / "scripts" / "pages.py", tmp_path / "scripts")
    for package in ("node", "api"):
        (tmp_path / package).symlink_to(ROOT / package)
    page, run = tmp_path / "docs" / "performance.md", tmp_path / "docs" / "bench" / "control.json"
    measured = json.loads(run.read_text())
    for row in measured["rows"]:
        row.update({"max %": 3.27, "met": "NO"} if row["nodes"] == 16 else {})
    run.write_text(json.dumps(measured))
    found = pages(tmp_path, "--check")
    assert (found.returncode, found.stderr) == (1, "Out of date: docs/performance.md. Run scripts/pages.py.\n")
    assert pages(tmp_path).returncode == 0
    target = next(row["target"] for row in measured["rows"] if row["nodes"] == 16).replace("<=", "≤")
    assert f"% of a core | 3.27 | {target}: **missed** |" in page.read_text()
    assert pages(tmp_path, "--check").returncode == 0


@pytest.mark.slow
def test_what_fits_is_what_the_placement_says(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "pages"))
    import room

    page = (ROOT / "docs" / "models.md").read_text()
    assert room.page(page) == page, "Run scripts/pages.py."
