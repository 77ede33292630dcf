"""Three hosts on one switch: they find each other by multicast, and survive a pulled cable."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import PATIENCE_S, Cluster, Node, until
from tests.netns.conftest import Host, cluster_on, ip

pytestmark = pytest.mark.slow

STREAMS: list[dict[str, Any]] = [
    {"content": "Count from 1 to 100", "max_tokens": 300},
    *({"content": f"Count from {n} to 60", "max_tokens": 120, "ignore_eos": True} for n in (1, 2, 3)),
    *({"content": "Tell me a story.", "max_tokens": 120, "temperature": 1, "seed": n} for n in (1, 2, 3, 4)),
]
LOOKS_S = 5.0
"""A node's interval for looking up its own addresses: cut off for longer, it finds only loopback."""


@pytest.fixture(scope="module")
def cluster(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes; the model is split over two of them."""
    with cluster_on(hosts, tmp_path_factory.mktemp("hosts"), "--stages", "2") as cluster:
        yield cluster


def holders(cluster: Cluster) -> list[Node]:
    """The nodes of the ring, its driver first."""
    status = cluster.ready(*cluster.nodes)
    names = {node["id"]: node["name"] for node in status["nodes"]}
    nodes = {node.name: node for node in cluster.nodes}
    return [nodes[names[stage["node"]]] for stage in status["models"][0]["rings"][0]["stages"]]


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


@contextmanager
def streams(gateway: Node) -> Iterator[list[Future[str]]]:
    """Run all streams at once; enter the body when each has some tokens."""
    begun = threading.Semaphore(0)

    def read(stream: dict[str, Any]) -> str:
        with gateway.stream(**stream) as events:
            for count, _ in enumerate(events):
                if count == 30:
                    begun.release()
            return events.text

    with ThreadPoolExecutor(len(STREAMS)) as pool:
        answers = [pool.submit(read, stream) for stream in STREAMS]
        for _ in STREAMS:
            assert begun.acquire(timeout=PATIENCE_S), [answer.exception(0) for answer in answers if answer.done()]
        yield answers


def texts(answers: list[Future[str]]) -> list[str]:
    return [answer.result() for answer in answers]


def through_a_cut(cluster: Cluster, hosts: list[Host], undisturbed: list[str], lost: Node, out_s: float) -> None:
    """Pull the cable of a node of the ring while another node streams, and plug it in again."""
    rest = [node for node in cluster.nodes if node is not lost]
    gateway = next(node for node in rest if node not in holders(cluster))
    host = hosts[cluster.nodes.index(lost)]
    hello = gateway.streamed("Hello")
    with streams(gateway) as answers:
        host.pull_cable()
        pulled = time.monotonic()
        try:
            until(lambda: {n.state_of(lost) for n in rest} == {"failed"}, f"{lost.name} is shown as failed")
            assert texts(answers) == undisturbed
            cluster.ready(*rest)
            cluster.ready(lost)  # alone, it is its own head and has all layers
            for node in cluster.nodes:
                assert node.chat("Hello").text == hello
            until(lambda: time.monotonic() > pulled + out_s, "the cable is out for as long as it shall be")
        finally:
            host.plug_cable()
    cluster.ready(*cluster.nodes)
    for node in cluster.nodes:
        assert node.streamed("Hello") == hello


def test_the_drivers_cable_is_pulled(cluster: Cluster, hosts: list[Host], undisturbed: list[str]) -> None:
    through_a_cut(cluster, hosts, undisturbed, holders(cluster)[0], 0)


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
            (here,) = [node for node in gateway.status()["nodes"] if node["name"] == gateway.name]
            assert here["layers"], "it took the part of one of them"
        finally:
            first.find(second)
            second.find(first)
    cluster.ready(*cluster.nodes)


def test_a_cable_is_out_for_long(
    cluster: Cluster, hosts: list[Host], stock: dict[str, str], undisturbed: list[str]
) -> None:
    """The cable of a node that is not head: the node comes back as the head of a higher term."""
    ring = holders(cluster)
    head = cluster.head(cluster.ready(*cluster.nodes))
    lost = next(node for node in ring if node is not head)
    through_a_cut(cluster, hosts, undisturbed, lost, LOOKS_S + 1)
    assert cluster.head(cluster.ready(*cluster.nodes)) is lost
    began = time.monotonic()
    while time.monotonic() < began + LOOKS_S + 1:  # meanwhile the node finds its address again
        for node in cluster.nodes:
            assert node.chat("Hello").text == stock["Hello"]
    addresses = {node["name"]: node["address"] for node in cluster.ready(*cluster.nodes)["nodes"]}
    assert addresses[lost.name].startswith(hosts[cluster.nodes.index(lost)].address)
