"""Work moves from one ring to another while eight streams run: a replica dies, a node joins, is drained, or leaves."""

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.conftest import MODEL, Cluster, Node, running_cluster, under_way, until

pytestmark = pytest.mark.slow

ASKED = [f"Count from {first} to {first + 40}" for first in range(1, 9)]
TOKENS = 200


def streams(gateways: Sequence[Node]) -> AbstractContextManager[list[Future[str]]]:
    """One stream for each prompt, each some tokens long already."""
    asked = [{"content": content, "max_tokens": TOKENS, "ignore_eos": True} for content in ASKED]
    return under_way([(gateways[number % len(gateways)], each) for number, each in enumerate(asked)], tokens=10)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    with running_cluster(tmp_path_factory.mktemp("undisturbed")) as cluster:
        (node,) = cluster.start(1, "--model", MODEL)
        cluster.ready(node)
        with streams([node]) as answers:
            return [answer.result() for answer in answers]


def texts(answers: list[Future[str]]) -> list[str]:
    return [answer.result() for answer in answers]


def rings(node: Node) -> list[dict[str, Any]]:
    return node.status()["models"][0]["rings"]


def have(node: Node, count: int) -> list[dict[str, Any]]:
    """Wait until there are exactly `count` rings and all are ready."""

    def found() -> list[dict[str, Any]] | None:
        seen = rings(node)
        return seen if [ring["state"] for ring in seen] == ["ready"] * count else None

    return until(found, f"{count} rings are ready: {rings(node)}")


def members(cluster: Cluster, node: Node) -> list[Node]:
    """The nodes of the only ring, as a node sees it."""
    (ring,) = have(node, 1)
    return [cluster.node(node.status(), stage["node"]) for stage in ring["stages"]]


def test_replicas_share_the_load_and_outlive_each_other(cluster: Cluster, undisturbed: list[str]) -> None:
    first, second = cluster.start(2, "--model", MODEL)
    cluster.ready(first, second)
    have(first, 2)
    with streams([first]) as answers:
        until(lambda: min(ring["requests"]["running"] for ring in rings(first)) >= 2, "each ring has some of them")
        second.kill()
        assert texts(answers) == undisturbed
    have(first, 1)


def test_a_node_that_joins_is_used_and_nobody_waits(cluster: Cluster, undisturbed: list[str]) -> None:
    """The joining node's `--stages` makes the head replace the only ring; a third node then gets no ring."""
    (first,) = cluster.start(1, "--model", MODEL)
    cluster.ready(first)
    second = cluster.launch("--model", MODEL, "--stages", "2")
    while len(rings(first)[0]["stages"]) < 2:  # streams run whenever it is that the node joins
        with streams([first]) as answers:
            assert texts(answers) == undisturbed
    (ring,) = have(second.started(), 1)
    assert len(ring["stages"]) == 2
    assert first.chat(ASKED[0], max_tokens=TOKENS, ignore_eos=True).text == undisturbed[0]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The model split over two of three nodes."""
    with running_cluster(tmp_path_factory.mktemp("three")) as cluster:
        cluster.ready(*cluster.start(3, "--model", MODEL, "--stages", "2"), stages=2)
        yield cluster


def test_a_node_is_drained_and_no_stream_notices(three: Cluster, undisturbed: list[str]) -> None:
    three.ready(*three.nodes, stages=2)
    for victim in members(three, three.nodes[0]):  # the driver, and then another node of the next ring
        with streams(three.nodes) as answers:
            drained = three.nodes[0].command("drain", victim.name)
            assert (drained.returncode, drained.stdout.splitlines()[0]) == (0, f"{victim.name} is drained")
            until(lambda node=victim: node.state_of(node) == "drained", "it says so itself")
            until(lambda node=victim: node not in members(three, node), "its ring has other nodes")
            assert texts(answers) == undisturbed
        assert victim.chat(ASKED[1], max_tokens=TOKENS, ignore_eos=True).text == undisturbed[1]
        assert three.nodes[0].command("undrain", victim.name).returncode == 0
        until(lambda node=victim: node.state_of(node) in ("idle", "ready"), "it is in use again")


def test_a_node_that_says_goodbye_stays_until_its_streams_have_moved(three: Cluster, undisturbed: list[str]) -> None:
    three.ready(*three.nodes, stages=2)
    victim, _ = members(three, three.nodes[0])
    rest = [node for node in three.nodes if node is not victim]
    with streams(rest) as answers:
        victim.signal(signal.SIGTERM)
        assert victim.wait() == 0
        assert texts(answers) == undisturbed
    assert "lost its ring after 0 tokens" not in "".join(node.written for node in rest)
    three.ready(*rest)
    three.nodes.remove(victim)
    three.launch("--model", MODEL, "--stages", "2", name="next").started()


def test_a_drained_node_stays_so_under_a_new_head(cluster: Cluster) -> None:
    nodes = cluster.start(3, "--model", MODEL)
    head = cluster.head(cluster.ready(*nodes))
    drained, other = (node for node in nodes if node is not head)
    assert nodes[0].command("drain", drained.name).returncode == 0
    head.kill()
    cluster.agreed(drained, other)
    until(lambda: members(cluster, other) == [other], "the last ring is the other one's")
    until(lambda: {node.state_of(drained) for node in (drained, other)} == {"drained"}, "both say that it is drained")


def test_a_node_that_is_needed_is_not_drained(cluster: Cluster) -> None:
    large, small = cluster.launch("--model", MODEL), cluster.launch("--memory", "40MB")
    cluster.ready(large.started(), small.started())
    (before,) = rings(large)
    refused = large.command("drain", large.name)
    assert refused.returncode == 1
    assert "fits nowhere else" in refused.stderr
    assert f"{small.name} has 40.0 MB free" in refused.stderr
    (after,) = rings(large)
    assert (after["id"], after["state"]) == (before["id"], "ready")
    assert large.state_of(large) == "ready"
    answer = small.post(f"/cluster/nodes/{large.name}/drain", None)
    assert (answer.status, answer.error["code"]) == (503, "no_capacity")
    assert small.post("/cluster/nodes/nobody/drain", None).status == 404
    assert small.post(f"/cluster/nodes/{small.name}/drain", None).status == 200
    until(lambda: small.state_of(small) == "drained", "an idle node is drained at once")
