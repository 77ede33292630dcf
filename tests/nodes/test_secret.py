"""Nodes with a secret form a cluster; nodes without it, or with another one, neither get in nor do harm."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MODEL, Cluster, running_cluster, until

pytestmark = pytest.mark.slow

SECRET = "correct horse battery staple"


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("secret") / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory, secret_file: Path) -> Iterator[Cluster]:
    """Three nodes that split the model: two have the secret from the file, one from the environment."""
    with running_cluster(tmp_path_factory.mktemp("ring")) as cluster:
        options = ["--model", MODEL, "--stages", "3"]
        for _ in range(2):
            cluster.launch(*options, "--secret-file", str(secret_file))
        cluster.launch(*options, environment={"PIPPIN_SECRET": SECRET})
        cluster.ready(*[node.started() for node in cluster.nodes], stages=3)
        yield cluster


def test_a_ring_with_a_secret_answers(ring: Cluster, stock: dict[str, str]) -> None:
    for node in ring.nodes:
        assert node.chat("Hello").text == stock["Hello"]
        assert node.streamed("Hello") == stock["Hello"]
        assert not node.warning("open-cluster")
        assert SECRET not in node.written


@pytest.mark.parametrize(
    ("environment", "why", "told"),
    [
        ({}, "it has no secret", "it has a secret and this node has none"),
        ({"PIPPIN_SECRET": "another secret of theirs"}, "it has another secret", "it has another secret"),
    ],
    ids=["none", "another"],
)
def test_a_node_without_the_secret_stays_outside(
    ring: Cluster, stock: dict[str, str], tmp_path: Path, environment: dict[str, str], why: str, told: str
) -> None:
    """It uses the cluster's name, hears its adverts, and has a node's address."""
    first = ring.nodes[0]
    before = ring.ready(*ring.nodes)
    peer = before["nodes"][0]["address"]
    with running_cluster(tmp_path) as outside:
        outside.name = ring.name
        options = ["--peer", peer, "--model", MODEL]
        stranger = outside.launch(*options, name="stranger", environment=environment).started()
        until(lambda: first.state_of(stranger) == "refused", "the stranger is shown as refused")
        port = int(stranger.own()["address"].rpartition(":")[2])
        seen = rf"stranger at \S+:{port} \({why}\)"
        until(lambda: told in stranger.warning("secret-mismatch"), "the stranger is told why")
        until(lambda: re.search(seen, first.warning("secret-mismatch")), "so is the other one, with its address")
        (row,) = [node for node in first.status()["nodes"] if node["name"] == "stranger"]
        assert row["reason"] == "secret"
        outside.ready(stranger)  # a cluster of its own
        assert stranger.chat("Hello").text == stock["Hello"]
        until(lambda: "--peer" in stranger.written, "its log says that the peer does not take it")
        until(lambda: "stranger" in first.written and why in first.written, "so does the other's log")
        after = ring.ready(*ring.nodes)
        assert (after["head"], after["term"], after["epoch"]) == (before["head"], before["term"], before["epoch"])
        for node in ring.nodes:
            assert node.chat("Hello").text == stock["Hello"]
        assert re.search("stranger +not joined: no common secret", first.command("status").stdout)
        deaf = outside.launch("--no-mdns", "--peer", peer, "--memory", "1MB", environment={"PIPPIN_SECRET": SECRET})
        deaf.started()
        until(
            lambda: re.search(seen, deaf.warning("secret-mismatch")),
            "the others tell it to a node that hears no advert",
        )
    until(lambda: first.state_of(stranger) == "", "its goodbye takes it out of the status")


def test_a_node_without_a_usable_secret_does_not_start(cluster: Cluster, tmp_path: Path) -> None:
    """Least of all without a secret: that would be an open node."""
    short = tmp_path / "short"
    short.write_text("secret\n")
    short.chmod(0o600)
    cases = {
        ("--secret-file", str(tmp_path / "nothing")): "can't be read",
        ("--secret-file", str(short)): "at most 28 bits",
        (): "PIPPIN_SECRET can be guessed",
    }
    nodes = [cluster.launch(*options, environment={} if options else {"PIPPIN_SECRET": " "}) for options in cases]
    for node, said in zip(nodes, cases.values(), strict=True):
        assert node.wait() == 1
        assert said in node.written


def test_an_open_cluster_says_so(three: Cluster, cluster: Cluster) -> None:
    """Unless it listens on loopback only."""
    node = cluster.launch(host="").started()
    assert "every machine" in until(lambda: node.warning("open-cluster"), "a warning")
    (hint,) = [each["hint"] for each in node.status()["warnings"] if each["code"] == "open-cluster"]
    assert "--secret-file" in hint
    assert not three.nodes[0].warning("open-cluster")


def test_a_peer_with_another_secret_is_shown_without_multicast(ring: Cluster, tmp_path: Path) -> None:
    peer = ring.ready(*ring.nodes)["nodes"][0]["address"]
    with running_cluster(tmp_path) as outside:
        outside.name = ring.name
        wrong = {"PIPPIN_SECRET": "another secret of theirs"}
        stranger = outside.launch("--peer", peer, "--no-mdns", environment=wrong).started()
        until(lambda: peer in stranger.warning("secret-mismatch"), "the joiner's status says why it stays alone")
        (row,) = [node for node in stranger.status()["nodes"] if node["name"] == peer]
        assert (row["state"], row["reason"]) == ("refused", "secret")
