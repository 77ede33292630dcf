"""A copied data directory, as with a Mac's whole disk: of two nodes with one id, one gets a new id."""

import json
import shutil
from pathlib import Path

import pytest

from node.daemon import EXIT_DUPLICATE
from tests.conftest import MODEL, Cluster, Node, until

pytestmark = pytest.mark.slow

SECRET = "correct horse battery staple"


def identity(cluster: Cluster, name: str) -> str:
    return json.loads((cluster.directory / name / "node.json").read_text())["id"]


def warned(node: Node, name: str) -> bool:
    return any(each["code"] == "double" and name in each["text"] for each in node.status()["warnings"])


@pytest.mark.parametrize("secret", [False, True], ids=["open", "secret"])
def test_the_copy_gives_way_and_comes_back_as_itself(
    cluster: Cluster, tmp_path: Path, stock: dict[str, str], secret: bool
) -> None:
    """The copy was started more often, so others take it for a newer run of the first node."""
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    options = ["--model", MODEL, *(["--secret-file", str(file)] if secret else [])]
    first, other = (cluster.launch(*options, name=name) for name in ("first", "other"))
    cluster.ready(first.started(), other.started())
    ours = identity(cluster, "first")
    shutil.copytree(cluster.directory / "first", cluster.directory / "copy")
    copied = cluster.directory / "copy" / "node.json"
    copied.write_text(json.dumps(json.loads(copied.read_text()) | {"incarnation": 40}))
    copy = cluster.launch(*options, name="copy")
    assert copy.wait(60) == EXIT_DUPLICATE
    assert "runs with a copy of this node's data directory" in copy.written
    assert "start it again" in copy.written
    until(lambda: warned(first, "copy"), 10, "the status of the first node tells of it")
    cluster.ready(first, other)
    for node in (first, other):
        assert {each["id"] for each in node.status()["nodes"]} == {ours, identity(cluster, "other")}
        assert node.chat("Hello").text == stock["Hello"]
    assert identity(cluster, "first") == ours
    again = cluster.launch(*options, name="copy").started()
    cluster.ready(first, other, again)
    assert identity(cluster, "copy") != ours
    assert first.process.poll() is None
