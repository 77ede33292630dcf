"""Three hosts on one switch: they find each other by multicast, and outlive a pulled cable."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.conftest import Cluster, Node, until
from tests.netns.conftest import Host, cluster_on

pytestmark = pytest.mark.slow

LONG = "Count from 1 to 100"
LOOKS_S = 5.0
"""How often a node looks for its own addresses: one that is cut off for longer finds none but loopback."""


@pytest.fixture(scope="module")
def cluster(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The model is split over two of three."""
    with cluster_on(hosts, tmp_path_factory.mktemp("hosts"), "--stages", "2") as cluster:
        yield cluster


def holders(cluster: Cluster) -> list[Node]:
    """The nodes of the ring, its driver first."""
    status = cluster.ready(*cluster.nodes)
    names = {node["id"]: node["name"] for node in status["nodes"]}
    nodes = {node.name: node for node in cluster.nodes}
    return [nodes[names[stage["node"]]] for stage in status["models"][0]["rings"][0]["stages"]]


def test_any_host_answers_at_its_address(cluster: Cluster, hosts: list[Host], stock: dict[str, str]) -> None:
    """Asked from another host each time."""
    for node, client in zip(cluster.nodes, [hosts[-1], *hosts[:-1]], strict=True):
        there = replace(node, connect=client.connect)
        assert there.chat("Hello").text == stock["Hello"]
        assert there.streamed("Hello") == stock["Hello"]
    status = cluster.ready(*cluster.nodes)
    assert {node["address"].rpartition(":")[0] for node in status["nodes"]} == {host.address for host in hosts}
    assert {node["link"]["interface"] for node in status["nodes"] if node["link"]} == {"eth0"}


def through_a_cut(cluster: Cluster, hosts: list[Host], stock: dict[str, str], lost: Node, out_s: float) -> None:
    """Pull the cable of a node of the ring while another node streams, and plug it in again."""
    rest = [node for node in cluster.nodes if node is not lost]
    gateway = next(node for node in rest if node not in holders(cluster))
    host = hosts[cluster.nodes.index(lost)]
    with gateway.stream(LONG, max_tokens=300) as events:
        reading = iter(events)
        for _ in range(30):
            next(reading)
        host.pull_cable()
        pulled = time.monotonic()
        try:
            until(lambda: {n.state_of(lost) for n in rest} == {"failed"}, 5, f"{lost.name} is shown as failed")
            assert events.rest() == stock[LONG]
            cluster.ready(*rest)
            cluster.ready(lost)  # alone, it is its own head and has all layers
            for node in cluster.nodes:
                assert node.chat("Hello").text == stock["Hello"]
            until(lambda: time.monotonic() > pulled + out_s, out_s, "the cable is out for as long as it shall be")
        finally:
            host.plug_cable()
    cluster.ready(*cluster.nodes)
    for node in cluster.nodes:
        assert node.streamed("Hello") == stock["Hello"]


def test_the_drivers_cable_is_pulled(cluster: Cluster, hosts: list[Host], stock: dict[str, str]) -> None:
    through_a_cut(cluster, hosts, stock, holders(cluster)[0], 0)


def test_a_cable_is_out_for_long(cluster: Cluster, hosts: list[Host], stock: dict[str, str]) -> None:
    """Of a node that is not head: it comes back as the head of a higher term."""
    ring = holders(cluster)
    head = cluster.head(cluster.ready(*cluster.nodes))
    lost = next(node for node in ring if node is not head)
    through_a_cut(cluster, hosts, stock, lost, LOOKS_S + 1)
    assert cluster.head(cluster.ready(*cluster.nodes)) is lost
    began = time.monotonic()
    while time.monotonic() < began + LOOKS_S + 1:  # meanwhile it finds its address again
        for node in cluster.nodes:
            assert node.chat("Hello").text == stock["Hello"]
    addresses = {node["name"]: node["address"] for node in cluster.ready(*cluster.nodes)["nodes"]}
    assert addresses[lost.name].startswith(hosts[cluster.nodes.index(lost)].address)
