"""Two hosts on a slow switch and on a cable of their own, whose interfaces have IPv6 link-local addresses only."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE_S, Cluster, Node, until
from tests.netns.conftest import Host, cluster_on, holders, ip, join, make_hosts

pytestmark = pytest.mark.slow

CABLE = "thunderbolt0"
"""As Linux names it; its kind is known by this name."""
PORT = 24160
"""Below the ports that the kernel gives to outgoing connections, of which one may still have a port of that range."""


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Host]]:
    with ExitStack() as cleanup:
        first, second = made = make_hosts(cleanup, 2)
        join(first.space, CABLE, second.space, CABLE)
        for number, host in enumerate(made, start=1):
            ip("-n", host.space, "link", "set", CABLE, "addrgenmode", "none")
            ip("-n", host.space, "link", "set", CABLE, "up")
            ip("-n", host.space, "address", "add", f"fe80::{number}/64", "dev", CABLE, "nodad")
            # Otherwise both are as wide as the processor is quick, and either may be measured as the wider one.
            slow = ["root", "tbf", "rate", "30mbit", "burst", "64kb", "latency", "50ms"]
            subprocess.run(
                ["tc", "-n", host.space, "qdisc", "add", "dev", "eth0", *slow], check=True, timeout=PATIENCE_S
            )
        yield made


def over_cable(cluster: Cluster) -> list[dict[str, Any]]:
    """The links of the two nodes, once both are over the cable and were measured."""
    found = [node["link"] for node in cluster.ready(*cluster.nodes)["nodes"] if node["link"]]
    ends = [(link["interface"], link["kind"]) for link in found]
    assert ends == [(CABLE, "thunderbolt")] * 2, found
    assert all(link["bytes_per_second"] for link in found), found
    return found


def test_the_cable_is_found_and_used_and_people_see_the_network(
    pair: list[Host], tmp_path: Path, stock: dict[str, str]
) -> None:
    with cluster_on(pair, tmp_path, "--stages", "2") as cluster:
        measured = until(lambda: over_cable(cluster), "both use the cable")
        assert all(link["bytes_per_second"] > 1e6 for link in measured)
        status = cluster.nodes[0].status()
        assert {node["address"].rpartition(":")[0] for node in status["nodes"]} == {host.address for host in pair}
        assert status["api"].startswith("http://10.213.7.")
        for host in pair:
            host.pull_cable()  # of the switch
        try:
            driver, _ = holders(cluster)
            assert driver.streamed("Hello") == stock["Hello"]
            assert driver.streamed("Count from 1 to 100", max_tokens=300) == stock["Count from 1 to 100"]
        finally:
            for host in pair:
                host.plug_cable()
        assert not any("is failed" in node.written for node in cluster.nodes)


@pytest.mark.parametrize("secret", [(), ("--secret-file", "secret")], ids=["open", "secret"])
def test_a_cable_alone_with_the_peer_given_by_hand(
    pair: list[Host], tmp_path: Path, stock: dict[str, str], secret: Sequence[str]
) -> None:
    """Without mDNS, and with no other address known."""
    if secret:
        path = tmp_path / "secret"
        path.write_text("f3b5a8d0c19e47620b8d5f1e9a7c3246\n")
        path.chmod(0o600)
        secret = ("--secret-file", str(path))
    options = ("--no-mdns", "--interface", CABLE, "--grpc-port", str(PORT), "--stages", "2", *secret)
    with cluster_on(pair, tmp_path, *options, last=("--peer", f"[fe80::1%{CABLE}]:{PORT}")) as cluster:
        until(lambda: over_cable(cluster), "both use the cable")
        loads = [node.loads for node in cluster.nodes]
        for node in cluster.nodes:
            assert node.chat("Hello").text == stock["Hello"]
        assert [node.loads for node in cluster.nodes] == loads
        assert all(node["address"].startswith("[fe80::") for node in cluster.nodes[0].status()["nodes"])


def test_a_cable_that_moves_to_another_port_is_used_there(
    pair: list[Host], tmp_path: Path, stock: dict[str, str]
) -> None:
    """The port's interface has another name, and the address that the first one had: no address changes."""
    moved, first = "thunderbolt1", pair[0]
    with cluster_on(pair, tmp_path, "--stages", "2") as cluster:
        until(lambda: over_cable(cluster), "both use the cable")
        ip("-n", first.space, "link", "set", CABLE, "down")
        ip("-n", first.space, "link", "set", CABLE, "name", moved)
        try:
            ip("-n", first.space, "link", "set", moved, "up")
            ip("-n", first.space, "address", "replace", "fe80::1/64", "dev", moved, "nodad")
            node, other = cluster.nodes
            ends = {node.name: moved, other.name: CABLE}
            until(lambda: link_interfaces(node) == ends, "both use the cable again")
            assert node.streamed("Hello") == other.streamed("Hello") == stock["Hello"]
        finally:
            ip("-n", first.space, "link", "set", moved, "down")
            ip("-n", first.space, "link", "set", moved, "name", CABLE)
            ip("-n", first.space, "link", "set", CABLE, "up")
            ip("-n", first.space, "address", "replace", "fe80::1/64", "dev", CABLE, "nodad")


def link_interfaces(node: Node) -> dict[str, str]:
    """The interface of each node's link in the ring."""
    return {each["name"]: each["link"]["interface"] for each in node.status()["nodes"] if each["link"]}
