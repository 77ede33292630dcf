"""Which nodes join which: peers without multicast, other clusters, other versions."""

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Cluster, running_cluster, until

pytestmark = pytest.mark.slow

OTHER_PROTOCOL = "import node; node.PROTOCOL += 2; from node.__main__ import main; main()"


def test_peers_without_multicast_and_a_node_of_another_version(cluster: Cluster, stock: dict[str, str]) -> None:
    """The second and the third know only the first one's address, and learn of each other from it."""
    (first,) = cluster.start(1, "--no-mdns")
    (here,) = first.status()["nodes"]
    more = ["--no-mdns", "--peer", here["address"]]
    second, third = cluster.start(2, *more)
    stranger = cluster.launch(*more, program=(sys.executable, "-c", OTHER_PROTOCOL)).started()
    cluster.agreed(first, second, third)
    assert third.chat("Hello").text == stock["Hello"]

    until(lambda: first.state_of(stranger) == "refused", "the node of another version is refused")
    cluster.agreed(first, second, third)
    assert stranger.name in until(lambda: first.warning("version-mismatch"), "a warning")
    shown = first.command("status")
    assert re.search(rf"^{stranger.name} +not joined", shown.stdout, re.MULTILINE), shown.stdout
    assert first.chat("Hello").text == stock["Hello"]


def test_clusters_of_other_names_never_meet(three: Cluster, tmp_path: Path) -> None:
    """On the same multicast, and even with the other cluster's address."""
    before = three.ready(*three.nodes)
    peer = before["nodes"][0]["address"]
    with running_cluster(tmp_path) as other:
        (node,) = other.start(1, "--peer", peer)
        status = other.agreed(node)
        assert [each["name"] for each in status["nodes"]] == [node.name]
        assert node.chat("Hello").status == 200
        after = three.ready(*three.nodes)
        assert [each["id"] for each in after["nodes"]] == [each["id"] for each in before["nodes"]]
        assert (after["head"], after["term"]) == (before["head"], before["term"])
