"""The head's answers while it is still looking for models."""

import asyncio
import contextlib
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from node.cluster.agent import Agent
from node.cluster.head import Head
from node.cluster.wanted import MOST_ASKED
from node.cluster.wanted_model import BEGIN_S
from node.core.clock import now
from node.core.errors import ModelBusy, ModelNotFound, ModelUnsupported, NoCapacity, NotReady, Overloaded, ShuttingDown
from node.core.limits import COUNTER_LIMIT
from node.core.models import DraftChoice, KvCost, ModelSpec, ModelVersion, Shard, Wish
from node.core.nodes import Memory, NodeInfo
from node.core.reports import NodeReport, RingTraffic, StageReport, StageState
from node.core.rings import Fence, Placement, Ring, StageSpec
from node.placement.place import place

INFO = NodeInfo("me", 1, "me", "home", "1", 1, ("10.0.0.1",), 1, 2)
SMALL = 2 << 30
RING = Ring("m@1.1", ModelVersion("m"), (StageSpec("me", 0, 4),), 512, 4, fence=Fence(1, 1))


class Specs:
    """Finds only models of `huge/`, which fit nowhere, of `small/`, of which one fits, and of `tiny/`, once `go_on` is set."""

    def __init__(self):
        self.go_on = asyncio.Event()
        self.asked = 0

    async def find(self, model):
        self.asked += 1
        await self.go_on.wait()
        if model.startswith("huge/"):
            return ModelSpec(ModelVersion(model), (1 << 50, 1 << 50), 1, (KvCost(1), KvCost(1)), (1,), 1000)
        if model.startswith("small/"):
            return ModelSpec(ModelVersion(model), (SMALL // 2, SMALL // 2), 1, (KvCost(1), KvCost(1)), (1,), 1000)
        if model.startswith("tiny/"):
            return ModelSpec(ModelVersion(model), (SMALL // 16, SMALL // 16), 1, (KvCost(1), KvCost(1)), (1,), 1000)
        raise ModelNotFound(f"There is no {model}.")

    async def with_draft(self, draft, model):
        if draft == "other/tokens":
            raise ModelUnsupported(f"{draft} can't be the draft of {model.id}.")
        return replace(model, draft=await self.find(draft))


def head_and(specs, drafts=(), context=None) -> tuple[Head, Agent]:
    nothing = SimpleNamespace(hint_of=lambda _: None, paths_to_peers=tuple, disconnect=lambda _: None)
    agent = Agent(
        INFO, 0, nothing, lambda: NodeReport(INFO, Memory(2 * SMALL, 2 * SMALL), drafts=tuple(drafts)), lambda _: None
    )
    return Head(agent, specs, context=context, max_sessions=None), agent


@contextlib.asynccontextmanager
async def elected(monkeypatch, drafts=(), context=None):
    """A single node as head, and its requests for descriptions of models. It wants these `drafts`."""
    monkeypatch.setattr("node.members.election.Election.is_head", True)
    specs = Specs()
    head, agent = head_and(specs, drafts, context)
    agent.touch()
    task = asyncio.create_task(head.run())
    try:
        yield head, agent, specs
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_all_who_want_a_model_that_nobody_has_are_told_so(monkeypatch):
    async with elected(monkeypatch) as (head, _, specs):
        wants = [asyncio.create_task(head.want("org/none")) for _ in range(3)]
        await asyncio.sleep(0)
        specs.go_on.set()
        failures = await asyncio.gather(*wants, return_exceptions=True)
    assert specs.asked == 1
    assert [type(failure) for failure in failures] == 3 * [ModelNotFound]


async def test_a_context_that_a_model_does_not_take(monkeypatch, caplog):
    async with elected(monkeypatch, context=4096) as (head, agent, specs):
        specs.go_on.set()
        await asyncio.sleep(0)
        await head.want("tiny/a")
        await head.want("tiny/b")
    assert {ring.context for ring in agent.placement.rings} == {1000}
    told = [record.message for record in caplog.records if "--context" in record.message]
    assert told == [f"--context 4096: {model} takes 1000 tokens at most" for model in ("tiny/a", "tiny/b")]


async def test_a_model_is_refused_while_the_node_stops(monkeypatch):
    async with elected(monkeypatch) as (head, _, specs):
        pass
    with pytest.raises(ShuttingDown):
        await head.want("org/late")
    assert not specs.asked


async def hung_up(head, models):
    """Ask for models, and cancel at once."""
    tasks = [asyncio.create_task(head.want(model)) for model in models]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def planned(head, agent):
    agent.head_due.notify()
    async with asyncio.timeout(10):
        await head._planned.wait()


def nobody_waits(monkeypatch):
    """As when the requests for which models were loaded have begun."""
    monkeypatch.setattr("node.cluster.wanted.WantedModels.loading", lambda *_: set())
    monkeypatch.setattr("node.cluster.wanted.WantedModels.beginning", lambda *_: {})


async def test_nothing_is_left_of_unknown_models_whose_clients_hung_up(monkeypatch):
    async with elected(monkeypatch) as (head, agent, specs):
        await hung_up(head, [f"org/none-{n}" for n in range(MOST_ASKED)])
        specs.go_on.set()
        await asyncio.gather(*head._wanted.describing.values())
        await planned(head, agent)
        assert agent.placement.refused == ()


async def test_the_head_looks_for_so_many_models_at_once(monkeypatch):
    async with elected(monkeypatch) as (head, _, specs):
        await hung_up(head, [f"org/none-{n}" for n in range(2000)])
        assert specs.asked == MOST_ASKED
        with pytest.raises(Overloaded, match=str(MOST_ASKED)):
            await head.want("org/one-more")
        specs.go_on.set()
        await asyncio.gather(*head._wanted.describing.values())
        with pytest.raises(ModelNotFound):
            await head.want("org/one-more")


@pytest.mark.slow
async def test_models_that_fit_nowhere_are_bounded_too(monkeypatch):
    async with elected(monkeypatch) as (head, agent, specs):
        specs.go_on.set()
        for n in range(MOST_ASKED + 5):
            await hung_up(head, [f"huge/model-{n}"])
        await planned(head, agent)
        assert len(agent.placement.refused) == MOST_ASKED
        monkeypatch.setattr("node.cluster.head.MEET_S", 0.0)
        with pytest.raises(NoCapacity):
            await head.want("huge/model-0")


async def loaded(head, specs, model="tiny/model", wish=Wish(named=True)):  # noqa: B008 - it is frozen
    specs.go_on.set()
    await asyncio.sleep(0)
    await head.load(model, wish)


async def test_a_model_is_loaded_as_a_user_wishes_and_the_next_head_knows_it(monkeypatch):
    async with elected(monkeypatch) as (head, agent, specs):
        await loaded(head, specs, wish=Wish(named=True, context=300))
        (spec,), (ring,) = agent.placement.specs, agent.placement.rings
        assert spec.wish == Wish(named=True, context=300)
        assert ring.context == 300
        follower, _ = head_and(Specs())
        follower._wanted.update(agent.alive(), agent.placement)
        assert follower._wanted.models["tiny/model"].is_named
        assert follower._wanted.specs(["tiny/model"]) == (spec,)


async def test_a_wish_of_a_model_that_is_placed_already_is_told_too(monkeypatch):
    async with elected(monkeypatch) as (head, agent, specs):
        specs.go_on.set()
        await asyncio.sleep(0)
        await head.want("tiny/model")
        rings = agent.placement.rings
        await head.load("tiny/model", Wish(named=True))
        assert [spec.wish for spec in agent.placement.specs] == [Wish(named=True)]
        assert agent.placement.rings == rings
        fence = agent.placement.fence
        await planned(head, agent)
        assert agent.placement.fence == fence


async def test_what_users_told_a_head_before_the_last_one_is_outdated(monkeypatch):
    async with elected(monkeypatch) as (head, agent, specs):
        await loaded(head, specs)
        wanted = head._wanted.models["tiny/model"]
        assert wanted.is_named
        monkeypatch.setattr("node.members.election.Election.is_head", False)
        await planned(head, agent)
        assert not wanted.is_named
        (spec,) = agent.placement.specs
        later = replace(agent.placement, fence=Fence(agent.term + 1, 1), head="other")
        later = replace(later, specs=(replace(spec, wish=Wish(named=True, stages=2)),))
        head._wanted.update(agent.alive(), later)
        assert wanted.wish == Wish(named=True, stages=2)


async def test_a_named_model_makes_no_room_for_another(monkeypatch):
    monkeypatch.setattr("node.cluster.head.MEET_S", 0.0)
    nobody_waits(monkeypatch)
    async with elected(monkeypatch) as (head, agent, specs):
        await loaded(head, specs, "small/one")
        with pytest.raises(NoCapacity):
            await head.want("small/other")
        assert [ring.model for ring in agent.placement.rings] == ["small/one"]


async def test_a_wish_that_fails_is_forgotten(monkeypatch):
    monkeypatch.setattr("node.cluster.head.MEET_S", 0.0)
    async with elected(monkeypatch) as (head, _, specs):
        for model, error in (("huge/model", NoCapacity), ("org/none", ModelNotFound)):
            with pytest.raises(error):
                await loaded(head, specs, model)
        assert list(head._wanted.models) == ["huge/model"]
        assert not head._wanted.models["huge/model"].is_named


async def test_an_unloaded_model_stays_away_although_nodes_name_it(monkeypatch):
    async with elected(monkeypatch) as (head, agent, specs):
        report = agent._local_report
        agent._local_report = lambda: replace(report(), preload=("tiny/model",))
        agent.touch()
        specs.go_on.set()
        await asyncio.sleep(0)
        await head.want("tiny/model")
        before = agent.placement.fence
        head.unload("tiny/model")
        assert agent.placement.rings == agent.placement.specs == ()
        assert agent.placement.fence > before
        await planned(head, agent)
        assert agent.placement.rings == ()
        agent._local_report = report
        agent.touch()
        await planned(head, agent)
        await head.want("tiny/model")  # a request loads it again
        assert agent.placement.rings


async def test_a_model_is_idle_when_nobody_names_it_and_it_had_no_request_for_long(monkeypatch):
    async with elected(monkeypatch) as (head, agent, specs):
        specs.go_on.set()
        await asyncio.sleep(0)
        await head.want("tiny/one")
        await head.load("tiny/named", Wish(named=True))
        report = agent._local_report
        ring = next(ring for ring in agent.placement.rings if ring.model == "tiny/one")
        assert head.idle(60) == []
        assert head.idle(-1) == ["tiny/one"]
        wanted = head._wanted.models["tiny/one"]
        wanted.asked_at = -1e9
        await planned(head, agent)
        assert head.idle(60) == [], "it is loading"
        wanted.placed_at = -1e9
        for traffic in (RingTraffic(ring.id, running=1), RingTraffic(ring.id, requests=2)):
            wanted.asked_at = wanted.used_at = -1e9
            agent._local_report = lambda traffic=traffic: replace(report(), traffic=(traffic,))
            agent.touch()
            await planned(head, agent)
            assert head.idle(60) == []
        wanted.used_at = -1e9
        await planned(head, agent)
        assert head.idle(60) == ["tiny/one"]
        monkeypatch.setattr("node.members.election.Election.is_head", False)
        assert head.idle(60) == []


async def test_a_request_says_how_long_a_model_may_be_idle(monkeypatch):
    async with elected(monkeypatch) as (head, agent, specs):
        specs.go_on.set()
        await asyncio.sleep(0)
        head.keep("tiny/gone", 5)
        await head.want("tiny/one")
        await head.load("tiny/named", Wish(named=True))
        wanted = head._wanted.models
        for model in ("tiny/one", "tiny/named"):
            head.keep(model, 5)
            wanted[model].asked_at = wanted[model].used_at = -1e9
            wanted[model].placed_at = -1e9
        await planned(head, agent)
        assert {spec.id: spec.wish for spec in agent.placement.specs} == {
            "tiny/one": Wish(keep_s=5),
            "tiny/named": Wish(named=True, keep_s=5),
        }
        assert head.idle(math.inf) == ["tiny/one"]
        head.keep("tiny/one", 0)
        assert head.idle(math.inf) == ["tiny/one"], "the request that said so is over"
        head.keep("tiny/one", 1e9)
        assert head.idle(-1) == []
        monkeypatch.setattr("node.members.election.Election.is_head", False)
        with pytest.raises(NotReady):
            head.keep("tiny/one", 5)


async def test_what_can_not_be_unloaded(monkeypatch):
    async with elected(monkeypatch) as (head, agent, specs):
        await loaded(head, specs)
        with pytest.raises(ModelNotFound, match="org/other is not loaded"):
            head.unload("org/other")
        report, (ring,) = agent._local_report, agent.placement.rings
        agent._local_report = lambda: replace(report(), traffic=(RingTraffic(ring.id, running=1, queued=1),))
        agent.touch()
        with pytest.raises(ModelBusy, match="tiny/model is answering 2 requests"):
            head.unload("tiny/model")
        monkeypatch.setattr("node.members.election.Election.is_head", False)
        with pytest.raises(NotReady):
            head.unload("tiny/model")
        assert agent.placement.rings


async def test_a_request_that_has_ended_as_the_head_is_about_to_hear_is_no_reason_to_keep_a_model(monkeypatch):
    async with elected(monkeypatch) as (head, agent, specs):
        await loaded(head, specs)
        report, (ring,) = agent._local_report, agent.placement.rings
        agent._local_report = lambda: replace(report(), traffic=(RingTraffic(ring.id, running=1),))
        agent.touch()
        monkeypatch.setattr("node.cluster.head.LATE_S", 60.0)
        answered = asyncio.create_task(head.answered("tiny/model"))
        await planned(head, agent)
        assert not answered.done()
        agent._local_report = report
        agent.touch()
        agent.head_due.notify()
        await answered
        head.unload("tiny/model")
        assert not agent.placement.rings


async def test_the_wait_for_the_end_of_requests_has_an_end(monkeypatch):
    async with elected(monkeypatch) as (head, agent, specs):
        await loaded(head, specs)
        report, (ring,) = agent._local_report, agent.placement.rings
        agent._local_report = lambda: replace(report(), traffic=(RingTraffic(ring.id, running=1),))
        agent.touch()
        monkeypatch.setattr("node.cluster.head.LATE_S", 0.0)
        await head.answered("tiny/model")
        with pytest.raises(ModelBusy):
            head.unload("tiny/model")


async def test_a_model_gets_the_draft_model_that_a_node_wants(monkeypatch):
    drafts = [DraftChoice("tiny/model", "tiny/draft")]
    async with elected(monkeypatch, drafts) as (head, agent, specs):
        specs.go_on.set()
        await asyncio.sleep(0)
        await head.want("tiny/model")
        (spec,) = agent.placement.specs
        assert (spec.id, spec.draft.id) == ("tiny/model", "tiny/draft")
        drafts[:] = [DraftChoice("tiny/model", "tiny/other")]
        agent.touch()
        await planned(head, agent)
        await asyncio.gather(*head._wanted.describing.values())
        assert head._wanted.models["tiny/model"].spec.draft.id == "tiny/other"
        asked = specs.asked
        await planned(head, agent)
        assert specs.asked == asked


async def test_a_model_is_served_without_a_draft_model_of_other_tokens(monkeypatch):
    drafts = [DraftChoice("tiny/model", "other/tokens")]
    async with elected(monkeypatch, drafts) as (head, agent, specs):
        specs.go_on.set()
        await asyncio.sleep(0)
        await head.want("tiny/model")
        (spec,) = agent.placement.specs
        assert spec.draft is None
        (issue,) = head.issues()
        assert "other/tokens can't be the draft of tiny/model" in issue.text
        drafts[:] = [DraftChoice("tiny/model", "tiny/draft")]
        agent.touch()
        await planned(head, agent)
        await asyncio.gather(*head._wanted.describing.values())
        await planned(head, agent)
        assert agent.placement.specs[0].draft
        assert not head.issues()
        drafts[:] = [DraftChoice("tiny/model", "other/tokens")]
        agent.touch()
        await planned(head, agent)
        await asyncio.gather(*head._wanted.describing.values())
        await planned(head, agent)
        assert [ring.model for ring in agent.placement.rings if not ring.retiring] == ["tiny/model"]
        assert not agent.placement.refused
        assert agent.placement.specs[0].draft is None
        monkeypatch.setattr("node.members.election.Election.is_head", False)
        assert not head.issues()


async def test_a_head_that_has_not_planned_yet_can_t_decide_of_a_node(monkeypatch):
    """As a head that has just taken over, and waits for nodes that bring rings."""
    monkeypatch.setattr("node.members.election.Election.is_head", True)
    head, agent = head_and(Specs())
    agent.touch()
    agent.placement = Placement(Fence(1, 1), "old", (RING,))
    with pytest.raises(NotReady):
        head.check_drain("me")


async def test_no_other_head_says_where_epochs_begin(monkeypatch):
    async with elected(monkeypatch) as (_, agent, _specs):
        agent.placement = Placement(Fence(agent.term + 7, COUNTER_LIMIT - 1), "other")
        await agent.adopted.wait()
        assert agent.placement.fence == Fence(agent.term, 1)


async def test_nothing_is_worked_out_twice(monkeypatch):
    """The head plans every second; mostly nothing has changed."""
    placed = []
    monkeypatch.setattr("node.cluster.head.place", lambda *args, **more: placed.append(args) or place(*args, **more))
    monkeypatch.setattr("node.cluster.head.REPLAN_S", 0.001)
    async with elected(monkeypatch) as (head, agent, specs):
        specs.go_on.set()
        await head._planned.wait()
        with pytest.raises(NoCapacity):
            await head.want("huge/one")
        for _ in range(5):
            await head._planned.wait()
        before = len(placed)
        for _ in range(20):
            await head._planned.wait()
            agent.touch()
        assert len(placed) == before
        with pytest.raises(NoCapacity):
            await head.want("huge/two")
        assert len(placed) > before


async def test_a_model_that_is_being_loaded_makes_no_room(monkeypatch):
    """Otherwise requests for one model and for the other would evict each other's model without end."""
    monkeypatch.setattr("node.cluster.head.MEET_S", 0.0)
    async with elected(monkeypatch) as (head, agent, specs):
        specs.go_on.set()
        await head._planned.wait()
        await head.want("small/first")
        with pytest.raises(NoCapacity):
            await head.want("small/second")
        assert [ring.model for ring in agent.placement.rings] == ["small/first"]
        nobody_waits(monkeypatch)
        await head.want("small/second")
        assert [ring.model for ring in agent.placement.rings] == ["small/second"]


async def test_the_oldest_models_make_room_and_no_more_of_them_than_needed(monkeypatch):
    placed = []
    monkeypatch.setattr("node.cluster.head.place", lambda *args, **more: placed.append(args) or place(*args, **more))
    monkeypatch.setattr("node.cluster.head.MEET_S", 0.0)
    nobody_waits(monkeypatch)
    async with elected(monkeypatch) as (head, agent, specs):
        specs.go_on.set()
        await head._planned.wait()
        tiny = [f"tiny/{n}" for n in range(8)]
        for model in tiny:
            await head.want(model)
        assert sorted(ring.model for ring in agent.placement.rings) == tiny
        placed.clear()
        await head.want("small/one")
        kept = sorted(ring.model for ring in agent.placement.rings if ring.model in tiny)
        assert kept == tiny[-len(kept) :]
        assert len(placed) <= 8, "some for all, for the new one alone, three of the search, and for a better placement"
        placed.clear()
        await head.want(tiny[len(tiny) - len(kept) - 1])  # one more does not fit: another makes room
        assert len(agent.placement.rings) == len(kept) + 1


async def test_a_model_that_is_used_makes_no_room_before_one_that_was_loaded_later(monkeypatch):
    monkeypatch.setattr("node.cluster.head.MEET_S", 0.0)
    nobody_waits(monkeypatch)
    async with elected(monkeypatch) as (head, agent, specs):
        specs.go_on.set()
        await head._planned.wait()
        tiny = [f"tiny/{n}" for n in range(8)]
        for model in tiny:
            await head.want(model)
        report = agent._local_report
        ring = next(ring for ring in agent.placement.rings if ring.model == "tiny/0")
        agent._local_report = lambda: replace(report(), traffic=(RingTraffic(ring.id, requests=1),))
        agent.touch()
        await planned(head, agent)
        await head.want("small/one")
        kept = sorted(ring.model for ring in agent.placement.rings if ring.model in tiny)
        assert 1 < len(kept) < len(tiny)
        assert kept == ["tiny/0", *tiny[1 - len(kept) :]]


async def test_a_model_makes_no_room_while_it_answers_a_request_that_no_tick_has_told(monkeypatch):
    monkeypatch.setattr("node.cluster.head.MEET_S", 0.0)
    nobody_waits(monkeypatch)
    async with elected(monkeypatch) as (head, agent, specs):
        specs.go_on.set()
        await head._planned.wait()
        await head.want("small/first")
        report, (ring,) = agent._local_report, agent.placement.rings
        agent._local_report = lambda: replace(report(), traffic=(RingTraffic(ring.id, running=1),))
        with pytest.raises(NoCapacity):
            await head.want("small/second")
        agent._local_report = report
        await head.want("small/second")
        (ring,) = agent.placement.rings
        assert ring.model == "small/second"
        agent._local_report = lambda: replace(report(), traffic=(RingTraffic(ring.id, queued=1),))
        with pytest.raises(ModelBusy):
            head.unload("small/second")


@pytest.mark.parametrize("begins", [True, False])
async def test_a_model_that_is_ready_makes_no_room_before_the_request_begins_that_loaded_it(monkeypatch, begins):
    """Nor for long if that request never comes; then it is idle, too."""
    monkeypatch.setattr("node.cluster.head.MEET_S", 0.0)
    async with elected(monkeypatch) as (head, agent, specs):
        specs.go_on.set()
        await head._planned.wait()
        await head.want("small/first")
        report, (ring,), wanted = agent._local_report, agent.placement.rings, head._wanted.models["small/first"]
        wanted.placed_at = wanted.asked_at = wanted.used_at = now() - 600  # it has loaded for long
        await planned(head, agent)
        stage = StageReport(ring.id, Shard(ring.version, 0, 2), StageState.READY)
        ready = replace(report(), stages=(stage,), traffic=(RingTraffic(ring.id),))
        agent._local_report = lambda: ready
        agent.touch()
        asked = asyncio.create_task(head.want("small/second"))
        for _ in range(3):
            await planned(head, agent)
        assert not asked.done()
        assert [ring.model for ring in agent.placement.rings] == ["small/first"]
        if begins:
            ready = replace(ready, traffic=(RingTraffic(ring.id, requests=1),))
            agent.touch()
        else:
            wanted.loading_at = now() - BEGIN_S
        await planned(head, agent)
        await asked
        assert [ring.model for ring in agent.placement.rings] == ["small/second"]


async def test_nobody_waits_for_a_model_that_makes_no_room(monkeypatch):
    monkeypatch.setattr("node.cluster.head.MEET_S", 0.0)
    async with elected(monkeypatch) as (head, agent, specs):
        specs.go_on.set()
        await head._planned.wait()
        await head.load("small/first", Wish(named=True))
        report, (ring,) = agent._local_report, agent.placement.rings
        stage = StageReport(ring.id, Shard(ring.version, 0, 2), StageState.READY)
        agent._local_report = lambda: replace(report(), stages=(stage,), traffic=(RingTraffic(ring.id),))
        agent.touch()
        async with asyncio.timeout(5):
            with pytest.raises(NoCapacity):
                await head.want("small/second")


async def test_a_wish_that_failed_does_not_stay_in_the_placement(monkeypatch):
    monkeypatch.setattr("node.cluster.head.MEET_S", 0.0)
    monkeypatch.setattr("node.cluster.head.REPLAN_S", 3600)
    async with elected(monkeypatch) as (head, agent, specs):
        specs.go_on.set()
        await head._planned.wait()
        with pytest.raises(NoCapacity):
            await head.load("huge/model", Wish(named=True))
        async with asyncio.timeout(10):
            await head._planned.wait()
        assert not any(spec.wish.named for spec in agent.placement.specs)


async def test_a_named_model_that_had_no_ring_under_the_last_head_stays_wanted(monkeypatch):
    """As one that was refused while a node slept."""
    async with elected(monkeypatch) as (head, agent, specs):
        await loaded(head, specs)
        (spec,) = agent.placement.specs
    async with elected(monkeypatch) as (head, agent, _):
        await head._planned.wait()
        report = agent._local_report
        agent._local_report = lambda: replace(report(), preload=("tiny/unloaded",))
        agent.touch()
        head._wanted.unloaded.add("tiny/unloaded")
        unloaded = replace(spec, version=ModelVersion("tiny/unloaded"))
        asked = replace(spec, version=ModelVersion("tiny/asked"), wish=Wish(keep_s=5))
        agent.placement = Placement(Fence(agent.term + 7, 1), "other", specs=(spec, unloaded, asked))
        await planned(head, agent)
        assert [ring.model for ring in agent.placement.rings] == ["tiny/model"]
        assert agent.placement.specs == (spec,)


async def test_a_head_that_is_back_before_another_one_has_decided_knows_what_users_wish(monkeypatch):
    async with elected(monkeypatch) as (head, agent, specs):
        await loaded(head, specs, wish=Wish(named=True, context=300))
        monkeypatch.setattr("node.members.election.Election.is_head", False)
        await planned(head, agent)
        agent._election.term += 1
        monkeypatch.setattr("node.members.election.Election.is_head", True)
        await planned(head, agent)
        assert agent.placement.fence == Fence(agent.term, 1)
        assert [spec.wish for spec in agent.placement.specs] == [Wish(named=True, context=300)]
        assert head._wanted.models["tiny/model"].is_named


async def test_the_head_rests_when_nothing_is_due(monkeypatch):
    monkeypatch.setattr("node.cluster.head.REPLAN_S", 3600.0)
    async with elected(monkeypatch) as (head, agent, specs):
        await loaded(head, specs)
        await planned(head, agent)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(head._planned.wait(), 0.05)


async def test_a_slow_plan_is_followed_by_a_pause(monkeypatch):
    monkeypatch.setattr("node.cluster.head.REPLAN_S", 3600.0)
    monkeypatch.setattr("node.cluster.head.SLOW_PLAN_S", 0.0)
    monkeypatch.setattr("node.cluster.head.PAUSE_SHARE", 1e9)
    async with elected(monkeypatch) as (head, agent, _):
        await head._planned.wait()
        agent.head_due.notify()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(head._planned.wait(), 0.05)
        # The pause ends, however slow the plan was, and what became due meanwhile is not forgotten.
        await asyncio.wait_for(head._planned.wait(), 10)
