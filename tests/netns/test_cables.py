"""Two hosts joined by three networks, with several addresses on each. The networks in use fail."""

import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Node, until
from tests.netns.conftest import Host, cluster_on, holders, ip, join, make_hosts

pytestmark = pytest.mark.slow

NETWORKS = 3
ADDRESSES = 3
"""Addresses of each interface; all of them fall silent when its cable is pulled."""


@pytest.fixture(scope="module")
def cables() -> Iterator[list[list[Host]]]:
    """For each host its cables, each as a host on that network alone."""
    with ExitStack() as cleanup:
        first, second = make_hosts(cleanup, 2)
        run = uuid.uuid4().hex[:6]
        made = [[first], [second]]
        for network in range(1, NETWORKS):
            bridge = f"bridge{network}"
            ip("-n", first.switch, "link", "add", bridge, "type", "bridge", "mcast_snooping", "0")
            ip("-n", first.switch, "link", "set", bridge, "up")
            for number, host in enumerate((first, second), start=1):
                port, address = f"{run}{network}{number}", f"10.213.{100 + network}.{number}"
                made[number - 1].append(replace(host, address=address, port=port))
                join(host.switch, port, host.space, f"eth{network}")
                ip("-n", host.switch, "link", "set", port, "master", bridge, "up")
                ip("-n", host.space, "address", "add", f"{address}/24", "dev", f"eth{network}")
                ip("-n", host.space, "link", "set", f"eth{network}", "up")
        for host_cables in made:
            for network, cable in enumerate(host_cables):
                for more in range(1, ADDRESSES):
                    address = re.sub(r"\d+$", lambda last, more=more: str(int(last[0]) + 10 * more), cable.address)
                    ip("-n", cable.space, "address", "add", f"{address}/24", "dev", f"eth{network}")
        yield made


def link(node: Node) -> str:
    """The interface that it uses to send frames."""
    found = node.own()["link"]
    assert found, "it has measured none"
    return str(found["interface"])


def test_the_networks_in_use_go(cables: list[list[Host]], tmp_path: Path, stock: dict[str, str]) -> None:
    """All networks fail except one that neither node uses: many addresses are silent, but no node counts as failed."""
    hosts = [host_cables[0] for host_cables in cables]
    with cluster_on(hosts, tmp_path, "--stages", "2") as cluster:
        driver, stage = holders(cluster)
        loads = [node.loads for node in cluster.nodes]
        with stage.stream("Count from 1 to 100", max_tokens=300) as events:
            next(iter(events))
            used = until(lambda: {link(driver), link(stage)}, "both use a network")
            left = max(network for network in range(NETWORKS) if f"eth{network}" not in used)
            for network, cable in enumerate(cables[cluster.nodes.index(driver)]):
                if network != left:
                    cable.pull_cable()
            assert events.rest() == stock["Count from 1 to 100"]
        until(lambda: {link(driver), link(stage)} == {f"eth{left}"}, "the network that is left is used")
        assert driver.streamed("Hello") == stock["Hello"]
        cluster.ready(driver, stage)
        assert [node.loads for node in cluster.nodes] == loads
        assert not any("is failed" in node.written for node in cluster.nodes)
