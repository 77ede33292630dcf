"""What a node finds out about its own machine reaches the others, and `cluster doctor`."""

import json
from typing import Any

import pytest

from tests.conftest import BIN, Cluster, Node, until

pytestmark = pytest.mark.slow

FEW = 'ulimit -n 512; exec "$0" "$@"'


def doctor(node: Node, *options: str) -> list[dict[str, Any]]:
    done = node.command("doctor", "--json", *options)
    assert done.returncode in (0, 4), done.stderr
    return json.loads(done.stdout)["warnings"]


def test_issues_of_a_node_are_told_by_another(cluster: Cluster) -> None:
    poor = cluster.launch("--open-api", name="poor", program=("/bin/sh", "-c", FEW, str(BIN / "node")))
    other = cluster.launch(name="other")
    cluster.agreed(poor.started(), other.started())

    def told() -> set[str]:
        return {issue["code"] for issue in doctor(other, "--node", "poor")}

    until(lambda: {"few-descriptors", "open-api"} <= told(), "the other node tells of both issues")
    assert not {issue["code"] for issue in doctor(other, "--node", "other")} & {"few-descriptors", "open-api"}
    assert "poor may open 512 files" in poor.written
