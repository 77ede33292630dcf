"""Three hosts on one switch: they find each other by multicast, and survive a pulled cable."""

import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import Cluster, Node, under_way, until
from tests.netns.conftest import Host, cluster_on, holders, ip

pytestmark = pytest.mark.slow

STREAMS: list[dict[str, Any]] = [
    {"content": "Count from 1 to 100", "max_tokens": 300},
    *({"content": f"Count from {n} to 60", "max_tokens": 120, "ignore_eos": True} for n in (1, 2, 3)),
    *({"content": "Tell me a story.", "max_tokens": 120, "temperature": 1, "seed": n} for n in (1, 2, 3, 4)),
]


@pytest.fixture(scope="module")
def cluster(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes; the model is split over two of them."""
    with cluster_on(hosts, tmp_path_factory.mktemp("hosts"), "--stages", "2") as cluster:
        yield cluster


def test_any_host_answers_at_its_address(cluster: Cluster, hosts: list[Host], stock: dict[str, str]) -> None:
    """Each time from another host."""
    for node, client in zip(cluster.nodes, [hosts[-1], *hosts[:-1]], strict=True):
        there = replace(node, connect=client.connect)
        assert there.chat("Hello").text == stock["Hello"]
        assert there.streamed("Hello") == stock["Hello"]
    status = cluster.ready(*cluster.nodes)
    assert {node["address"].rpartition(":")[0] for node in status["nodes"]} == {host.address for host in hosts}
    assert {node["link"]["interface"] for node in status["nodes"] if node["link"]} == {"eth0"}


@contextmanager
def set_up(*commands: tuple[str, ...]) -> Iterator[None]:
    """Add addresses or the like to hosts; remove them at the end."""
    with ExitStack() as cleanup:
        for space, kind, *what in commands:
            ip("-n", space, *kind.split(), "add", *what)
            cleanup.callback(ip, "-n", space, *kind.split(), "delete", *[word for word in what if word != "nodad"])
        yield


def test_a_public_address_gets_nothing(cluster: Cluster, hosts: list[Host]) -> None:
    """Unless the two ends are in one IPv6 /64, as on a home network."""
    here, there = hosts[0].space, hosts[-1].space
    with set_up(
        (there, "address", "203.0.113.9/32", "dev", "eth0"),
        (here, "route", "203.0.113.9/32", "dev", "eth0"),
        (here, "address", "2001:db8:7::1/64", "dev", "eth0", "nodad"),
        (there, "address", "2001:db8:7::9/64", "dev", "eth0", "nodad"),
        (there, "address", "2001:db8:8::9/64", "dev", "eth0", "nodad"),
        (here, "-6 route", "2001:db8:8::/64", "dev", "eth0"),
    ):

        def asked_from(source: str, host: str) -> Node:
            def connect(address: Any, timeout: float, _: object = None) -> socket.socket:
                return hosts[-1].connect(address, timeout, (source, 0))

            return replace(cluster.nodes[0], host=host, connect=connect)

        for stranger in (
            asked_from("203.0.113.9", hosts[0].address),
            asked_from("2001:db8:8::9", "2001:db8:7::1"),
        ):
            for answer in (
                stranger.get("/health"),
                stranger.chat("Hello"),
                stranger.post(f"/cluster/nodes/{cluster.nodes[0].name}/drain", {}),
            ):
                assert (answer.status, answer.error["code"]) == (403, "not_admitted")
        assert asked_from("2001:db8:7::9", "2001:db8:7::1").chat("Hello").status == 200
        assert asked_from(hosts[-1].address, hosts[0].address).chat("Hello").status == 200


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, stock: dict[str, str]) -> list[str]:
    """The streams' texts when all cables are in."""
    texts = [cluster.nodes[0].streamed(**stream) for stream in STREAMS]
    assert texts[0] == stock[STREAMS[0]["content"]]
    return texts


def streams(gateway: Node) -> AbstractContextManager[list[Future[str]]]:
    return under_way([(gateway, stream) for stream in STREAMS], tokens=30)


def texts(answers: list[Future[str]]) -> list[str]:
    return [answer.result() for answer in answers]


def test_two_nodes_of_the_ring_lose_each_other_alone(
    cluster: Cluster, hosts: list[Host], undisturbed: list[str]
) -> None:
    """As when a direct cable between them fails. The third reaches both and takes over a part."""
    ring = holders(cluster)
    (gateway,) = [node for node in cluster.nodes if node not in ring]
    first, second = (hosts[cluster.nodes.index(node)] for node in ring)
    with streams(gateway) as answers:
        first.lose(second)
        second.lose(first)
        try:
            assert texts(answers) == undisturbed
            until(lambda: gateway.own()["layers"], "it took the part of one of them")
        finally:
            first.find(second)
            second.find(first)
    cluster.ready(*cluster.nodes)


def test_a_cable_is_out_for_long(
    cluster: Cluster, hosts: list[Host], stock: dict[str, str], undisturbed: list[str]
) -> None:
    """That of a node of the ring that is not head: it loses its address, and comes back as the head of a higher term."""
    ring = holders(cluster)
    head = cluster.head(cluster.nodes[0].status())
    lost = next(node for node in ring if node is not head)
    rest = [node for node in cluster.nodes if node is not lost]
    host = hosts[cluster.nodes.index(lost)]

    def moves() -> int:
        return lost.written.count("this node's addresses are now")

    before = moves()
    with streams(next(node for node in rest if node not in ring)) as answers:
        host.pull_cable()
        try:
            until(lambda: {n.state_of(lost) for n in rest} == {"failed"}, f"{lost.name} is shown as failed")
            assert texts(answers) == undisturbed
            cluster.ready(*rest)
            cluster.ready(lost)  # alone, it is its own head and has all layers
            for node in cluster.nodes:
                assert node.chat("Hello").text == stock["Hello"]
            until(lambda: moves() > before, "it finds that it has only loopback")
        finally:
            host.plug_cable()
    assert cluster.head(cluster.ready(*cluster.nodes)) is lost
    while moves() < before + 2:  # until it finds its address again
        for node in cluster.nodes:
            assert node.chat("Hello").text == stock["Hello"]

    def address() -> str:
        return next(each["address"] for each in head.status()["nodes"] if each["name"] == lost.name)

    until(lambda: address().startswith(host.address), "the others have its address")
    cluster.ready(*cluster.nodes)
