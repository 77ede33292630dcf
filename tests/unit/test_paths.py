import pytest

from node.cluster.paths import Paths
from node.core.types import Link


def test_the_quickest_address_is_used():
    paths = Paths()
    assert paths.best("b", 0.0) is None
    paths.observe("b", "192.168.1.2", 8.0, 0.0, interface="en1", kind="wi-fi")
    paths.observe("b", "169.254.1.2", 0.3, 0.0, interface="bridge0", kind="thunderbolt")
    assert paths.best("b", 1.0) == Link("b", "169.254.1.2", 0.3, "bridge0", "thunderbolt")


@pytest.mark.parametrize(("other", "address"), [(0.9, "first"), (0.81, "first"), (0.5, "other")])
def test_a_way_in_use_is_left_only_for_a_clearly_quicker_one(other, address):
    paths = Paths()
    paths.observe("b", "first", 1.0, 0.0)
    paths.best("b", 0.0)
    paths.observe("b", "other", other, 0.0)
    link = paths.best("b", 0.0)
    assert link
    assert link.address == address


def test_one_late_answer_changes_little_and_many_change_all():
    paths = Paths()
    paths.observe("b", "cable", 1.0, 0.0)
    paths.observe("b", "wi-fi", 5.0, 0.0)
    paths.observe("b", "cable", 9.0, 0.0)
    assert paths.links(0.0) == (Link("b", "cable", 3.0),)
    for _ in range(5):
        paths.observe("b", "cable", 50.0, 0.0)
    assert paths.links(0.0) == (Link("b", "wi-fi", 5.0),)


def test_an_address_is_dropped_after_two_lost_probes_in_a_row():
    paths = Paths()
    paths.observe("b", "x", 1.0, 0.0)
    paths.failed("b", "x")
    paths.observe("b", "x", 1.0, 0.0)
    paths.failed("b", "x")
    assert paths.best("b", 0.0)
    paths.failed("b", "x")
    assert paths.best("b", 0.0) is None
    paths.failed("nobody", "x")


def test_what_was_not_measured_for_long_counts_no_more():
    paths = Paths(stale_after_s=15.0)
    paths.observe("b", "x", 1.0, 0.0)
    assert paths.best("b", 14.0)
    assert paths.best("b", 15.0) is None
    paths.observe("b", "x", 9.0, 20.0)
    assert paths.links(20.0) == (Link("b", "x", 9.0),)


def test_a_peer_that_is_gone_is_forgotten():
    paths = Paths()
    paths.observe("b", "x", 1.0, 0.0)
    paths.observe("a", "y", 1.0, 0.0)
    paths.forget("b")
    assert [link.to for link in paths.links(0.0)] == ["a"]
