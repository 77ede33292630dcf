from dataclasses import replace

from hypothesis import given

from node.core.models import ModelVersion, Shard
from node.core.nodes import Memory, PeerHint
from node.core.reports import Path, RingTraffic, StageReport, StageState
from node.core.rings import Fence
from node.placement.normalize import normalize
from node.placement.place import place
from tests.placement.test_placement import clusters, node, specs


def test_what_changes_all_the_time_and_decides_nothing_is_left_out():
    still = node("a", 8, paths=[("b", 1.0)])
    busy = replace(
        still,
        memory=Memory(still.memory.total, still.memory.usable, 5),
        stages=(StageReport("r", Shard(ModelVersion("m"), 0, 2), StageState.LOADING, 0.7),),
        traffic=(RingTraffic("r", 3, 1, 20.0),),
        paths=(Path("b", "10.0.0.9", 1.0, "en0", "wi-fi"),),
        peers=(PeerHint("b", (), 1),),
        term=7,
        head="b",
        fence=Fence(7, 8),
        preload=("m",),
        lag_s=0.3,
        job_s=2.0,
        disk_error="full",
    )
    assert normalize([still]) == normalize([busy])
    for change in (
        {"memory": Memory(1, 1)},
        {"stages": (StageReport("r", Shard(ModelVersion("m"), 0, 2), StageState.READY, 1.0),)},
        {"idle": (Shard(ModelVersion("m"), 0, 2),)},
        {"models": ("m",)},
        {"min_stages": 2},
        {"draining": True},
        {"paths": ()},
    ):
        assert normalize([replace(still, **change)]) != normalize([busy])


@given(specs(), clusters())
def test_a_placement_needs_nothing_else(spec, nodes):
    def placed(reports):
        return place([spec], reports, fence=Fence(1, 1), head="a")

    assert placed(normalize(nodes)) == placed(nodes)
