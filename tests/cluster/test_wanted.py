"""What the head does about a model that it cannot find."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from node.cluster.wanted import WantedModels
from node.cluster.wanted_model import MOST_RETRY_S, RETRY_S, WantedModel
from node.core.errors import HubUnavailable, ModelUnsupported
from node.core.models import DraftChoice, ModelSpec, ModelVersion, Shard, Wish
from node.core.nodes import Memory, NodeInfo
from node.core.reports import Crash, NodeReport, StageReport, StageState
from node.core.rings import Placement, Ring, StageSpec
from node.core.views import ClusterView, NodeState, PeerView
from node.core.warning_codes import Code

NODE = NodeReport(NodeInfo("me", 1, "me", "home", "1", 1, (), 1, 2), Memory(1, 1), preload=("org/m",))


def _set_clock(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    for module in ("failed_loads", "wanted", "wanted_model"):
        monkeypatch.setattr(f"node.cluster.{module}.now", clock)


async def test_a_hub_that_is_missing_is_told_once_and_asked_ever_less(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time, asked = 100.0, []
    _set_clock(monkeypatch, lambda: time)

    async def find(_: str) -> Any:
        asked.append(time)
        raise HubUnavailable("The hub cannot be reached.")

    agent: Any = SimpleNamespace(
        alive=lambda: [NODE],
        placement=Placement(),
        last_joined_at=0.0,
        term=0,
        head_due=SimpleNamespace(notify=lambda: None),
    )
    specs: Any = SimpleNamespace(find=find)
    wanted = WantedModels(agent, specs)
    async with wanted.group:
        while time < 100.0 + 6 * MOST_RETRY_S:
            wanted.update([NODE], Placement())
            if asked[1:]:
                assert wanted.refusals(), "the reason stays in sight"
            await asyncio.gather(*wanted.describing.values())
            time += 1.0
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert pauses[:5] == [times * RETRY_S + 1 for times in (1, 2, 4, 8, 16)]
    assert pauses[5:] == [MOST_RETRY_S + 1] * len(pauses[5:])
    assert pauses[5:]
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1


async def test_a_model_is_served_without_a_draft_that_cannot_be_used_and_that_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time, asked, failure = 100.0, [], ModelUnsupported("org/d has other tokens.", hint="Choose another one.")
    _set_clock(monkeypatch, lambda: time)

    async def find(_: str) -> ModelSpec:
        return SPEC

    async def with_draft(draft: str, spec: ModelSpec) -> ModelSpec:
        asked.append(time)
        if failure:
            raise failure
        return replace(spec, draft=replace(SPEC, version=ModelVersion(draft)))

    node = replace(NODE, drafts=(DraftChoice("org/m", "org/d"),))
    agent: Any = SimpleNamespace(
        alive=lambda: [node],
        placement=Placement(),
        last_joined_at=0.0,
        term=0,
        head_due=SimpleNamespace(notify=lambda: None),
    )
    wanted = WantedModels(agent, SimpleNamespace(find=find, with_draft=with_draft))  # type: ignore[arg-type]

    async def plan() -> None:
        wanted.update([node], Placement())
        await asyncio.gather(*wanted.describing.values())

    async with wanted.group:
        await plan()
        assert wanted.placeable() == ["org/m"]
        assert not wanted.refusals()
        (issue,) = wanted.issues()
        assert (issue.code, issue.hint) == (Code.DRAFT_REFUSED, "Choose another one.")
        assert issue.text == "org/m is served without its draft model org/d: org/d has other tokens."
        while time <= 100.0 + 4 * RETRY_S:
            await plan()
            time += 1.0
        assert asked == [100.0, 100.0 + RETRY_S + 1, 100.0 + 3 * RETRY_S + 2]
        node = replace(node, drafts=())
        assert not wanted.issues(), "nobody wants it any more"
        node, failure = replace(node, drafts=(DraftChoice("org/m", "org/d"),)), None  # type: ignore[assignment]
        time += MOST_RETRY_S
        await plan()
        assert not wanted.issues()
        assert [spec.draft is not None for spec in wanted.specs(["org/m"])] == [True]
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


class Loads:
    """A model on one node, whose layers are loaded, or fail, at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 1000.0
        _set_clock(monkeypatch, lambda: self.at)
        agent: Any = SimpleNamespace(alive=lambda: [NODE], placement=Placement(), last_joined_at=0.0, term=0)
        self.wanted = WantedModels(agent, None)  # type: ignore[arg-type]
        self.wanted.models["org/m"] = self.model = WantedModel(spec=SPEC, preload=True)

    def report(self, *stages: StageReport) -> None:
        rings = tuple(Ring(stage.ring, ModelVersion("org/m"), (StageSpec("me", 0, 1),), 512, 1) for stage in stages)
        node = replace(NODE, stages=stages)
        view = ClusterView("me", 1, "me", (PeerView(node, NodeState.ALIVE),), Placement(rings=rings))
        self.wanted.loads.note([node], view)

    def retried_after(self) -> float:
        """Seconds until it is placed again."""
        began = self.at
        while not self.wanted.placeable():
            self.at += 1.0
            self.wanted.update([NODE], Placement())
        return self.at - began


SPEC = ModelSpec(ModelVersion("org/m"), (1,), 1, (), (), 512)


def stage(state: StageState, ring: str = "r") -> StageReport:
    return StageReport(ring, Shard(ModelVersion("org/m"), 0, 1), state, error="model_broken: It is damaged.")


async def test_a_model_that_is_unloaded_while_it_is_searched_can_be_wanted_at_once() -> None:
    searches = asyncio.Queue[asyncio.Future[ModelSpec]]()

    def find(_: str) -> asyncio.Future[ModelSpec]:
        searches.put_nowait(search := asyncio.get_running_loop().create_future())
        return search

    agent: Any = SimpleNamespace(alive=list, placement=Placement(), head_due=SimpleNamespace(notify=lambda: None))
    specs: Any = SimpleNamespace(find=find)
    wanted = WantedModels(agent, specs)
    async with wanted.group:
        before = asyncio.create_task(wanted.ask("org/m"))
        first = await searches.get()
        wanted.drop("org/m")
        after = asyncio.create_task(wanted.ask("org/m"))
        async with asyncio.timeout(10):
            second = await searches.get()
        first.set_exception(HubUnavailable("The hub cannot be reached."))
        with pytest.raises(HubUnavailable):
            await before
        assert list(wanted.models) == list(wanted.describing) == ["org/m"]
        second.set_result(SPEC)
        await after
    assert wanted.models["org/m"].spec == SPEC
    assert not wanted.describing


def test_a_load_that_fails_is_tried_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, pauses = Loads(monkeypatch), []
    for _ in range(7):
        loads.report(stage(StageState.FAILED))
        loads.report(stage(StageState.FAILED))  # as the head plans again before the nodes have followed
        (refusal,) = loads.wanted.refusals()
        pauses.append(loads.retried_after() - 1)
    assert pauses == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S, 8 * RETRY_S, 16 * RETRY_S, MOST_RETRY_S, MOST_RETRY_S]
    assert refusal.message == "me could not load org/m: It is damaged."
    assert "`cluster load org/m` does so at once" in refusal.hint
    loads.report(stage(StageState.READY))
    loads.report(stage(StageState.FAILED))
    assert loads.retried_after() - 1 == RETRY_S, "it was loaded meanwhile"


def test_a_replica_that_cannot_be_loaded_is_tried_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, pauses = Loads(monkeypatch), []
    other = replace(NODE, info=replace(NODE.info, id="other"))
    rings = tuple(
        Ring(ring, ModelVersion("org/m"), (StageSpec(node, 0, 1),), 512, 1)
        for ring, node in (("r", "me"), ("s", "other"))
    )
    well = PeerView(replace(NODE, stages=(stage(StageState.READY),)), NodeState.ALIVE)

    def report(state: StageState) -> None:
        ill = replace(other, stages=(stage(state, "s"),))
        view = ClusterView("me", 1, "me", (well, PeerView(ill, NodeState.ALIVE)), Placement(rings=rings))
        loads.wanted.loads.note([well.report, ill], view)

    for _ in range(3):
        report(StageState.FAILED)
        pauses.append(loads.wanted.loads.retries["org/m", "other"].at - loads.at)
        loads.at += pauses[-1]
    assert pauses == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert not loads.wanted.refusals(), "it is served"
    report(StageState.READY)
    assert not loads.wanted.loads.barred()
    report(StageState.FAILED)
    assert loads.wanted.loads.retries["org/m", "other"].at - loads.at == RETRY_S


def test_a_model_whose_load_crashed_a_node_is_given_to_no_other_until_a_user_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads = Loads(monkeypatch)
    crash = Crash("org/m", SPEC.version.revision, "Segmentation fault", 700)
    back = replace(NODE, crashed=(crash,))
    loads.wanted._agent.alive = lambda: [back]  # type: ignore[method-assign]
    others = ClusterView("me", 1, "me", (PeerView(back, NodeState.ALIVE),), Placement())

    def plan() -> list[str]:
        loads.wanted.update([back], Placement())
        loads.wanted.loads.note([back], others)
        return loads.wanted.placeable()

    assert not plan()
    loads.at += 10 * MOST_RETRY_S
    assert not plan(), "nobody tries again by himself"
    (refusal,) = loads.wanted.refusals()
    assert refusal.code == "model_crashes"
    assert refusal.message == "me ended by a fault (Segmentation fault) while it loaded org/m."
    assert loads.wanted.loads.barred() == (("org/m", "me"),), "nor is it a replica's place"
    loads.wanted.models["org/m"].wish = Wish(named=True, despite=700)
    loads.wanted.models["org/m"].failure = None  # as `ask` does
    assert plan() == ["org/m"]
    assert not loads.wanted.loads.barred()
    loads.wanted.models["org/m"].wish = Wish()
    loads.wanted.models["org/m"].spec = replace(SPEC, version=ModelVersion("org/m", "other"))
    loads.wanted.models["org/m"].failure = None
    assert plan() == ["org/m"], "its files are others now"
