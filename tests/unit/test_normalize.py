import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from node.core.types import Fence, Link, Memory, PeerHint, RingTraffic, Shard, StageReport, StageState
from node.placement.normalize import NOISE, NOISE_MS, Normalizer
from node.placement.place import place
from tests.unit.test_placement import clusters, node, specs


def rtts(normalizer: Normalizer, rtt: float) -> list[float]:
    (report,) = normalizer.normalize([node("a", 1, links=[("b", rtt)])])
    return [link.rtt_ms for link in report.links]


@given(st.floats(0, 100), st.lists(st.floats(-0.99, 0.99), max_size=20))
def test_noise_of_measuring_is_no_change(first, wavers):
    normalizer = Normalizer()
    assert rtts(normalizer, first) == [first]
    for waver in wavers:
        noisy = max(0.0, first + waver * max(NOISE_MS, NOISE * first / (1 + NOISE)))
        assert rtts(normalizer, noisy) == [first]


@given(st.lists(st.floats(0, 100) | st.just(math.inf), min_size=1))
def test_what_is_taken_is_never_far_from_what_is_measured(measured):
    normalizer = Normalizer()
    for rtt in measured:
        (taken,) = rtts(normalizer, rtt)
        assert taken == rtt or abs(taken - rtt) <= max(NOISE_MS, NOISE * min(taken, rtt))


def test_what_changes_all_the_time_and_decides_nothing_is_left_out():
    still = node("a", 8, links=[("b", 1.0)])
    busy = replace(
        still,
        memory=Memory(still.memory.total, still.memory.usable, 5),
        stages=(StageReport("r", Shard("m", 0, 2), StageState.LOADING, 0.7),),
        traffic=(RingTraffic("r", 3, 1, 20.0),),
        links=(Link("b", "10.0.0.9", 1.1, "en0", "wi-fi"),),
        peers=(PeerHint("b", (), 1),),
        term=7,
        head="b",
        fence=Fence(7, 8),
        preload=("m",),
        lag_s=0.3,
        job_s=2.0,
        disk_error="full",
    )
    normalizer = Normalizer()
    assert normalizer.normalize([still]) == normalizer.normalize([busy])
    for change in (
        {"memory": Memory(1, 1)},
        {"stages": (StageReport("r", Shard("m", 0, 2), StageState.READY, 1.0),)},
        {"idle": (Shard("m", 0, 2),)},
        {"models": ("m",)},
        {"min_stages": 2},
        {"draining": True},
        {"links": ()},
    ):
        assert normalizer.normalize([replace(still, **change)]) != normalizer.normalize([busy])


@given(specs(), clusters())
def test_a_placement_needs_nothing_else(spec, nodes):
    def placed(reports):
        return place([spec], reports, fence=Fence(1, 1), head="a")

    assert placed(Normalizer().normalize(nodes)) == placed(nodes)
