import pytest

from node.cluster.topology import Topology
from node.core.types import Link


def test_the_quickest_address_is_used():
    topology = Topology()
    assert topology.best("b", 0.0) is None
    topology.observe("b", "192.168.1.2", 8.0, 0.0, interface="en1", kind="wi-fi")
    topology.observe("b", "169.254.1.2", 0.3, 0.0, interface="bridge0", kind="thunderbolt")
    assert topology.best("b", 1.0) == Link("b", "169.254.1.2", 0.3, "bridge0", "thunderbolt")


@pytest.mark.parametrize(("other", "address"), [(0.9, "first"), (0.81, "first"), (0.5, "other")])
def test_a_way_in_use_is_left_only_for_a_clearly_quicker_one(other, address):
    topology = Topology()
    topology.observe("b", "first", 1.0, 0.0)
    topology.best("b", 0.0)
    topology.observe("b", "other", other, 0.0)
    link = topology.best("b", 0.0)
    assert link
    assert link.address == address


def test_one_late_answer_changes_little_and_many_change_all():
    topology = Topology()
    topology.observe("b", "cable", 1.0, 0.0)
    topology.observe("b", "wi-fi", 5.0, 0.0)
    topology.observe("b", "cable", 9.0, 0.0)
    assert topology.links(0.0) == (Link("b", "cable", 3.0),)
    for _ in range(5):
        topology.observe("b", "cable", 50.0, 0.0)
    assert topology.links(0.0) == (Link("b", "wi-fi", 5.0),)


def test_an_address_is_dropped_after_two_lost_probes_in_a_row():
    topology = Topology()
    topology.observe("b", "x", 1.0, 0.0)
    topology.failed("b", "x")
    topology.observe("b", "x", 1.0, 0.0)
    topology.failed("b", "x")
    assert topology.best("b", 0.0)
    topology.failed("b", "x")
    assert topology.best("b", 0.0) is None
    topology.failed("nobody", "x")


def test_what_was_not_measured_for_long_counts_no_more():
    topology = Topology(stale_after_s=15.0)
    topology.observe("b", "x", 1.0, 0.0)
    assert topology.best("b", 14.0)
    assert topology.best("b", 15.0) is None
    topology.observe("b", "x", 9.0, 20.0)
    assert topology.links(20.0) == (Link("b", "x", 9.0),)


def test_a_peer_that_is_gone_is_forgotten():
    topology = Topology()
    topology.observe("b", "x", 1.0, 0.0)
    topology.observe("a", "y", 1.0, 0.0)
    topology.forget("b")
    assert [link.to for link in topology.links(0.0)] == ["a"]
