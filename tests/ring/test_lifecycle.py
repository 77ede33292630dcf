"""Rings follow the placement, and stages stay in memory until it is needed. Stages are fakes that only have a size."""

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.core.errors import DeviceFailed, NotReady, PeerUnavailable, RingLost
from node.core.frames import Frame, Held
from node.core.generation import GenerateRequest
from node.core.models import KvCost, ModelSpec, ModelVersion, Shard
from node.core.nodes import Caller
from node.core.reports import Speed, StageReport, StageState
from node.core.rings import Fence, Placement, Refusal, Ring, StageSpec
from node.core.row_family import Groups, RowFamily
from node.core.signal import Signal
from node.core.warning_codes import Code
from node.engine.compute import Compute
from node.engine.faults import Faults
from node.engine.speed import Measured
from node.engine.stage import Weight
from node.ring import lifecycle, limits, loaded_shards, roles
from node.ring.lifecycle import Rings
from node.ring.limits import RingOptions

ALONE = (StageSpec("a", 0, 4),)
FIRST = (StageSpec("a", 0, 2), StageSpec("b", 2, 4))
SECOND = (StageSpec("b", 0, 2), StageSpec("a", 2, 4))
MB = 2**20
LAYER = 100 * MB
SPECS = tuple(
    ModelSpec(ModelVersion(name), (LAYER,) * 4, 0, (KvCost(0),) * 4, (1, 2, 3), 512) for name in ("m", "other", "third")
)
RESERVE = 164 * MB
"""Bytes that the placement counts for a stage beside its weights."""
KV = 10 * MB
"""Bytes of a ring that has begun."""


class Weights:
    pass


class FakeLeftover:
    faults = 0

    nbytes = 0

    def clear(self) -> None:
        self.nbytes = 0


class FakeStage:
    plan = SimpleNamespace(kv=(), max_chunk=0, max_context=512)
    lanes = SimpleNamespace(clear=lambda: None)

    def __init__(self, model: Weights, weights: Mapping[str, Weight]) -> None:
        self.model, self.weights = model, weights
        self.weight_bytes = sum(weight.nbytes for weight in weights.values())
        self.leftover = FakeLeftover()
        self.begins_ahead = False
        self.kinds = {"layer": (0, 1), **({"head": (0, 0)} if "0" in weights else {})}

    def sibling(self) -> "FakeStage":
        other = FakeStage(self.model, self.weights)
        other.leftover = self.leftover
        return other

    def clear(self) -> None:
        pass


class FakeKv:
    has_sessions = False
    nbytes = 0

    def __init__(self, stage: FakeStage) -> None:
        self._stage = stage
        self._own = 0

    def inherit(self, held: tuple[Held, ...]) -> tuple[Held, ...]:
        self._own, self._stage.leftover.nbytes = self._stage.leftover.nbytes or KV, 0
        return held

    def leave(self) -> None:
        self._stage.leftover.nbytes += self._own

    def free(self) -> None:
        self._own = 0


class FakeRunner:
    has_mutual_pictures = False
    plan = SimpleNamespace(batchable=True, pads=True, trimmable=True, steps_back=True, chunked=False, vocabulary=10)

    def __init__(self, stage: FakeStage, _directory: Path, _faults: Faults) -> None:
        self.kv = FakeKv(stage)

    def run(self, *_: Any, **__: Any) -> None:
        """A step that comes to no end: see FakeCompute.iterate."""


class FakeCompute(Compute):
    def submit(self, fn: Callable[..., Any], *args: Any, **_kwargs: Any) -> Any:
        fn(*args)

    async def run(self, fn: Callable[..., Any], *args: Any, **_kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return fn(*args)

    async def iterate(self, values: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield values


class FakeAgent:
    info = SimpleNamespace(id="a", name="mini-1", incarnation=1, started_at=0)
    draining = False
    book = SimpleNamespace(address_of=lambda _: None, is_from=lambda *_: True)

    def __init__(self) -> None:
        self.placement = Placement()
        self.others: tuple[Any, ...] = ()
        """Reports of the other nodes."""
        self.adopted = Signal()
        self.touched = asyncio.Event()
        self.head_due = Signal()

    def adopt(self, placement: Placement, *, draining: bool = False) -> None:
        self.placement, self.draining = placement, draining
        self.adopted.notify()

    def touch(self) -> None:
        self.touched.set()

    def alive(self) -> tuple[Any, ...]:
        return self.others


class World:
    """Rings of node a. Their loads wait for `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loads: list[str] = []
        self.read: list[int] = []
        """Layers that were in no other stage when they were loaded."""
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.loaded: list[weakref.ref[Weights]] = []
        self.held: list[bool] = []
        """At each release of memory, whether any weights were still referenced."""
        self.released = asyncio.Event()
        monkeypatch.setattr(loaded_shards, "load_stage", self._load)
        monkeypatch.setattr(loaded_shards, "measure", self._measure)
        self.rates = [50e9]
        """Of the measurements to come; the last one repeats."""
        self.known: list[Groups] = []
        """The groups of equal bits that were known at each measurement."""
        monkeypatch.setattr(roles, "Runner", FakeRunner)
        monkeypatch.setattr(loaded_shards, "release_memory", self._release)
        self.shortage = 0
        """Bytes that the machine lacks."""
        monkeypatch.setattr(lifecycle, "shortage", lambda: self.shortage)
        monkeypatch.setattr(lifecycle, "IDLE_LOOK_S", 0.001)
        self.agent = FakeAgent()
        options = RingOptions(usable=4 * LAYER + RESERVE, max_queue=4, max_batch=4, step_timeout_s=60, guesses=True)
        self.compute = FakeCompute()
        self.rings = Rings(self.agent, self.compute, None, self._fetch, None, options)

    async def _fetch(self, *_: Any) -> Any:
        await self.go_on.wait()
        return Path(), SimpleNamespace(tensors={})

    def _load(
        self,
        _directory: Path,
        start: int,
        end: int,
        _tensors: Any,
        kv_bits: int,
        _wiring: Any,
        *,
        unproven: bool,
        loaded: Sequence[FakeStage],
    ) -> Generator[float, None, FakeStage]:
        held = {name: weight for stage in loaded for name, weight in stage.weights.items()}
        del loaded
        self.loads.append(f"{start}-{end}" + (f" in {kv_bits} bits" if kv_bits else ""))
        self.begun.set()
        weights = Weights()
        self.loaded.append(weakref.ref(weights))
        try:
            yield 0.5
            while not self.go_on.is_set():
                yield 0.5
        finally:
            self.loads.append("closed")
        shared = {str(layer): held.get(str(layer)) for layer in range(start, end)}
        read = {name for name, weight in shared.items() if not weight}
        self.read += [int(name) for name in sorted(read)]
        return FakeStage(weights, {name: weight or Weight(LAYER, layer=int(name)) for name, weight in shared.items()})

    def _measure(self, _stage: FakeStage, groups: Groups) -> Generator[float, None, Measured]:
        yield 0.0
        self.known.append(groups)
        rate = self.rates.pop(0) if len(self.rates) > 1 else self.rates[0]
        return Measured(rate, 300.0, 0.0, groups or ((1,), (2, 3)), {1: 2.0, 2: 2.2, 3: 3.0})

    def _release(self, models: list[Any]) -> Generator[float, None, None]:
        models.clear()
        gc.collect()
        self.held.append(any(weights() for weights in self.loaded))
        self.released.set()
        yield 0.0

    def place(self, *rings: Ring, draining: bool = False, refused: tuple[Refusal, ...] = ()) -> None:
        epoch = self.agent.placement.fence.epoch + 1
        self.agent.adopt(Placement(Fence(1, epoch), "a", rings, refused, SPECS), draining=draining)

    async def until(self, *states: StageState) -> None:
        while tuple(report.state for report in self.rings.reports()) != states:
            self.agent.touched.clear()
            await self.agent.touched.wait()

    async def ready(self, *names: str) -> None:
        while [(r.ring, r.state) for r in self.rings.reports()] != [(name, StageState.READY) for name in names]:
            self.agent.touched.clear()
            await self.agent.touched.wait()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    world = World(monkeypatch)
    task = asyncio.create_task(world.rings.run())
    async with asyncio.timeout(10):
        yield world
    task.cancel()
    await asyncio.wait([task])


def ring(name: str, stages: tuple[StageSpec, ...] = ALONE, model: str = "m") -> Ring:
    return Ring(name, ModelVersion(model), stages, 512, 2, fence=Fence(1, 1))


async def frames_of(name: str) -> AsyncIterator[Frame]:
    yield Frame(name, Fence(1, 1), 0)


async def test_a_node_that_gives_up_ends_the_requests_of_its_rings(world: World) -> None:
    """As driver and as worker. Later requests get the same error."""
    world.go_on.set()
    world.place(ring("driven", FIRST), ring("shared", SECOND))
    await world.until(StageState.READY, StageState.READY)
    world.rings.give_up(NotReady("It is stuck."))
    for _ in range(2):
        with pytest.raises(RingLost, match=r"mini-1 left the ring: It is stuck\."):
            await anext(world.rings.generate("driven", GenerateRequest("x", "m", (1,), 1)))
        with pytest.raises(RingLost, match="It is stuck"):
            await world.rings.serve_link(frames_of("shared"), Caller("192.168.1.5"))
    failed = {(report.state, report.error) for report in world.rings.reports()}
    assert failed == {(StageState.FAILED, "not_ready: It is stuck.")}


HANG = "[METAL] Command buffer execution failed: Caused GPU Hang Error."
TIMEOUT = "[METAL] Command buffer execution failed: Impacting Interactivity."


def fail(text: str) -> None:
    raise RuntimeError(text)


async def test_all_rings_end_when_the_device_fails_whoever_hears_of_it(world: World) -> None:
    """As driver and as worker; also a ring that is idle, and one of another model."""
    world.go_on.set()
    world.place(ring("driven", FIRST), ring("shared", SECOND), ring("other", ALONE, "other"))
    await world.until(StageState.READY, StageState.READY, StageState.READY)
    with pytest.raises(DeviceFailed):
        world.compute._run_job(None, partial(fail, HANG))
    await world.until(StageState.ENDED, StageState.ENDED, StageState.ENDED)
    assert {report.error.partition(":")[0] for report in world.rings.reports()} == {"device_failed"}
    with pytest.raises(RingLost, match="Hang"):
        await anext(world.rings.generate("driven", GenerateRequest("x", "m", (1,), 1)))


async def begin_prompt(world: World, *names: str) -> list[asyncio.Future[Any]]:
    """Have rings begin to compute a prompt; it comes to no end."""
    streams = [anext(world.rings.generate(name, GenerateRequest("x", "m", (1,) * 300, 1))) for name in names]
    asked = [asyncio.ensure_future(stream) for stream in streams]
    while not all(world.rings._parts[name].role._scheduler.admission.prompt_chunk for name in names):  # noqa: ASYNC110
        await asyncio.sleep(0)
    return asked


async def lost(asked: list[asyncio.Future[Any]]) -> None:
    assert [type(error) for error in await asyncio.gather(*asked, return_exceptions=True)] == [RingLost] * len(asked)


async def test_a_driver_divides_prompts_by_the_measured_speed_of_the_slowest_stage(world: World) -> None:
    """Its own counts from the first measurement on; that of another node once it is told."""
    world.go_on.set()
    slow = Speed(Shard(ModelVersion("m"), 2, 4), 50e9, 3.0)
    other = Speed(Shard(ModelVersion("other"), 2, 4), 50e9, 0.1)
    for number, (speeds, token_s) in enumerate((((), 1 / 300), ((slow, other), 1 / 3))):
        world.agent.others = (SimpleNamespace(info=SimpleNamespace(id="b"), speeds=speeds, stages=(), paths=()),)
        world.place(ring(f"r{number}", FIRST))
        await world.ready(f"r{number}")
        assert world.rings._parts[f"r{number}"].role._scheduler.admission.limits.token_s == token_s


def time_out(world: World) -> None:
    with pytest.raises(DeviceFailed):
        world.compute._run_job(None, partial(fail, TIMEOUT))


async def test_each_time_out_of_the_device_halves_the_chunks_of_the_prompts_that_it_was_computing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "prefill_chunk", lambda stages, _: 2048 if stages == 1 else 512)
    world.go_on.set()
    chunks = []
    for number in range(6):
        world.place(ring(f"r{number}"))
        await world.ready(f"r{number}")
        chunks.append(world.rings._parts[f"r{number}"].role._scheduler.admission.limits.chunk)
        asked = await begin_prompt(world, f"r{number}")
        time_out(world)
        await world.until(StageState.ENDED)
        await lost(asked)
    assert chunks == [2048, 1024, 512, 256, 128, 128]
    assert world.loads == ["0-4", "closed"], "the weights stay"
    world.place(ring("last"))
    await world.ready("last")
    with pytest.raises(DeviceFailed):
        world.compute._run_job(None, partial(fail, HANG))
    await world.until(StageState.ENDED)
    assert world.rings._shards.get(Shard(ModelVersion("m"), 0, 4)).chunk == 128


async def test_two_rings_of_the_same_layers_halve_once_and_an_idle_model_does_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "prefill_chunk", lambda *_: 2048)
    world.go_on.set()
    world.place(ring("one"), ring("two"), ring("idle", model="other"))
    await world.ready("one", "two", "idle")
    asked = await begin_prompt(world, "one", "two")
    time_out(world)
    await world.until(*[StageState.ENDED] * 3)
    await lost(asked)
    assert world.rings._shards.get(Shard(ModelVersion("m"), 0, 4)).chunk == 1024
    assert world.rings._shards.get(Shard(ModelVersion("other"), 0, 4)).chunk == 0


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_load_that_the_device_fails_is_tried_once_more(
    world: World, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The failure may be of a ring's work: MLX raises it wherever it is used next."""
    tries = []

    def load(*given: Any, **more: bool) -> Generator[float, None, FakeStage]:
        tries.append(given)
        if len(tries) <= failures:
            raise DeviceFailed("The GPU failed.")
        return (yield from world._load(*given, **more))

    monkeypatch.setattr(loaded_shards, "load_stage", load)
    world.go_on.set()
    world.place(ring("one"))
    await world.until(StageState.READY if failures == 1 else StageState.FAILED)
    assert len(tries) == 2


@pytest.mark.parametrize("stages", [ALONE, FIRST, SECOND])
async def test_weights_have_no_references_when_memory_is_released(world: World, stages: tuple[StageSpec, ...]) -> None:
    world.go_on.set()
    world.place(ring("r", stages))
    await world.until(StageState.READY)
    world.place(draining=True)
    await world.released.wait()
    assert world.held == [False]
    assert world.rings.idle() == ()


async def test_idle_weights_stay_for_the_next_ring(world: World) -> None:
    world.go_on.set()
    world.place(ring("one", FIRST))
    await world.until(StageState.READY)
    world.place()
    await world.until()
    assert world.rings.idle() == (Shard(ModelVersion("m"), 0, 2),)
    assert world.rings.memory_used() == 2 * LAYER + KV
    world.place(ring("two", FIRST))
    await world.until(StageState.READY)
    assert world.rings.idle() == ()
    assert world.loads == ["0-2", "closed"]


async def test_the_idle_weights_of_a_released_model_are_freed_and_no_others(world: World) -> None:
    half = (StageSpec("a", 0, 2),)
    world.go_on.set()
    world.place(ring("one", half), ring("other", half, model="other"))
    await world.until(StageState.READY, StageState.READY)
    world.rings.release("m")  # in use
    world.place(ring("one", half))
    await world.until(StageState.READY)
    assert world.rings.idle() == (Shard(ModelVersion("other"), 0, 2),)
    world.place()
    await world.until()
    assert len(world.rings.idle()) == 2
    world.rings.release("m")
    await world.released.wait()
    assert world.rings.idle() == (Shard(ModelVersion("other"), 0, 2),)


async def test_models_that_are_released_one_soon_after_the_other_are_all_freed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second while the node still leaves the rings of the first."""
    half = (StageSpec("a", 0, 2),)
    world.go_on.set()
    world.place(ring("one", half), ring("other", half, model="other"))
    await world.ready("one", "other")
    leave_all, leaving, gate = world.rings._leave_all, asyncio.Event(), asyncio.Event()

    async def gated(*given: Any) -> None:
        leaving.set()
        await gate.wait()
        await leave_all(*given)

    monkeypatch.setattr(world.rings, "_leave_all", gated)
    world.place(ring("other", half, model="other"))
    world.rings.release("m")
    await leaving.wait()
    world.place()
    world.rings.release("other")
    gate.set()
    async with asyncio.timeout(10):
        while world.rings.models():
            world.agent.touched.clear()
            await world.agent.touched.wait()
    assert not world.rings._released


async def test_a_ring_with_other_bits_of_kv_loads_its_layers_anew(world: World) -> None:
    world.go_on.set()
    world.place(ring("one", FIRST))
    await world.until(StageState.READY)
    world.place(replace(ring("two", FIRST), version=ModelVersion("m", kv_bits=8)))
    await world.ready("two")
    assert world.rings.idle() == (Shard(ModelVersion("m"), 0, 2),)
    (report,) = world.rings.reports()
    assert report.shard == Shard(ModelVersion("m", kv_bits=8), 0, 2)
    assert world.loads == ["0-2", "closed", "0-2 in 8 bits", "closed"]


async def test_a_driver_loads_the_draft_model_too_and_a_worker_does_not(world: World) -> None:
    world.go_on.set()
    draft = Shard(ModelVersion("small"), 0, 4)
    world.place(replace(ring("one", FIRST), draft=draft))
    await world.until(StageState.READY)
    assert sorted(world.loads) == ["0-2", "0-4", "closed", "closed"]
    (report,) = world.rings.reports()
    assert report.shard == Shard(ModelVersion("m"), 0, 2)
    assert world.rings.idle() == ()
    assert world.rings.models() == {"m", "small"}
    world.place()
    await world.until()
    assert draft in world.rings.idle()
    world.place(replace(ring("two", SECOND), draft=Shard(ModelVersion("other small"), 0, 3)))
    await world.ready("two")
    assert "0-3" not in world.loads


async def test_a_released_model_takes_its_draft_model_with_it(world: World) -> None:
    """Unless another ring needs that one."""
    draft = Shard(ModelVersion("small"), 0, 1)
    world.go_on.set()
    world.place(*(replace(ring(name, FIRST, model), draft=draft) for name, model in (("one", "m"), ("two", "other"))))
    await world.ready("one", "two")
    world.place(replace(ring("two", FIRST, "other"), draft=draft))
    world.rings.release("m")
    await world.released.wait()
    assert world.rings.idle() == ()
    assert draft in world.rings._shards._loaded
    world.released.clear()
    world.place()
    world.rings.release("other")
    await world.released.wait()
    assert not world.rings._shards._loaded


async def test_a_ring_waits_for_its_draft_model_and_serves_without_one_that_can_not_be_loaded(world: World) -> None:
    draft = Shard(ModelVersion("small"), 0, 4)

    async def fetch(shard: Shard, *_: Any) -> Any:
        await world.go_on.wait()
        if shard == draft:
            raise PeerUnavailable("The hub is not reached.")
        return Path(), SimpleNamespace(tensors={})

    world.rings._shards._fetch = fetch
    world.place(replace(ring("one", FIRST), draft=draft))
    await world.until(StageState.FETCHING)
    world.go_on.set()
    await world.ready("one")
    (issue,) = world.rings.issues()
    assert issue.code == Code.NO_GUESSES
    assert issue.text.endswith("The hub is not reached.")
    world.place(ring("two", FIRST))
    await world.ready("two")
    assert world.rings.issues() == ()


async def test_a_load_that_fails_again_is_logged_when_its_error_changes(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    errors = ["full", "full", "full", "gone", "", "gone"]
    done = iter(errors)

    async def fetch(*_: Any) -> Any:
        if error := next(done):
            raise PeerUnavailable(f"The disk is {error}.")
        return Path(), SimpleNamespace(tensors={})

    world.rings._shards._fetch = fetch
    world.go_on.set()
    refused = (Refusal("m", "peer_unavailable", "a could not load m."),)
    for number, error in enumerate(errors):
        world.place(ring(str(number)))
        await world.until(StageState.FAILED if error else StageState.READY)
        if not error:
            world.rings.release("m")
        world.place(refused=refused)
        await world.until()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said == [f"m layers 0-3: The disk is {error}." for error in ("full", "gone", "gone")]


CUT = (StageSpec("a", 0, 3), StageSpec("b", 3, 4))
"""Of the model's stages once b has taken over less of it: what `a` has of FIRST, and a layer more."""


async def test_layers_of_several_ranges_are_read_and_counted_once(world: World) -> None:
    world.go_on.set()
    for stages in (FIRST, SECOND, CUT, ALONE):
        world.place(ring(str(stages), stages))
        await world.ready(str(stages))
    assert world.read == [0, 1, 2, 3]
    assert world.rings.memory_used() - world.rings.kv_bytes() == 4 * LAYER
    assert world.rings.memory_kept() == world.rings.kv_bytes(), "only KV that rings of other stages left"


async def test_layers_that_a_larger_range_is_to_take_stay_until_it_has_them(world: World) -> None:
    """Though the memory of the new one is all that the node has."""
    world.go_on.set()
    world.place(ring("one", CUT))
    await world.ready("one")
    world.place(ring("two", ALONE))
    await world.ready("two")
    assert world.read == [0, 1, 2, 3]
    assert world.rings.memory_used() == 4 * LAYER


async def test_weights_that_a_load_shares_are_counted_also_when_their_lender_has_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.go_on.set()
    world.place(ring("one", FIRST))
    await world.ready("one")
    world.go_on.clear()
    world.begun.clear()
    files = Path(), SimpleNamespace(tensors={})
    monkeypatch.setattr(world.rings._shards, "_fetch", lambda *_: asyncio.sleep(0, files))
    world.place(ring("two", CUT))
    await world.begun.wait()
    await world.rings._shards.unload({Shard(ModelVersion("m"), 0, 3)}, -1, collect=False)
    assert Shard(ModelVersion("m"), 0, 2) not in world.rings._shards._loaded
    assert world.rings.memory_used() == 2 * LAYER
    world.go_on.set()
    await world.ready("two")
    assert world.read == [0, 1, 2]
    assert world.rings.memory_used() == 3 * LAYER


async def test_layers_that_no_ring_uses_go_after_some_minutes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.go_on.set()
    world.place(ring("one", FIRST), ring("other", (StageSpec("a", 0, 1),), model="other"))
    await world.ready("one", "other")
    world.place(ring("one", FIRST))
    await world.ready("one")
    assert world.rings.memory_kept() >= LAYER
    monkeypatch.setattr(loaded_shards, "IDLE_S", 0.0)
    await world.released.wait()
    assert world.rings.idle() == ()
    assert world.rings.memory_used() == 2 * LAYER


async def test_layers_that_no_ring_uses_go_when_the_machine_is_short_of_memory(world: World) -> None:
    world.go_on.set()
    world.place(ring("one", FIRST), ring("other", CUT[:1], model="other"))
    await world.ready("one", "other")
    world.place()
    await world.until()
    assert len(world.rings.idle()) == 2
    world.shortage = 2 * LAYER
    await world.released.wait()
    world.shortage = 0
    assert len(world.rings.idle()) == 1, "no more of them than it lacks"


@pytest.mark.slow
async def test_the_least_recently_used_idle_weights_are_unloaded_first(world: World) -> None:
    world.go_on.set()
    for start, model in ((2, "m"), (1, "other"), (3, "m")):
        world.place(ring(f"from {start}", (StageSpec("b", 0, start), StageSpec("a", start, 4)), model))
        await world.ready(f"from {start}")
        world.place()
        await world.until()
    other = Shard(ModelVersion("other"), 1, 4)
    assert world.rings.idle() == (other, Shard(ModelVersion("m"), 3, 4)), "5 layers are too many"
    world.place(ring("back", (StageSpec("b", 0, 1), StageSpec("a", 1, 4)), "other"))
    await world.ready("back")
    world.place(ring("third", (StageSpec("b", 0, 3), StageSpec("a", 3, 4)), "third"))
    await world.ready("third")
    assert world.rings.idle() == (other,)
    assert world.loads.count("1-4") == 1


async def test_idle_weights_are_unloaded_before_others_are_loaded(world: World) -> None:
    world.go_on.set()
    world.place(ring("one"))
    await world.until(StageState.READY)
    world.place(ring("two", FIRST, model="other"))
    await world.ready("two")
    assert world.held == [False]
    assert world.loads == ["0-4", "closed", "0-2", "closed"]
    assert world.rings.memory_used() == 2 * LAYER


async def test_rings_that_need_the_same_layers_load_them_once(world: World) -> None:
    world.place(ring("one"), ring("two"))
    await world.until(StageState.FETCHING, StageState.FETCHING)
    world.go_on.set()
    await world.until(StageState.READY, StageState.READY)
    world.place(ring("two"), ring("three"))
    await world.until(StageState.READY, StageState.READY)
    assert world.loads == ["0-4", "closed"]


async def test_a_ring_continues_the_load_of_the_ring_that_it_replaces(world: World) -> None:
    world.go_on.set()
    world.place(ring("one"))
    await world.begun.wait()
    world.go_on.clear()
    world.place(ring("two"))
    await world.released.wait()
    world.go_on.set()
    await world.until(StageState.READY)
    assert [report.ring for report in world.rings.reports()] == ["two"]
    assert world.loads == ["0-4", "closed"]


async def test_an_unwanted_load_is_cancelled_before_memory_is_released(world: World) -> None:
    world.go_on.set()
    world.place(ring("one"))
    await world.begun.wait()
    world.go_on.clear()
    world.place(ring("two", FIRST))
    await world.released.wait()
    assert world.held == [False]
    world.go_on.set()
    await world.until(StageState.READY)
    assert world.loads == ["0-4", "closed", "0-2", "closed"]


async def test_a_load_that_was_cancelled_while_fetching_can_begin_again(world: World) -> None:
    world.place(ring("one"))
    await world.until(StageState.FETCHING)
    world.place()
    await world.released.wait()
    world.go_on.set()
    world.place(ring("two"))
    await world.until(StageState.READY)
    assert world.loads == ["0-4", "closed"]


async def begun(world: World, *rings: Ring) -> None:
    """Place rings and wait until they have begun, so that they have KV."""
    world.go_on.set()
    world.place(*rings)
    await world.ready(*(each.id for each in rings))
    await asyncio.sleep(0.01)


async def test_kv_is_kept_for_a_ring_of_the_same_stages(world: World) -> None:
    await begun(world, ring("one"))
    world.place()
    await world.until()
    assert world.rings.kv_bytes() == KV
    await begun(world, ring("two"))
    assert world.rings.kv_bytes() == 0, "the second ring has taken it over; the fake does not count its own"


@pytest.mark.parametrize(
    "other",
    [replace(ring("two"), context=256), replace(ring("two"), max_sessions=1)],
    ids=["a shorter context", "fewer sessions"],
)
async def test_no_kv_is_kept_for_a_ring_with_a_smaller_budget(world: World, other: Ring) -> None:
    await begun(world, ring("one", SECOND))
    world.rings._parts["one"].role.runner.kv.inherit(())  # its first frame
    world.place()
    await world.until()
    assert world.rings.kv_bytes() == KV
    stages = ring("x", SECOND).stages
    await begun(world, replace(other, stages=stages))
    assert world.rings.kv_bytes() == 0


async def test_no_kv_is_kept_beside_a_ring_of_the_same_layers(world: World) -> None:
    await begun(world, ring("one", SECOND), ring("two", SECOND))
    world.rings._parts["one"].role.runner.kv.inherit(())
    world.place(ring("two", SECOND))
    await world.ready("two")
    assert world.rings.kv_bytes() == 0


async def test_kept_kv_is_freed_before_weights_are_unloaded(world: World) -> None:
    """There is room for the idle weights and the other model, but not for the kept KV, too."""
    await begun(world, ring("one", SECOND))
    world.rings._parts["one"].role.runner.kv.inherit(())
    await begun(world, ring("two", FIRST, model="other"))
    assert world.rings.idle() == (Shard(ModelVersion("m"), 2, 4),)
    assert world.rings.kv_bytes() == 0


async def test_frames_wait_for_a_ring_that_has_not_begun_here(world: World) -> None:
    world.go_on.set()
    waiting = asyncio.create_task(world.rings.serve_link(frames_of("soon"), Caller("192.168.1.5")))
    await asyncio.sleep(0)
    world.place(ring("soon", SECOND))
    with pytest.raises(PeerUnavailable, match="No address"):  # it has begun, and looks for the next stage
        await waiting


async def test_a_speed_is_told_once_a_second_measurement_agrees(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "MEASURE_S", 0.0)
    world.go_on.set()
    world.rates = [3e9, 40e9, 50e9, 90e9]
    world.place(ring("one", FIRST))
    await world.ready("one")
    assert world.rings.speeds() == ()
    while not world.rings.speeds():
        world.agent.touched.clear()
        await world.agent.touched.wait()
    assert world.rings.speeds() == (Speed(Shard(ModelVersion("m"), 0, 2), 50e9, 300.0),)
    assert world.rates == [90e9]


async def test_layers_are_not_measured_while_sessions_would_wait_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is put off as long as they are served, but for MOST_BUSY times."""
    monkeypatch.setattr(lifecycle, "MEASURE_S", 0.0)
    monkeypatch.setattr(FakeKv, "has_sessions", True)
    world.go_on.set()
    world.rates = [3e9, 50e9, 50e9]
    world.place(ring("one", FIRST))
    await world.ready("one")
    looks: list[bool] = []

    def held_up(rings: lifecycle.Rings) -> bool:
        looks.append(True)
        return True

    monkeypatch.setattr(lifecycle.Rings, "_computes", held_up)
    while not world.rings.speeds():
        world.agent.touched.clear()
        await world.agent.touched.wait()
    assert len(looks) >= lifecycle.MOST_BUSY
    assert len(world.known) == 3, "no measurement was begun meanwhile"


async def test_families_are_told_with_the_first_measurement_and_their_bits_are_tried_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "MEASURE_S", 0.0)
    world.go_on.set()
    world.place(ring("one", FIRST))
    await world.ready("one")
    (report,) = world.rings.reports()
    assert report.families == (RowFamily(), RowFamily(((2, 1.1), (3, 1.5))))
    while len(world.known) < 2:
        world.agent.touched.clear()
        await world.agent.touched.wait()
    assert world.known == [(), ((1,), (2, 3))]


async def test_layers_that_take_the_place_of_lost_ones_are_measured_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streams of the lost ring wait for them."""
    world.go_on.set()
    elsewhere = (StageSpec("b", 0, 2), StageSpec("c", 2, 4))
    world.place(ring("one", elsewhere), ring("own", model="other"))
    await world.ready("own")
    monkeypatch.setattr(lifecycle, "MEASURE_S", 0.001)
    world.known = []
    world.place(ring("two", FIRST), ring("own", model="other"))
    await world.ready("two", "own")
    assert world.known == []
    assert world.rings.reports()[0].families == ()
    while not world.rings.reports()[0].families:
        world.agent.touched.clear()
        await world.agent.touched.wait()


async def test_layers_of_kinds_that_are_known_have_families_at_once(world: World) -> None:
    world.go_on.set()
    world.rates = [50e9]
    for number in range(2):  # measurements agree with the second one
        world.place(ring(f"{number}", SECOND))
        await world.ready(f"{number}")
        world.place()
        world.rings.release("m")
        await world.released.wait()
        world.released.clear()
    known = len(world.known)
    world.place(ring("other", (StageSpec("b", 0, 1), StageSpec("a", 1, 4))))
    await world.ready("other")
    assert len(world.known) == known
    assert world.rings.reports()[0].families == (RowFamily(), RowFamily(((2, 1.1), (3, 1.5))))


@pytest.mark.parametrize(
    ("families", "expected"),
    [
        ((RowFamily(((2, 1.05), (3, 1.6), (4, 1.8))),), RowFamily(((2, 1.1), (3, 1.6)))),
        ((), RowFamily()),
        (None, RowFamily()),
    ],
    ids=["both", "none", "not heard of"],
)
async def test_a_ring_keeps_to_what_its_stages_tell_when_the_first_request_comes(
    families: tuple[RowFamily, ...] | None,
    expected: RowFamily,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[RowFamily] = []
    monkeypatch.setattr(roles.Scheduler, "keep_to", lambda _, family: kept.append(family))
    world.go_on.set()
    world.place(ring("one", FIRST))
    await world.ready("one")
    if families is not None:
        shard = Shard(ModelVersion("m"), 2, 4)
        stages = [StageReport(name, shard, StageState.READY, families=families) for name in ("one", "another")]
        stages[1] = replace(stages[1], families=(RowFamily(((1, 1.0), (2, 1.0))),))
        world.agent.others = (SimpleNamespace(info=SimpleNamespace(id="b"), stages=stages[::-1], paths=(), speeds=()),)
    for _ in range(2):
        begun = asyncio.create_task(anext(world.rings.generate("one", GenerateRequest("x", "m", (1,), 1))))
        await asyncio.sleep(0)
        begun.cancel()
        await asyncio.wait([begun])
    assert kept == [expected]


async def test_layers_that_are_unloaded_are_not_measured(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their weights may be freed between two pieces of the measurement."""
    again, closed = asyncio.Event(), asyncio.Event()

    def second_never_ends(_stage: FakeStage, _groups: Groups) -> Generator[float, None, Measured]:
        yield 0.0
        monkeypatch.setattr(loaded_shards, "measure", endless)
        return Measured(50e9, 300.0, 0.0, ((1,),), {})

    def endless(_stage: FakeStage, _groups: Groups) -> Generator[float, None, Measured]:
        again.set()
        try:
            while True:
                yield 0.0
        finally:
            closed.set()

    monkeypatch.setattr(lifecycle, "MEASURE_S", 0.0)
    monkeypatch.setattr(loaded_shards, "measure", second_never_ends)
    world.go_on.set()
    world.place(ring("one", FIRST))
    async with asyncio.timeout(10):
        await again.wait()
        world.place()
        world.rings.release("m")
        await closed.wait()
    assert world.rings.idle() == ()
