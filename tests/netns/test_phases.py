"""A cable is pulled while requests wait and prompts run, while layers load, and while a head is elected."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cluster, Node, until
from tests.netns.conftest import Host, cluster_on, holders

pytestmark = pytest.mark.slow

NUMBERS = " ".join(str(n) for n in range(1, 110))
"""Some three hundred tokens: several chunks."""
STREAMS: list[dict[str, Any]] = [
    {
        "content": f"{n} {NUMBERS} What comes next?",
        "max_tokens": 60,
        "ignore_eos": True,
        "temperature": n % 2,
        "seed": n,
    }
    for n in range(8)
]


OPTIONS = ("--context", "2048", "--max-sessions", "2", "--max-rings", "1")
"""Room for two requests at a time."""


@pytest.fixture
def cluster(hosts: list[Host], tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes; the model is split over two of them, and the third has loaded nothing yet."""
    with cluster_on(hosts, tmp_path, "--stages", "2", *OPTIONS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def undisturbed(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    with cluster_on(hosts[:1], tmp_path_factory.mktemp("undisturbed"), *OPTIONS) as cluster:
        cluster.ready(*cluster.nodes)
        return [cluster.nodes[0].streamed(**stream) for stream in STREAMS]


def parts(cluster: Cluster) -> tuple[Node, list[Node]]:
    """The node outside of the ring, and the nodes of the ring, its driver first."""
    ring = holders(cluster)
    (gateway,) = [node for node in cluster.nodes if node not in ring]
    return gateway, ring


def under_way(gateway: Node) -> bool:
    """Whether some requests run and some wait."""
    return any(model["requests"]["running"] and model["requests"]["queued"] for model in gateway.status()["models"])


@pytest.mark.parametrize("place", [0, 1], ids=["driver", "stage"])
def test_while_requests_wait_and_prompts_are_run(
    cluster: Cluster, hosts: list[Host], undisturbed: list[str], place: int
) -> None:
    gateway, ring = parts(cluster)
    host = hosts[cluster.nodes.index(ring[place])]
    with ThreadPoolExecutor(len(STREAMS)) as pool:
        answers = [pool.submit(gateway.streamed, **stream) for stream in STREAMS]
        until(lambda: under_way(gateway), "some requests are run and some wait")
        host.pull_cable()
        try:
            assert [answer.result() for answer in answers] == undisturbed
        finally:
            host.plug_cable()
    cluster.ready(*cluster.nodes)


def test_while_layers_are_loaded_and_a_head_is_elected(
    cluster: Cluster, hosts: list[Host], undisturbed: list[str]
) -> None:
    """The second cable is pulled once the first loss is detected: the last node loads the whole model, and is head."""
    gateway, ring = parts(cluster)
    first, second = (hosts[cluster.nodes.index(node)] for node in ring)
    with ThreadPoolExecutor(len(STREAMS)) as pool:
        answers = [pool.submit(gateway.streamed, **stream) for stream in STREAMS]
        until(lambda: under_way(gateway), "some requests are run and some wait")
        loads = gateway.written.count("loading ")
        try:
            first.pull_cable()
            until(lambda: gateway.written.count("loading ") > loads, "the gateway loads a part of the model")
            second.pull_cable()
            assert [answer.result() for answer in answers] == undisturbed
            until(lambda: cluster.head(gateway.status()) is gateway, "it is its own head")
        finally:
            first.plug_cable()
            second.plug_cable()
    cluster.ready(*cluster.nodes)
