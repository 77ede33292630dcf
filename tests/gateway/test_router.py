"""What a router tells of a model that is not ready, and of a ring that a request lost."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from node.core.errors import NotReady, PeerUnavailable, PippinError, RingLost, replaced
from node.core.models import ModelVersion, Shard
from node.core.nodes import Memory, NodeInfo
from node.core.reports import Download, NodeReport, StageReport, StageState
from node.core.rings import Placement, Ring, StageSpec
from node.core.views import ClusterView, NodeState, PeerView
from node.gateway.router import Router, Tries


async def test_a_refusal_says_how_far_the_load_is() -> None:
    download = Download(1040 * 2**20, 4000 * 2**20, 80 * 2**20)
    load = StageReport("r", Shard(ModelVersion("m"), 0, 22), StageState.FETCHING, 0.26, download=download)
    info = NodeInfo("id-a", 1, "mini-1", "home", "0.1.0", 1, ("10.0.0.1",), 1, 2)
    peer = PeerView(NodeReport(info, Memory(16, 12), stages=(load,)), NodeState.ALIVE)
    agent = SimpleNamespace(view=lambda: ClusterView("id-a", 1, "id-a", (peer,), Placement()))
    router = Router(agent, *[None] * 3)  # type: ignore[arg-type]
    with pytest.raises(NotReady) as refused:
        await router.wait_for_rings("m", 0.0, "a")
    assert str(refused.value) == (
        "m is still loading after 0 s. "
        "mini-1 has fetched 26 % of layers 0-21 of m: 1.0 of 3.9 GB, 80.0 MB/s, 37 s left. "
        "Try again later; `cluster status` shows how far it is."
    )


async def test_a_request_that_lost_its_ring_is_told_why_and_not_that_a_model_loads() -> None:
    agent = SimpleNamespace(view=lambda: ClusterView("id-a", 1, "id-a", (), Placement()))
    router = Router(agent, *[None] * 3)  # type: ignore[arg-type]
    lost = RingLost("The ring ended: Nothing came back.", hint="Raise --step-timeout.")
    with pytest.raises(RingLost) as told:
        await router.wait_for_rings("m", 0.0, "a", lost=lost)
    assert str(told.value) == (
        "The ring ended: Nothing came back. No ring of m took over within 0 s. Raise --step-timeout."
    )


@pytest.mark.parametrize("gone_s", [0.0, 60.0])
async def test_a_driver_that_has_just_failed_is_not_taken_for_one_that_only_this_node_does_not_reach(
    gone_s: float,
) -> None:
    """However long its silence was: with a long --fail-after, the head has not replaced it yet."""
    info = NodeInfo("id-a", 1, "mini-1", "home", "0.1.0", 1, ("10.0.0.1",), 1, 2)
    old, new = (Ring(name, ModelVersion("m"), (StageSpec(f"id-{name}", 0, 2),), 1, 1) for name in "ba")
    stage = StageReport("a", Shard(ModelVersion("m"), 0, 2), StageState.READY)
    here = PeerView(NodeReport(info, Memory(16, 12), stages=(stage,)), NodeState.ALIVE)
    dead = PeerView(NodeReport(replace(info, id="id-b"), Memory(16, 12)), NodeState.FAILED, 10.0 + gone_s, "", gone_s)
    placements = [Placement(rings=(old,))]

    async def wait(_: float) -> None:
        placements.append(Placement(rings=(new,)))

    agent = SimpleNamespace(
        view=lambda: ClusterView("id-a", 1, "id-a", (here, dead), placements[-1]), changed=SimpleNamespace(wait=wait)
    )
    found = Router(agent, *[None] * 3).wait_for_rings("m", 30.0, "a")  # type: ignore[arg-type]
    if gone_s:
        with pytest.raises(PeerUnavailable):
            await found
    else:
        assert await found == [new]


@pytest.mark.parametrize(
    ("error", "level"),
    [(replaced("r"), logging.INFO), (RingLost("The link ended."), logging.WARNING)],
    ids=["planned", "lost"],
)
async def test_a_planned_hand_over_is_no_warning(
    error: PippinError, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    router = Router(None, *[None] * 3)  # type: ignore[arg-type]
    ring, request = Ring("r", ModelVersion("m"), (), 1, 1), SimpleNamespace(id="chatcmpl-1", model="m", revision="")
    router._note_failure(error, ring, request, Tries())  # type: ignore[arg-type]
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (level, f"request chatcmpl-1 lost its ring: {error}")
    ]


def test_pictures_go_to_rings_whose_nodes_all_know_of_them() -> None:
    infos = [
        NodeInfo(f"id-{name}", 1, name, "home", "0.1.0", protocol, (), 1, 2)
        for name, protocol in (("a", 12), ("b", 11))
    ]
    agent = SimpleNamespace(alive=lambda: [NodeReport(info, Memory(16, 12)) for info in infos])
    router = Router(agent, *[None] * 3)  # type: ignore[arg-type]
    rings = [Ring(name, ModelVersion("m"), (StageSpec(f"id-{name}", 0, 2),), 1, 1) for name in "ab"]
    assert router._that_see(rings, 12) == rings[:1]
    assert router._that_see(rings, 11) == rings
    cut = replace(rings[0], shared_ends=True, stages=(*rings[0].stages, StageSpec("id-b", 2, 3)))
    assert router._that_see([cut], 11) == [], "its later layers embed the tokens"
