"""A partitioned network: each side serves if it can, else says why not; healing harms no stream."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.conftest import MODEL, PATIENCE_S, Cluster, Node, until
from tests.netns.conftest import Host, cluster_on, launch_on

pytestmark = pytest.mark.slow

LONG = "Count from 1 to 100"
TOKENS = 1500
PORT = 52415

_RESOLVE = """
import asyncio, sys
from zeroconf import AddressResolver, IPVersion
from zeroconf.asyncio import AsyncZeroconf

async def resolve(name, interface):
    zeroconf = AsyncZeroconf([interface], ip_version=IPVersion.V4Only)
    found = AddressResolver(name)
    await found.async_request(zeroconf.zeroconf, 2000)
    await zeroconf.async_close()
    print(*found.parsed_addresses())

asyncio.run(resolve(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def cluster(hosts: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Each host can hold the model and has its own ring."""
    with cluster_on(hosts, tmp_path_factory.mktemp("partitions"), "--api-port", str(PORT)) as cluster:
        yield cluster


def lose(cluster: Cluster, host: Host, lost: Node) -> None:
    """Pull a cable; wait until both sides have noticed."""
    host.pull_cable()
    rest = [node for node in cluster.nodes if node is not lost]
    until(lambda: {node.state_of(lost) for node in rest} == {"failed"}, f"{lost.name} is shown as failed")
    until(lambda: {lost.state_of(node) for node in rest} == {"failed"}, f"{lost.name} sees nobody")
    cluster.agreed(*rest)
    cluster.agreed(lost)


def test_both_sides_serve_and_their_streams_outlive_the_healing(
    cluster: Cluster, hosts: list[Host], stock: dict[str, str]
) -> None:
    before = cluster.ready(*cluster.nodes)
    lost = cluster.head(before)  # so that both sides change: the others get a new head
    other = next(node for node in cluster.nodes if node is not lost)
    host = hosts[cluster.nodes.index(lost)]
    try:
        lose(cluster, host, lost)
        with (
            lost.stream(LONG, max_tokens=TOKENS, ignore_eos=True) as here,
            other.stream(LONG, max_tokens=TOKENS, ignore_eos=True) as there,
        ):
            for events in (here, there):
                reading = iter(events)
                for _ in range(20):
                    next(reading)
            host.plug_cable()
            after = cluster.agreed(*cluster.nodes)
            assert after["term"] > before["term"]
            assert here.rest() == there.rest()
            assert here.text.startswith(stock[LONG])
    finally:
        host.plug_cable()
    cluster.ready(*cluster.nodes)


def test_the_name_of_the_cluster_follows_the_head(cluster: Cluster, hosts: list[Host]) -> None:
    """As a user's http://home.local:52415."""

    def named_by(client: Host) -> str:
        command = [*client.program, sys.executable, "-c", _RESOLVE, f"{cluster.name}.local.", client.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        (address,) = done.stdout.split()
        front = replace(cluster.nodes[0], host=address, port=PORT, connect=client.connect)
        assert front.chat("Hello").status == 200
        return str(front.get("/health").json["node"])

    head = cluster.head(cluster.ready(*cluster.nodes))
    client = next(host for host, node in zip(hosts, cluster.nodes, strict=True) if node is not head)
    until(lambda: named_by(client) == head.name, "the name leads to the head")
    head.kill()
    rest = [node for node in cluster.nodes if node is not head]
    new = cluster.head(cluster.ready(*rest))
    until(lambda: named_by(client) == new.name, "the name leads to the new head")
    place = cluster.nodes.index(head)
    launch_on(cluster, hosts[place], "--api-port", str(PORT)).started()
    cluster.nodes[place] = cluster.nodes.pop()


def test_a_side_without_room_says_so_and_serves_again(
    hosts: list[Host], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with cluster_on(hosts, tmp_path_factory.mktemp("poor"), last=("--memory", "40MB")) as cluster:
        poor = cluster.nodes[-1]
        with poor.stream(LONG, max_tokens=TOKENS, ignore_eos=True) as events:
            reading = iter(events)
            for _ in range(20):
                next(reading)
            try:
                lose(cluster, hosts[-1], poor)
                with pytest.raises(AssertionError, match="no_capacity"):
                    events.rest()
                answer = poor.chat("Hello")
                assert (answer.status, answer.error["code"]) == (503, "no_capacity")
                assert f"{MODEL} needs" in answer.error["message"]
                assert "has 40.0 MB free" in answer.error["message"]
                assert int(answer.headers["Retry-After"]) > 0
                assert cluster.nodes[0].chat("Hello").status == 200
            finally:
                hosts[-1].plug_cable()
        cluster.agreed(*cluster.nodes)
        until(lambda: poor.chat("Hello").status == 200, "it serves again")
