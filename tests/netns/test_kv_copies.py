"""Three hosts with slow cables: the KV of a ring's stages is copied to the idle one, which takes it when a cable is pulled."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, Node, until
from tests.netns.conftest import Host, cluster_on, holders, make_hosts
from tests.nodes.test_kv_on_disk import BLOCK, FIRST, blocks_of, stored, text, turn

pytestmark = pytest.mark.slow

RATES = 100, 1000
"""Megabits per second of each cable."""


@pytest.fixture(scope="module", params=RATES)
def slow_hosts(request: pytest.FixtureRequest) -> Iterator[tuple[list[Host], float]]:
    """Three hosts, and the bytes per second of their cables."""
    with ExitStack() as cleanup:
        made = make_hosts(cleanup, 3)
        for host in made:
            slow = ["root", "tbf", "rate", f"{request.param}mbit", "burst", "1mb", "latency", "50ms"]
            command = ["tc", "-n", host.space, "qdisc", "add", "dev", "eth0", *slow]
            subprocess.run(command, check=True, timeout=PATIENCE_S)
        yield made, request.param * 1e6 / 8


def measured(node: Node) -> float:
    return max((float(link["bytes_per_second"]) for link in [node.own()["link"]] if link), default=0.0)


@pytest.mark.parametrize("copies", ["wired", "never"])
def test_a_stage_behind_a_pulled_cable_is_replaced_with_its_kv(
    slow_hosts: tuple[list[Host], float], tmp_path: Path, copies: str
) -> None:
    hosts, rate = slow_hosts
    with cluster_on(hosts, tmp_path, "--stages", "2", "--kv-copies", copies) as cluster:
        ring = holders(cluster)
        idle = next(node for node in cluster.nodes if node not in ring)
        for node in ring:
            until(lambda node=node: 0 < measured(node) < 2 * rate, "its cable is measured")
        first = turn(idle, FIRST)
        if copies == "wired":
            until(lambda: stored(cluster, idle) >= blocks_of(first), "the copies are at the idle node")
        else:
            for node in ring:
                until(lambda node=node: own_files(cluster.directory / node.name) >= blocks_of(first), "it has its KV")
        cut_off = hosts[cluster.nodes.index(ring[1])]
        cut_off.pull_cable()
        try:
            cluster.ready(ring[0], idle, stages=2)
            again = turn(idle, FIRST)
        finally:
            cut_off.plug_cable()
        assert text(again) == text(first)
        # More than once, if the ring is placed anew meanwhile.
        taken = {int(tokens) for tokens in re.findall(r"took KV of (\d+) tokens", idle.written)}
        assert taken == ({blocks_of(first) * BLOCK} if copies == "wired" else set())


def own_files(folder: Path) -> int:
    return len(list((folder / "kv").glob("*/*.safetensors")))
