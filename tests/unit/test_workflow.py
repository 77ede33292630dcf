"""The workflow of the hosted CI, as far as it can be proved without it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
WORKFLOW: dict[str, Any] = yaml.safe_load(TEXT)
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_actions_are_pinned_by_commit() -> None:
    used = re.findall(r"uses: (.+)", TEXT)
    assert used
    for each in used:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


def test_it_may_only_read() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in WORKFLOW["jobs"].values())
    checkouts = [step for step in STEPS if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_no_text_of_a_contributor_becomes_a_command() -> None:
    used = {name for step in STEPS for name in re.findall(r"\$\{\{(.*?)\}\}", step.get("run", ""))}
    assert used <= {" matrix.python "}


@pytest.mark.parametrize("script", sorted(set(re.findall(r"(?:\.ci|scripts|tests)/[\w./]+", TEXT))))
def test_what_it_runs_exists(script: str) -> None:
    assert (ROOT / script).exists()


def test_the_pythons_are_those_that_install_takes() -> None:
    (low, high) = re.findall(r"\(3, (\d+)\) <= sys.version_info\[:2\] <= \(3, (\d+)\)", install())[0]
    taken = {f"3.{minor}" for minor in range(int(low), int(high) + 1)}
    assert set(WORKFLOW["jobs"]["linux"]["strategy"]["matrix"]["python"]) == taken
    assert set(WORKFLOW["jobs"]["mac"]["strategy"]["matrix"]["python"]) <= taken


def install() -> str:
    return (ROOT / "scripts" / "install").read_text()
