import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core.reports import Path
from node.members.paths import _NOISE, _NOISE_MS, Paths


def test_the_quickest_address_is_used():
    paths = Paths()
    assert paths.best("b", 0.0) is None
    paths.observe("b", "192.168.1.2", 8.0, 0.0, interface="en1", kind="wi-fi")
    paths.observe("b", "169.254.1.2", 0.3, 0.0, interface="bridge0", kind="thunderbolt")
    assert paths.best("b", 1.0) == Path("b", "169.254.1.2", 0.3, "bridge0", "thunderbolt")


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
    assert paths.to_peers(0.0) == (Path("b", "cable", 3.0),)
    for _ in range(5):
        paths.observe("b", "cable", 50.0, 0.0)
    assert paths.to_peers(0.0) == (Path("b", "wi-fi", 5.0),)


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
    assert paths.to_peers(20.0) == (Path("b", "x", 9.0),)


def test_a_peer_that_is_gone_is_forgotten():
    paths = Paths()
    paths.observe("b", "x", 1.0, 0.0)
    paths.observe("a", "y", 1.0, 0.0)
    paths.forget("b")
    assert [link.to for link in paths.to_peers(0.0)] == ["a"]


@given(st.lists(st.floats(0, 100), min_size=1))
def test_a_round_trip_is_reported_anew_if_it_changes(measured):
    paths, reported = Paths(stale_after_s=1.0), [measured[0]]
    for at, rtt_ms in enumerate(measured):
        paths.observe("b", "x", rtt_ms, 2.0 * at)  # the last one is stale, so that this one is not smoothed
        (link,) = paths.to_peers(2.0 * at)
        noise = max(_NOISE_MS, _NOISE * reported[-1])
        assert link.rtt_ms == (reported[-1] if abs(rtt_ms - reported[-1]) <= noise else rtt_ms)
        reported.append(link.rtt_ms)


def test_another_path_is_reported_as_it_is():
    paths = Paths()
    paths.observe("b", "x", 1.0, 0.0)
    assert paths.to_peers(0.0) == (Path("b", "x", 1.0),)
    paths.failed("b", "x")
    paths.failed("b", "x")
    paths.observe("b", "y", 1.1, 0.0)
    assert paths.to_peers(0.0) == (Path("b", "y", 1.1),)


def test_a_shorter_round_trip_counts_at_once_and_a_longer_one_slowly():
    paths = Paths()
    paths.observe("b", "x", 8.0, 0.0)
    paths.observe("b", "x", 2.0, 1.0)
    assert paths.to_peers(1.0) == (Path("b", "x", 2.0),)
    paths.observe("b", "x", 8.0, 2.0)
    assert paths.to_peers(2.0) == (Path("b", "x", 3.5),)


# --- kinds and bandwidth ----------------------------------------------------------------------------------------------

RTTS = {"thunderbolt": 0.9, "ethernet": 0.6, "wi-fi": 1.0, "": 0.5}


def measured(kinds, *, rtts=RTTS):
    """Paths to one peer, each over an interface and to an address named like its kind."""
    paths = Paths()
    for kind in kinds:
        paths.observe("b", kind or "vpn", rtts[kind], 0.0, interface=kind or "vpn", kind=kind)
    return paths


def used(paths, now=0.0):
    return paths.best("b", now).address


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("kinds", "best"),
    [
        (("thunderbolt", "ethernet", "wi-fi", ""), "thunderbolt"),
        (("ethernet", "wi-fi", ""), "ethernet"),
        (("wi-fi", ""), "wi-fi"),
    ],
)
def test_thunderbolt_goes_before_ethernet_before_wifi_though_its_round_trip_is_longer(kinds, best, order):
    assert used(measured(kinds[::order])) == best


@pytest.mark.parametrize(("rtt", "best"), [(1.9, "thunderbolt"), (2.1, "ethernet")])
def test_a_path_more_than_twice_as_long_is_passed_over_whatever_its_kind(rtt, best):
    assert used(measured(("thunderbolt", "ethernet"), rtts={"thunderbolt": rtt, "ethernet": 1.0})) == best


def test_below_the_share_of_software_a_round_trip_says_nothing():
    assert used(measured(("thunderbolt", "ethernet"), rtts={"thunderbolt": 1.9, "ethernet": 0.3})) == "thunderbolt"
    assert used(measured(("thunderbolt", "ethernet"), rtts={"thunderbolt": 2.1, "ethernet": 0.3})) == "ethernet"


def test_a_path_in_use_is_not_left_at_the_edge():
    paths = measured(("thunderbolt", "ethernet"), rtts={"thunderbolt": 1.9, "ethernet": 1.0})
    assert used(paths) == "thunderbolt"
    for _ in range(20):
        paths.observe("b", "thunderbolt", 2.2, 1.0, interface="thunderbolt", kind="thunderbolt")
    assert used(paths, 1.0) == "thunderbolt"
    for _ in range(20):
        paths.observe("b", "thunderbolt", 4.0, 2.0, interface="thunderbolt", kind="thunderbolt")
    assert used(paths, 2.0) == "ethernet"


def test_a_self_assigned_address_goes_last_on_a_cable():
    """A Mac may route it over another interface."""
    paths = Paths()
    paths.observe("b", "169.254.1.2", 0.3, 0.0, interface="bridge0", kind="thunderbolt")
    assert used(paths) == "169.254.1.2"
    paths.observe("b", "fe80::2%bridge0", 0.5, 0.0, interface="bridge0", kind="thunderbolt")
    assert used(paths) == "fe80::2%bridge0"
    paths.observe("b", "169.254.1.2", 0.3, 0.0, interface="bridge0", kind="thunderbolt")
    assert used(paths) == "fe80::2%bridge0"


def test_a_cable_that_is_slower_than_another_kind_should_be_is_left_and_gets_another_chance():
    paths = measured(("thunderbolt", "ethernet"))
    assert paths.unmeasured("b", 0.0) == "thunderbolt"
    paths.observe_bandwidth("b", "thunderbolt", 3e7, 1.0)
    assert used(paths, 1.0) == "ethernet"
    assert paths.unmeasured("b", 1.0) == "ethernet"
    paths.observe_bandwidth("b", "ethernet", 9e7, 1.0)
    assert paths.to_peers(2.0) == (Path("b", "ethernet", 0.6, "ethernet", "ethernet", 9e7),)
    seen = 0.0
    while used(paths, seen) == "ethernet":
        seen += 10.0
        for kind in ("thunderbolt", "ethernet"):
            paths.observe("b", kind, RTTS[kind], seen, interface=kind, kind=kind)
        if seen == 700.0:
            assert paths.unmeasured("b", seen) == "ethernet"
            paths.observe_bandwidth("b", "ethernet", 9e7, seen)
    assert 1200 <= seen <= 1220
    assert paths.unmeasured("b", seen) == "thunderbolt"


def test_equal_bandwidths_do_not_change_the_path():
    paths = Paths()
    for address, rtt in (("first", 1.0), ("other", 0.9)):
        paths.observe("b", address, rtt, 0.0, kind="ethernet")
    first = used(paths)
    paths.observe_bandwidth("b", first, 8e7, 0.0)
    assert used(paths) == first


def test_a_bandwidth_is_measured_once_and_then_every_ten_minutes():
    paths = measured(("ethernet",))
    assert paths.unmeasured("b", 0.0) == "ethernet"
    paths.observe_bandwidth("b", "ethernet", 0.0, 0.0)  # it failed
    paths.observe("b", "ethernet", 0.6, 10.0, interface="ethernet", kind="ethernet")
    assert paths.unmeasured("b", 10.0) is None
    for seen in range(20, 620, 10):
        assert paths.unmeasured("b", seen - 10) is None or seen > 600
        paths.observe("b", "ethernet", 0.6, float(seen), interface="ethernet", kind="ethernet")
    assert paths.unmeasured("b", 610.0) == "ethernet"
    assert paths.unmeasured("nobody", 610.0) is None


def test_a_measurement_belongs_to_its_interface():
    paths = measured(("ethernet",))
    paths.observe_bandwidth("b", "ethernet", 5e7, 0.0)
    paths.observe("b", "ethernet", 0.6, 5.0, interface="en9", kind="wi-fi")
    assert paths.to_peers(5.0) == (Path("b", "ethernet", 0.6, "en9", "wi-fi"),)
    paths.observe_bandwidth("b", "gone", 5e7, 5.0)


def test_a_path_that_was_not_probed_for_long_is_no_link_any_more() -> None:
    paths = Paths(stale_after_s=15.0)
    paths.observe("b", "10.0.0.2", 1.0, now=0.0)
    paths.observe("c", "10.0.0.3", 1.0, now=10.0)
    assert [[link.to for link in paths.to_peers(now)] for now in (10.0, 14.9, 15.0, 24.9, 25.0)] == [
        ["b", "c"],
        ["b", "c"],
        ["c"],
        ["c"],
        [],
    ]
    paths.observe("b", "10.0.0.2", 1.0, now=25.0)
    assert [link.to for link in paths.to_peers(25.0)] == ["b"]
    paths.forget("b")
    assert paths.to_peers(25.0) == ()
