"""Work moves from one ring to another while eight streams run: a replica dies, a node joins, is drained, or leaves."""

import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.conftest import BIN, MODEL, PATIENCE_S, Cluster, Node, running_cluster, until

pytestmark = pytest.mark.slow

ASKED = [f"Count from {first} to {first + 40}" for first in range(1, 9)]
TOKENS = 200


@contextmanager
def streams(gateways: Sequence[Node]) -> Iterator[list[Future[str]]]:
    """One stream for each prompt, each some tokens long already; yields the text of each, ready when it has ended."""
    begun = threading.Semaphore(0)

    def ask(number: int) -> str:
        gateway = gateways[number % len(gateways)]
        with gateway.stream(ASKED[number], max_tokens=TOKENS, ignore_eos=True) as events:
            reading = iter(events)
            for _ in range(10):
                next(reading)
            begun.release()
            return events.rest()

    with ThreadPoolExecutor(len(ASKED)) as pool:
        answers = [pool.submit(ask, number) for number in range(len(ASKED))]
        for _ in ASKED:
            assert begun.acquire(timeout=PATIENCE_S), [answer.exception(0) for answer in answers if answer.done()]
        yield answers


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


def name_of(status: dict[str, Any], node: str) -> str:
    return next(each["name"] for each in status["nodes"] if each["id"] == node)


def members(cluster: Cluster, ring: dict[str, Any]) -> list[Node]:
    status = next(node for node in cluster.nodes if node.process.poll() is None).status()
    names = [name_of(status, stage["node"]) for stage in ring["stages"]]
    return [node for name in names for node in cluster.nodes if node.name == name and node.process.poll() is None]


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
    before = cluster.ready(first)["models"][0]["rings"]
    with streams([first]) as answers:
        second = cluster.launch("--model", MODEL, "--stages", "2").started()
        until(lambda: any(ring["state"] == "retiring" for ring in rings(first)), "the old ring retires")
        assert texts(answers) == undisturbed
    (ring,) = have(second, 1)
    assert len(ring["stages"]) == 2
    assert ring["id"] != before[0]["id"]
    assert first.chat(ASKED[0], max_tokens=TOKENS, ignore_eos=True).text == undisturbed[0]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The model split over two of three nodes."""
    with running_cluster(tmp_path_factory.mktemp("three")) as cluster:
        cluster.ready(*cluster.start(3, "--model", MODEL, "--stages", "2"))
        yield cluster


def command(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(BIN / "cluster"), *arguments, "--api", cluster.nodes[0].url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_node_is_drained_and_no_stream_notices(three: Cluster, undisturbed: list[str]) -> None:
    (ring,) = have(three.nodes[0], 1)
    for victim in members(three, ring):  # the driver, and then another node of the next ring
        with streams(three.nodes) as answers:
            code, said = command(three, "drain", victim.name)
            assert (code, said.splitlines()[0]) == (0, f"{victim.name} is drained")
            assert victim.state_of(victim) == "drained"
            assert victim not in members(three, have(victim, 1)[0])
            assert texts(answers) == undisturbed
        assert victim.chat(ASKED[1], max_tokens=TOKENS, ignore_eos=True).text == undisturbed[1]
        assert command(three, "undrain", victim.name)[0] == 0
        until(lambda node=victim: node.state_of(node) in ("idle", "ready"), "it is in use again")


def test_a_node_that_says_goodbye_stays_until_its_streams_have_moved(three: Cluster, undisturbed: list[str]) -> None:
    victim = members(three, have(three.nodes[0], 1)[0])[0]
    rest = [node for node in three.nodes if node is not victim]
    with streams(rest) as answers:
        victim.signal(signal.SIGTERM)
        assert victim.wait() == 0
        assert texts(answers) == undisturbed
    assert "lost its ring after 0 tokens" not in "".join(node.written for node in rest)
    three.ready(*rest)


def test_a_drained_node_stays_so_under_a_new_head(cluster: Cluster) -> None:
    nodes = cluster.start(3, "--model", MODEL)
    head = cluster.head(cluster.ready(*nodes))
    drained, other = (node for node in nodes if node is not head)
    assert command(cluster, "drain", drained.name)[0] == 0
    head.kill()
    cluster.agreed(drained, other)
    (ring,) = have(other, 1)
    assert members(cluster, ring) == [other]
    assert drained.state_of(drained) == other.state_of(drained) == "drained"


def test_a_node_that_is_needed_is_not_drained(cluster: Cluster) -> None:
    large, small = cluster.launch("--model", MODEL), cluster.launch("--memory", "40MB")
    cluster.ready(large.started(), small.started())
    before = rings(large)
    code, said = command(cluster, "drain", large.name)
    assert code == 1
    assert "fits nowhere else" in said
    assert f"{small.name} has 40.0 MB free" in said
    assert rings(large) == before
    assert large.state_of(large) == "ready"
    answer = small.post(f"/cluster/nodes/{large.name}/drain", None)
    assert (answer.status, answer.error["code"]) == (503, "no_capacity")
    assert small.post("/cluster/nodes/nobody/drain", None).status == 404
    assert small.post(f"/cluster/nodes/{small.name}/drain", None).status == 200
    until(lambda: small.state_of(small) == "drained", "an idle node is drained at once")
