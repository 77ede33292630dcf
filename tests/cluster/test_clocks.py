from node.cluster.clocks import Clocks
from node.core.limits import MAX_NODES


def test_a_late_message_is_no_slow_clock() -> None:
    clocks = Clocks()
    clocks.note("b", 1_005_000, 1_000_000)
    assert clocks.ahead_s() == {"b": 5.0}
    clocks.note("b", 1_015_000, 1_020_000)  # ten seconds on its way, as to a machine that slept
    assert clocks.ahead_s() == {"b": 5.0}
    clocks.note("b", 1_025_000, 1_025_000)  # somebody has set the clock
    clocks.note("b", 1_026_000, 1_026_000)
    assert clocks.ahead_s() == {"b": 0.0}


def test_a_node_of_an_older_version_tells_no_time() -> None:
    clocks = Clocks()
    clocks.note("b", 0, 1_000_000)
    assert clocks.ahead_s() == {}


def test_invented_nodes_take_no_memory() -> None:
    clocks = Clocks()
    for number in range(2 * MAX_NODES):
        clocks.note(str(number), 1, 1)
    assert len(clocks.ahead_s()) == MAX_NODES
