"""Nodes of the last commit beside nodes of this one: a cluster is updated one node after the other."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import node
from node.members.membership import PROTOCOLS_APART
from tests.conftest import MODEL, PATIENCE_S, ROOT, Cluster

pytestmark = pytest.mark.slow

FROM = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from node.__main__ import main
print("node of", sys.modules["node"].__file__, flush=True)
main()
"""


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages as they were one commit ago."""
    folder = tmp_path_factory.mktemp("former")
    git = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "HEAD~1", "node", "api"],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if git.returncode != 0:
        pytest.skip(f"there is no earlier commit here: {git.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=git.stdout, timeout=PATIENCE_S, check=True)
    found = re.search(r"^PROTOCOL = (\d+)$", (folder / "node" / "__init__.py").read_text(), re.MULTILINE)
    assert found
    if abs(int(found[1]) - node.PROTOCOL) > PROTOCOLS_APART:
        pytest.skip(
            f"this commit's protocol is {node.PROTOCOL}, the last one's {found[1]}: they need not work together"
        )
    return folder


def test_an_answer_goes_on_while_a_node_is_updated(former: Path, cluster: Cluster, stock: dict[str, str]) -> None:
    options = ("--model", MODEL, "--stages", "2")
    old = cluster.launch(*options, name="old", program=(sys.executable, "-c", FROM, str(former)))
    new = cluster.launch(*options, name="new")
    cluster.ready(old.started(), new.started(), stages=2)
    assert f"node of {former}" in old.written
    shown = old.command("status")
    assert shown.returncode == 0, shown.stderr
    assert "\nold " in shown.stdout
    assert {each.chat("Hello").text for each in (old, new)} == {stock["Hello"]}

    with new.stream("Count from 1 to 100", max_tokens=300) as events:
        next(iter(events))
        old.signal(signal.SIGTERM)
        assert events.rest() == stock["Count from 1 to 100"]
    assert old.wait() == 0
    updated = cluster.launch(*options, name="old").started()
    cluster.ready(new, updated)
    assert updated.chat("Hello").text == stock["Hello"]
