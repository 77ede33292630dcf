"""Makes this node follow the placement: it loads and unloads stages, and runs a driver or a worker for each ring.

A ring has one life: when it loses a link or a step, each of its nodes reports that it ended, and the head places its
successor. Weights without a ring, and the KV that a ring left, stay in memory until the placement needs that memory. So
a successor loads nothing, and computes only the KV that some stage lost.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from node.cluster.agent import Agent
from node.core.clock import in_step, now
from node.core.errors import (
    DeviceFailed,
    DeviceTimeout,
    NotAdmitted,
    PippinError,
    RingLost,
    StaleFence,
    as_pippin_error,
    replaced,
)
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.frames import Frame
from node.core.generation import GenerateRequest, TokenEvent
from node.core.limits import MAX_TEXT_CHARS
from node.core.models import Shard
from node.core.nodes import Caller
from node.core.reports import Download, RingTraffic, Speed, StageReport, StageState
from node.core.rings import Placement, Ring
from node.core.signal import Signal
from node.core.units import format_bytes
from node.core.warning_codes import Code
from node.engine.compute import Compute
from node.engine.device import MIN_CHUNK, prefill_chunk
from node.engine.draft import DraftModel
from node.engine.runner import Runner
from node.host.memory import stranded
from node.members.address_book import AddressBook
from node.model.weights import Weights
from node.placement.footprint import stage_bytes
from node.placement.speed import is_slow_wire
from node.ring import requests
from node.ring.driver import Driver
from node.ring.guessing import Guessing
from node.ring.limits import RingLimits, weights_as_tokens
from node.ring.loaded_shards import LoadedShard, LoadedShards, shape_of
from node.ring.next_hop import NextHop
from node.ring.numbers import sequence_numbers
from node.ring.worker import Worker
from node.rpc.client import RpcClient
from node.text.grammars import Grammars

log = logging.getLogger(__name__)

MEASURE_S = 10.0
"""Time after which a node measures again how quickly it computes what it has loaded: other loads have ended by then. Twice as long
each further time, until two measurements agree.
"""
FRAMES_WAIT_S = 2.0
"""How long frames wait for their ring to begin here: the stage before may hear of it earlier than this node."""

Fetch = Callable[[Shard, bool, Callable[[Download], None]], Awaitable[tuple[Path, Weights]]]
"""Makes sure that a shard's files are on this node's disk, with those of embedding and head if the flag says so; calls
back while they are fetched. Returns their directory and a description of all weights of the model. Cancelled, it keeps the
bytes that have come."""


class Rings:
    """The rings that this node has a part in. `run` is the task that follows the placement."""

    def __init__(
        self,
        agent: Agent,
        book: AddressBook,
        compute: Compute,
        client: RpcClient,
        fetch: Fetch,
        *,
        usable: int,
        max_queue: int,
        max_batch: int,
        step_timeout_s: float,
        guesses: bool,
        grammars: Grammars,
    ) -> None:
        """`usable`: bytes that this node may use for models."""
        self._agent = agent
        self._book = book
        self._compute = compute
        self._client = client
        self._fetch = fetch
        self._usable = usable
        self._max_queue = max_queue
        self._max_batch = max_batch
        self._step_timeout = step_timeout_s
        self._guesses = guesses
        self._numbers = sequence_numbers(agent.info)
        self._grammars = grammars
        self._shards = LoadedShards(compute)
        self._parts: dict[str, Driver | Worker] = {}
        """This node's part in each ring, by the ring's id."""
        self._began = Signal()
        """There is a new part."""
        self._reports: dict[str, StageReport] = {}
        self._placement = Placement()
        """The placement that is followed."""
        self._draining = False
        self._released: set[str] = set()
        """Models whose idle layers are to be freed."""
        self._guessed_for: dict[str, str] = {}
        """The draft model that this node loaded last for a model."""
        self._loading: dict[Shard, asyncio.Task[None]] = {}
        self._told: dict[str, str] = {}
        """Logged error of each model that could not be loaded since it was loaded last."""
        self._measuring: set[Shard] = set()
        """Shards whose speed is measured from time to time."""
        self._driving: dict[str, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()

    # --- reports and requests ----------------------------------------------------------------------------------------

    def reports(self) -> tuple[StageReport, ...]:
        return tuple(self._reports.values())

    def idle(self) -> tuple[Shard, ...]:
        """Shards in memory that no ring needs."""
        used = {report.shard for report in self._reports.values()}
        return self._shards.idle(used | self._drafts())

    def models(self) -> set[str]:
        """Ids of the models, draft models too, of which layers are in memory or on their way there."""
        shards = {report.shard for report in self._reports.values()} | self._drafts()
        return {shard.model for shard in shards} | self._shards.models

    def speeds(self) -> tuple[Speed, ...]:
        """Those that were measured twice alike."""
        return tuple(self._shards.speeds.agreed())

    def traffic(self) -> tuple[RingTraffic, ...]:
        return tuple(part.traffic() for part in self._parts.values() if isinstance(part, Driver))

    def memory_used(self) -> int:
        """Bytes of weights and KV."""
        return self._shards.weight_bytes + self.kv_bytes()

    def kv_bytes(self) -> int:
        return self._shards.leftover_bytes + sum(part.kv_bytes for part in self._parts.values())

    def generate(self, ring: str, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Raises StaleFence when this node does not drive the ring."""
        return requests.generate(self._driver(ring), self._grammars, request)

    async def evaluate(self, ring: str, request: EvaluateRequest) -> Evaluation:
        """Raises StaleFence when this node does not drive the ring."""
        return await requests.evaluate(self._driver(ring), request)

    def _driver(self, ring: str) -> Driver:
        part = self._parts.get(ring)
        if not isinstance(part, Driver):
            raise StaleFence(f"This node does not drive ring {ring}.")
        return part

    async def serve_link(self, frames: AsyncIterator[Frame], caller: Caller) -> None:
        first = await anext(frames, None)
        if first is None:
            return
        deadline = now() + FRAMES_WAIT_S
        while first.ring not in self._parts and await self._began.wait(deadline - now()):
            pass
        part = self._parts.get(first.ring)
        if part is None:
            raise StaleFence(f"This node is not part of ring {first.ring}.")
        if not self._book.is_from(self._node_before(part.ring), caller):
            raise NotAdmitted(f"Frames of ring {first.ring} come from the stage before, not from {caller.address}.")
        await part.serve_link(first, frames)

    def release(self, model: str) -> None:
        """Free the layers of a model that no ring needs, and those of the draft model that guessed for it."""
        self._released |= {model, self._guessed_for.pop(model, model)}
        self._agent.adopted.notify()

    def give_up(self, reason: PippinError) -> None:
        """End this node's part in all rings, as it can't compute; their requests go on elsewhere."""
        lost = RingLost(f"{self._agent.info.name} left the ring: {reason.message}")
        for ring, report in list(self._reports.items()):
            if part := self._parts.get(ring):
                part.give_up(lost)
            self._report(ring, report.shard, StageState.FAILED, error=f"{reason.code}: {reason}")

    async def _end_after_failures(self) -> None:
        """Whenever the device fails, end all rings, as the KV of any may be void. Their requests go on with others."""
        async for failed in self._compute.failures():
            for part in list(self._parts.values()):
                part.end(failed)

    # --- following the placement ------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with self._group:
            self._group.create_task(self._end_after_failures(), name="failures of the device")
            while True:
                is_followed = self._agent.placement is self._placement and self._agent.draining == self._draining
                if is_followed and not self._released:
                    await self._agent.adopted.wait()
                self._placement, self._draining = self._agent.placement, self._agent.draining
                await self._release()
                for ring in self._placement.rings:
                    self._join(ring)

    def _shard(self, ring: Ring) -> Shard | None:
        for stage in ring.stages:
            if stage.node == self._agent.info.id:
                return Shard(ring.version, stage.start, stage.end)
        return None

    def _draft(self, ring: Ring) -> Shard | None:
        """The draft model of a ring, if this node drives it."""
        return ring.draft if ring.driver == self._agent.info.id else None

    def _drafts(self) -> set[Shard]:
        return {shard for ring in self._placement.rings if (shard := self._draft(ring))}

    async def _release(self) -> None:
        """Leave the rings that are not in the placement, and unload idle weights that are released, or whose memory is needed."""
        wanted = {ring.id: shard for ring in self._placement.rings if (shard := self._shard(ring))}
        used = {*wanted.values(), *self._drafts()}
        known = self._placement.models | {shard.model for shard in used}
        self._told = {model: said for model, said in self._told.items() if model in known}
        if unwanted := [self._loading.pop(shard) for shard in self._loading.keys() - used]:
            for loading in unwanted:
                loading.cancel()
            await asyncio.wait(unwanted)
        for ring_id in self._parts.keys() - wanted.keys():
            log.info("ring %s: left", ring_id)
            await self._leave(ring_id)
        gone = [self._reports.pop(ring_id) for ring_id in self._reports.keys() - wanted.keys()]
        # A load that was cancelled or failed leaves memory to free, too.
        unfinished = any(report.state not in (StageState.READY, StageState.ENDED) for report in gone)
        room = 0 if self._draining else max(0, self._usable - self._set_aside())
        released, self._released = self._released, set()
        await self._shards.make_room(used, room, released, collect=unfinished)
        self._agent.touch()

    def _set_aside(self) -> int:
        """Bytes that the placement counts for this node's stages; all of them while a model's spec is not known."""
        specs = {spec.id: spec for spec in self._placement.specs}
        return sum(
            stage_bytes(specs[ring.model], ring, stage) if ring.model in specs else self._usable
            for ring in self._placement.rings
            for stage in ring.stages
            if stage.node == self._agent.info.id
        )

    async def _leave(self, ring_id: str) -> None:
        """End this node's part in a ring. No reference to the part may stay, as it holds the weights."""
        ring, shard = self._parts[ring_id].ring, self._reports[ring_id].shard
        # Another ring that runs on these layers would never ask for the KV.
        keep = not any(self._shard(part.ring) == shard for other, part in self._parts.items() if other != ring_id)
        left = await self._parts.pop(ring_id).close(replaced(ring_id), keep=keep)
        if keep and (loaded := self._shards.get(shard)):
            loaded.leftover_tokens, loaded.shape = left, shape_of(ring)
        if driving := self._driving.pop(ring_id, None):
            driving.cancel()
            await asyncio.wait([driving])

    def _join(self, ring: Ring) -> None:
        """Load this node's stage of a ring, if it has one."""
        shard = self._shard(ring)
        if shard and ring.id not in self._reports:
            self._reports[ring.id] = StageReport(ring.id, shard, StageState.FETCHING)
            self._begin_load(shard, shard.start == 0 or ring.shared_ends)
            if draft := self._draft(ring):
                self._guessed_for[ring.model] = draft.model
                self._begin_load(draft, ends=True)

    def _begin_load(self, shard: Shard, ends: bool) -> None:
        if shard not in self._loading:
            self._loading[shard] = self._group.create_task(self._load(shard, ends), name=f"load {shard}")

    async def _load(self, shard: Shard, ends: bool) -> None:
        """Load layers, once for all rings that wait for them, and begin this node's part in those that now have all.

        A task's root: any error is reported as a failed load.
        """
        try:
            await self._load_unless_loaded(shard, ends)
            for ring in self._waiting(shard):
                await self._begin(ring)
        except Exception as error:
            failed = as_pippin_error(error)
            said = f"layers {shard.start}-{shard.end - 1}: {failed}"
            if self._told.get(shard.model) != said:  # else it is tried again, and fails as before
                self._told[shard.model] = said
                if not isinstance(error, PippinError):
                    log.exception("loading failed")
                log.error("%s %s", shard.model, said)
            for ring in self._waiting(shard):
                own = self._reports[ring.id].shard
                self._report(ring.id, own, StageState.FAILED, error=f"{failed.code}: {failed}"[:MAX_TEXT_CHARS])
        finally:
            self._loading.pop(shard, None)

    async def _begin(self, ring: Ring) -> None:
        """Begin this node's part in a ring if its layers are loaded, and those of the draft model."""
        shard, wanted = self._reports[ring.id].shard, self._draft(ring)
        loaded, draft = self._shards.get(shard), self._shards.get(wanted) if wanted else None
        if not loaded or (wanted and not draft):
            return
        if loaded.shape != shape_of(ring):
            await self._shards.clear_leftover(loaded)  # of other stages, or more than is set aside now
            if ring not in self._waiting(shard):  # it was replaced, or the other load has begun it
                return
        self._parts[ring.id] = self._part(ring, shard, loaded, draft)
        self._report(ring.id, shard, StageState.READY, 1.0)
        self._began.notify()

    async def _load_unless_loaded(self, shard: Shard, ends: bool) -> None:
        """Load layers that are not loaded. If the device fails, maybe at the work of a ring, they are loaded once more."""
        for is_last in (False, True):
            if self._shards.get(shard):
                return
            try:
                await self._fetch_and_load(shard, ends)
            except DeviceFailed:
                if is_last:
                    raise

    async def _fetch_and_load(self, shard: Shard, ends: bool) -> None:
        log.info("loading %s layers %d-%d", shard.model, shard.start, shard.end - 1)
        if lost := stranded():
            log.warning("%s", Code.WIRED_MEMORY.issue(node=self._agent.info.name, bytes=format_bytes(lost)).text)
        self._agent.touch()
        directory, weights = await self._fetch(shard, ends, partial(self._fetched, shard))
        self._loaded(shard, 0.0)
        self._agent.touch()
        await self._shards.load(shard, directory, weights, partial(self._loaded, shard))
        self._told.pop(shard.model, None)
        if shard not in self._measuring:
            self._measuring.add(shard)
            self._group.create_task(self._measure(shard), name=f"measure {shard}")

    async def _measure(self, shard: Shard) -> None:
        """Measure a shard until its model's speed is known, or it is unloaded."""
        pause = MEASURE_S
        while self._shards.get(shard) and not self._shards.speeds.is_known(shard):
            await asyncio.sleep(in_step(pause))
            pause *= 2
            await self._shards.measure(shard)
            self._agent.touch()
        self._measuring.discard(shard)

    def _waiting(self, shard: Shard) -> list[Ring]:
        """The rings that wait for this shard to be loaded, as their stage or as their draft model."""
        return [
            ring
            for ring in self._placement.rings
            if (report := self._reports.get(ring.id)) and shard in (report.shard, self._draft(ring)) and report.loads
        ]

    def _node_before(self, ring: Ring) -> str:
        return ring.nodes[ring.nodes.index(self._agent.info.id) - 1]

    def _part(self, ring: Ring, shard: Shard, loaded: LoadedShard, draft: LoadedShard | None) -> Driver | Worker:
        me = self._agent.info.id
        next_hop = NextHop(ring.after(me), self._client, self._book.address_of)
        # Another ring may use the same layers at the same time, so this one has caches of its own.
        runner = Runner(loaded.stage.sibling(), loaded.directory, self._compute.faults)
        if ring.driver != me:
            return Worker(ring, self._compute, runner, next_hop, partial(self._ended, ring.id, shard))
        plan = loaded.stage.plan
        limits = RingLimits(
            context=ring.context,
            max_sessions=ring.max_sessions,
            max_queue=self._max_queue,
            max_rows=max(1, self._max_batch // len(ring.nodes)),
            chunk=self._chunk(ring, loaded),
            kv=plan.kv,
            weights=weights_as_tokens(loaded.stage.weight_bytes, plan.kv[shard.start : shard.end], ring.context),
        )
        model = DraftModel(draft.stage.sibling(), runner.plan.vocabulary) if draft else None
        guessing = Guessing(model, partial(self._is_wire_slow, ring, shard, loaded)) if self._guesses else None
        driver = Driver(
            ring,
            limits,
            self._compute,
            runner,
            next_hop if len(ring.nodes) > 1 else None,
            partial(self._driver_ended, ring.id, shard),
            step_timeout_s=self._step_timeout,
            numbers=self._numbers,
            leftover=loaded.leftover_tokens,
            guessing=guessing,
        )
        loaded.leftover_tokens = {}
        self._driving[ring.id] = self._group.create_task(driver.run(), name=f"driver of {ring.id}")
        return driver

    def _chunk(self, ring: Ring, loaded: LoadedShard) -> int:
        """Tokens of a prompt in one step, see RingLimits."""
        most = prefill_chunk(len(ring.nodes), loaded.stage.plan.max_chunk)
        return min(most, loaded.chunk or most)

    def _is_wire_slow(self, ring: Ring, shard: Shard, loaded: LoadedShard) -> bool:
        alive = {report.info.id: report for report in self._agent.alive()}
        speed = self._shards.speeds.best(shard)
        if not speed or not all(node in alive for node in ring.nodes):
            return False
        return is_slow_wire([alive[node] for node in ring.nodes], 1e3 * loaded.stage.weight_bytes / speed.bytes_per_s)

    def _driver_ended(self, ring: str, shard: Shard, reason: PippinError, chunk: int) -> None:
        """After a time-out of a device, of whichever stage, the successor divides prompts into smaller chunks.

        `chunk`: see Scheduler.prompt_chunk. Rings of the same layers that one time-out ends halve the same chunk.
        """
        loaded = self._shards.get(shard)
        if isinstance(reason, DeviceTimeout) and chunk and loaded:
            halved = max(MIN_CHUNK, chunk // 2)
            loaded.chunk = min(loaded.chunk or halved, halved)
            log.warning("prompts of %s run in chunks of %d tokens from now on", shard.model, loaded.chunk)
        self._ended(ring, shard, reason)

    def _ended(self, ring: str, shard: Shard, reason: PippinError) -> None:
        """Report the end, to the head at once, so that the successor is placed within milliseconds."""
        self._report(ring, shard, StageState.ENDED, error=f"{reason.code}: {reason}"[:MAX_TEXT_CHARS])
        self._agent.head_due.notify()

    def _report(self, ring: str, shard: Shard, state: StageState, progress: float = 0.0, error: str = "") -> None:
        self._reports[ring] = StageReport(ring, shard, state, progress, error)
        self._agent.touch()

    def _fetched(self, shard: Shard, download: Download) -> None:
        self._progress(StageReport("", shard, StageState.FETCHING, download.share, download=download))

    def _loaded(self, shard: Shard, share: float) -> None:
        self._progress(StageReport("", shard, StageState.LOADING, share))

    def _progress(self, report: StageReport) -> None:
        """Sent with the next heartbeat. That of a draft model, which is small, is not told."""
        for ring in self._waiting(report.shard):
            if self._reports[ring.id].shard == report.shard:
                self._reports[ring.id] = replace(report, ring=ring.id)
