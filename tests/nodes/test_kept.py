"""What a node has in memory is in memory once, and the status says how much of it no ring needs."""

import re

import pytest

from tests.conftest import MODEL, Cluster

pytestmark = pytest.mark.slow


def test_a_node_whose_layers_grow_reads_only_the_new_ones(cluster: Cluster) -> None:
    nodes = cluster.start(2, "--model", MODEL, "--stages", "2")
    driver, other = cluster.ring(cluster.ready(*nodes, stages=2))
    other.kill()
    cluster.ready(driver, stages=1)
    assert driver.chat("Count from 1 to 5", max_tokens=8).status == 200
    (shared,) = re.findall(r"loaded \S+ layers 0-\d+: \S+ MB, of which (\S+) MB were in memory", driver.written)
    assert float(shared) > 1
    assert driver.own()["memory"]["kept"] < 2**20, "the smaller range has no layers of its own"
