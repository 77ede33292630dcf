"""The workflows of the hosted CI, as far as they can be proved without it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXTS = {path.name: path.read_text() for path in (ROOT / ".github" / "workflows").iterdir()}
ALL: dict[str, dict[str, Any]] = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
STEPS = [step for workflow in ALL.values() for job in workflow["jobs"].values() for step in job["steps"]]
WORKFLOW = ALL["ci.yml"]


def test_actions_are_pinned_by_commit() -> None:
    used = re.findall(r"uses: (.+)", "".join(TEXTS.values()))
    assert used
    for each in used:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


def test_they_may_only_read_but_for_the_job_that_publishes() -> None:
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in ALL.values())
    writing = [job for workflow in ALL.values() for job in workflow["jobs"].values() if "permissions" in job]
    assert writing == [ALL["release.yml"]["jobs"]["publish"]]
    assert not any("checkout" in step.get("uses", "") for step in writing[0]["steps"]), (
        "it runs no file of the repository"
    )
    checkouts = [step for step in STEPS if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_no_text_of_a_contributor_becomes_a_command() -> None:
    used = {name for step in STEPS for name in re.findall(r"\$\{\{(.*?)\}\}", step.get("run", ""))}
    assert used <= {" matrix.python "}


@pytest.mark.parametrize("script", sorted(set(re.findall(r"(?:\.ci|scripts|tests)/[\w./]+", "".join(TEXTS.values())))))
def test_what_it_runs_exists(script: str) -> None:
    assert (ROOT / script).exists()


def test_the_pythons_are_those_that_install_takes() -> None:
    (low, high) = re.findall(r"\(3, (\d+)\) <= sys.version_info\[:2\] <= \(3, (\d+)\)", install())[0]
    taken = {f"3.{minor}" for minor in range(int(low), int(high) + 1)}
    assert set(WORKFLOW["jobs"]["linux"]["strategy"]["matrix"]["python"]) == taken
    assert set(WORKFLOW["jobs"]["mac"]["strategy"]["matrix"]["python"]) <= taken


def test_what_a_step_on_a_mac_finds_is_told_whatever_the_others_found() -> None:
    """Nobody has a Mac at hand to look again."""
    steps = WORKFLOW["jobs"]["mac"]["steps"]
    installed = next(number for number, step in enumerate(steps) if "scripts/install dev" in step.get("run", ""))
    assert len(steps) > installed + 5
    assert all("!cancelled()" in step.get("if", "") for step in steps[installed + 1 :])


def test_each_mac_has_a_report_of_its_own() -> None:
    mac = WORKFLOW["jobs"]["mac"]
    matrix = mac["strategy"]["matrix"]
    assert {each["system"] for each in matrix["include"]} | set(matrix["system"]) == {"macos-15", "macos-26"}
    (upload,) = [step for step in mac["steps"] if "upload-artifact" in step.get("uses", "")]
    assert {"matrix.system", "matrix.python"} <= set(re.findall(r"\$\{\{ (.*?) \}\}", upload["with"]["name"]))


def test_the_local_network_of_a_hosted_mac_is_tested_as_root() -> None:
    steps = WORKFLOW["jobs"]["mac"]["steps"]
    (mdns,) = [step["run"] for step in steps if "-k mdns" in step.get("run", "")]
    assert mdns.startswith("sudo -E .venv/bin/python -m pytest ")
    assert "def test_the_systems_own_mdns" in (ROOT / "tests" / "nodes" / "test_mac.py").read_text()


def install() -> str:
    return (ROOT / "scripts" / "install").read_text()
