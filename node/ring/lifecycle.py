"""Makes this node follow the placement: it loads and unloads stages, and runs a driver or a worker for each ring.

A ring has one life: when it loses a link or a step, each of its nodes reports that it ended, and the head places its
successor. Weights without a ring, and the KV that a ring left, stay in memory for some minutes, unless the placement or the
machine needs that memory. So a successor loads nothing, and computes only the KV that some stage lost.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Container, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from node.cluster.agent import Agent
from node.core.clock import in_step, now
from node.core.errors import (
    DeviceTimeout,
    ModelUnsupported,
    NotAdmitted,
    PippinError,
    RingLost,
    StaleFence,
    as_pippin_error,
    replaced,
)
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.frames import Frame
from node.core.generation import GenerateRequest, PromptProgress, TokenEvent
from node.core.limits import MAX_TEXT_CHARS
from node.core.models import Shard
from node.core.nodes import Caller
from node.core.reports import Download, Issue, RingTraffic, Speed, StageReport, StageState
from node.core.rings import Placement
from node.core.signal import Signal
from node.core.units import format_bytes
from node.core.warning_codes import Code
from node.engine.compute import Compute
from node.engine.device import MIN_CHUNK
from node.engine.ring_kv import RingKv
from node.host.memory import shortage, stranded
from node.placement.footprint import stage_bytes
from node.ring import requests
from node.ring.driver import Driver
from node.ring.limits import RingOptions
from node.ring.loaded_shards import Fetch, LoadedShards, Marked, Shape, shape_of
from node.ring.roles import RingPart, Roles
from node.ring.stored_kv import StoredKv
from node.ring.worker import Worker
from node.rpc.client import RpcClient
from node.text.grammars import Grammars

log = logging.getLogger(__name__)

PICTURES_PROTOCOL, MUTUAL_PROTOCOL = 11, 12
"""The first protocols whose stages know of pictures, and of those whose places see each other."""
MEASURE_S = 10.0
"""Time after which a node measures again how quickly it computes what it has loaded: other loads have ended by then. Twice as long
each further time, until two measurements agree.
"""
MOST_BUSY = 30
"""So many times in a row it is put off as sessions are served; then they wait for it."""
IDLE_LOOK_S = 10.0
"""Interval at which a node looks whether it should still keep layers that no ring uses."""


class Rings:
    """The rings that this node has a part in. `run` is the task that follows the placement."""

    def __init__(
        self,
        agent: Agent,
        compute: Compute,
        client: RpcClient,
        fetch: Fetch,
        grammars: Grammars,
        options: RingOptions,
        stored: StoredKv | None = None,
        marked: Marked = nullcontext,
    ) -> None:
        """`stored`: None if no KV is kept on the disk."""
        self._stored = stored
        self._agent = agent
        self._me = agent.info.id
        self._compute = compute
        self._grammars = grammars
        self._usable = options.usable
        self._shards = LoadedShards(compute, fetch, marked)
        self._roles = Roles(agent, compute, client, self._shards, options, stored)
        self._parts: dict[str, RingPart] = {}
        """By the ring's id."""
        self._leaving: list[RingPart] = []
        """Parts whose memory is not free yet."""
        self._began = Signal()
        """A part has a role."""
        self._released: set[str] = set()
        """Models whose idle layers are to be freed."""
        self._guessed_for: dict[str, str] = {}
        """The draft model that this node loaded last for a model."""
        self._loading: dict[Shard, asyncio.Task[None]] = {}
        self._told: dict[str, str] = {}
        """Logged error of each model that could not be loaded since it was loaded last."""
        self._measuring: set[Shard] = set()
        """Shards whose speed is measured from time to time."""
        self._group = asyncio.TaskGroup()

    # --- reports and requests ----------------------------------------------------------------------------------------

    def reports(self) -> tuple[StageReport, ...]:
        return tuple(
            replace(part.report, families=self._shards.speeds.families(part.shard)) if part.role else part.report
            for part in self._parts.values()
        )

    def idle(self) -> tuple[Shard, ...]:
        """Shards in memory that no ring needs."""
        return self._shards.idle(_needed(self._parts.values()))

    def models(self) -> set[str]:
        """Ids of the models, draft models too, of which layers are in memory or on their way there."""
        return {shard.model for shard in (*_needed(self._parts.values()), *self._shards.idle(()))}

    def speeds(self) -> tuple[Speed, ...]:
        """Those that were measured twice alike."""
        return tuple(self._shards.speeds.agreed())

    def issues(self) -> tuple[Issue, ...]:
        """Of the rings that this node drives without the guesses that they were to have."""
        drivers = (part.role for part in self._parts.values() if isinstance(part.role, Driver))
        name = self._agent.info.name
        return tuple(
            Code.NO_GUESSES.issue(node=name, model=role.ring.model, error=role.lacks) for role in drivers if role.lacks
        )

    def traffic(self) -> tuple[RingTraffic, ...]:
        return tuple(part.role.traffic() for part in self._parts.values() if isinstance(part.role, Driver))

    def memory_used(self) -> int:
        """Bytes of weights and KV."""
        return self._shards.weight_bytes + self.kv_bytes()

    def memory_kept(self) -> int:
        """Bytes of those that no ring needs."""
        return self._shards.kept_bytes(_needed(self._parts.values()))

    def kv_bytes(self) -> int:
        return self._shards.leftover_bytes + sum(
            part.role.kv_bytes for part in (*self._parts.values(), *self._leaving) if part.role
        )

    def generate(self, ring: str, request: GenerateRequest) -> AsyncGenerator[TokenEvent | PromptProgress, None]:
        """Raises StaleFence when this node does not drive the ring, and ModelUnsupported for pictures if a stage knows of none."""
        driver = self._driver(ring)
        alive = self._agent.alive() if request.pictures else ()
        nodes = [report.info for report in alive if report.info.id in driver.ring.nodes]
        first = MUTUAL_PROTOCOL if driver.runner.has_mutual_pictures else PICTURES_PROTOCOL
        if any(node.protocol < first for node in nodes):
            raise ModelUnsupported(
                "A node of this ring is of an earlier version, which knows no such pictures.", hint="Update all nodes."
            )
        return requests.generate(driver, self._grammars, request)

    async def evaluate(self, ring: str, request: EvaluateRequest) -> Evaluation:
        """Raises StaleFence when this node does not drive the ring."""
        return await requests.evaluate(self._driver(ring), request)

    def _driver(self, ring: str) -> Driver:
        role = self._role(ring)
        if not isinstance(role, Driver):
            raise StaleFence(f"This node does not drive ring {ring}.")
        return role

    def _role(self, ring: str) -> Driver | Worker | None:
        part = self._parts.get(ring)
        return part.role if part else None

    async def serve_link(self, frames: AsyncIterator[Frame], caller: Caller) -> None:
        first = await anext(frames, None)
        if first is None:
            return
        deadline = now() + 2.0  # the stage before may hear of the ring earlier than this node
        while not (role := self._role(first.ring)):
            if not await self._began.wait(deadline - now()):
                raise StaleFence(f"This node is not part of ring {first.ring}.")
        if not self._agent.book.is_from(role.ring.before(self._me), caller):
            raise NotAdmitted(f"Frames of ring {first.ring} come from the stage before, not from {caller.address}.")
        await role.serve_link(first, frames)

    def release(self, model: str) -> None:
        """Free the layers of a model that no ring needs, and those of the draft model that guessed for it."""
        self._released |= {model, self._guessed_for.pop(model, model)}
        self._agent.adopted.notify()

    def give_up(self, reason: PippinError) -> None:
        """End this node's part in all rings, as it can't compute; their requests go on elsewhere."""
        for part in self._parts.values():
            if part.role:
                part.role.give_up(RingLost(f"{self._agent.info.name} left the ring: {reason.message}"))
            self._report(part, StageState.FAILED, reason)

    async def _end_after_failures(self) -> None:
        """Whenever the device fails, end all rings, as the KV of any may be wrong. Their requests go on with others."""
        async for failed in self._compute.failures():
            for part in self._parts.values():
                if part.role:
                    part.role.end(failed)
            if self._stored:
                self._group.create_task(self._stored.device_failed(), name="KV of a failed device")

    # --- following the placement ------------------------------------------------------------------------------------

    async def run(self) -> None:
        followed: Placement | None = None
        draining = False
        async with self._group:
            self._group.create_task(self._end_after_failures(), name="failures of the device")
            while True:
                if self._agent.placement is followed and self._agent.draining == draining and not self._released:
                    look_s = in_step(IDLE_LOOK_S) if self.idle() else None
                    if followed and not await self._agent.adopted.wait(look_s):
                        await self._unload(followed, _needed(self._parts.values()))
                        continue
                before, followed, draining = followed, self._agent.placement, self._agent.draining
                await self._follow(followed, before, draining=draining)

    async def _follow(self, placement: Placement, before: Placement | None, *, draining: bool) -> None:
        """Leave the rings that are not in the placement, unload idle weights that are released, or whose memory is
        needed, and load this node's stages of the new rings: at once where streams of a ring that was there `before` may wait.
        """
        rings = {ring.id for ring in placement.rings}
        lost = {ring.model for ring in before.rings if ring.id not in rings} if before else set[str]()
        stages = [(ring, stage) for ring in placement.rings for stage in ring.stages if stage.node == self._me]
        wanted: dict[str, RingPart] = {}
        for ring, stage in stages:
            report = StageReport(ring.id, Shard(ring.version, stage.start, stage.end), StageState.FETCHING)
            draft = ring.draft if ring.driver == self._me else None
            wanted[ring.id] = self._parts.get(ring.id) or RingPart(ring, draft, report)
        gone = self._leaving = [part for ring, part in self._parts.items() if ring not in wanted]
        self._parts = {ring: part for ring, part in self._parts.items() if ring in wanted}
        for part in gone:  # at once, as other rings' leaving may last
            if part.role:
                part.role.give_up(replaced(part.ring.id))
        needed = _needed(wanted.values())
        known = placement.models | {shard.model for shard in needed}
        self._told = {model: said for model, said in self._told.items() if model in known}
        if unwanted := [self._loading.pop(shard) for shard in self._loading.keys() - needed]:
            for loading in unwanted:
                loading.cancel()
            await asyncio.wait(unwanted)
        await self._leave_all(gone, {shape_of(ring) for ring, _ in stages})
        self._leaving = []
        # A load that was cancelled or failed leaves memory to free, too.
        unfinished = any(part.report.state not in (StageState.READY, StageState.ENDED) for part in gone)
        await self._unload(placement, needed, draining=draining, collect=unfinished)
        self._parts = wanted
        for part in wanted.values():
            if part.report.loads:
                at_once = part.ring.model in lost
                self._begin_load(part.shard, ends=part.shard.start == 0 or part.ring.shared_ends, at_once=at_once)
                if part.draft:
                    self._guessed_for[part.ring.model] = part.draft.model
                    self._begin_load(part.draft, ends=part.draft.start == 0, at_once=at_once)
        self._agent.touch()

    async def _unload(
        self, placement: Placement, needed: set[Shard], *, draining: bool = False, collect: bool = False
    ) -> None:
        """Unload idle weights that are released, are idle for long, or whose memory the placement or the machine needs."""
        specs, spare = {spec.id: spec for spec in placement.specs}, 0 if draining else self._usable
        for ring in placement.rings:
            for stage in ring.stages:
                if stage.node == self._me:  # all of the memory while a model's spec is not known
                    spare -= stage_bytes(specs[ring.model], ring, stage) if ring.model in specs else self._usable
        spare = min(spare, self._shards.kept_bytes(needed) - shortage())
        released, self._released = self._released, set()
        if placement is not self._agent.placement:  # the next one may need less
            self._released = released & {shard.model for shard in needed}
        await self._shards.unload(needed, max(0, spare), released, collect=collect)

    async def _leave_all(self, gone: Sequence[RingPart], succeeding: Container[Shape]) -> None:
        """End this node's parts in these rings. `succeeding`: shapes of the rings to come, which inherit KV."""
        others = (*gone, *self._parts.values())
        left = [(part, kv) for part in gone if (kv := await self._leave(part, others))]
        if self._stored:
            await self._stored.flush([kv for part, kv in left if shape_of(part.ring) not in succeeding])
            self._stored.forget([kv for _, kv in left])

    async def _leave(self, part: RingPart, others: Iterable[RingPart]) -> RingKv | None:
        """End this node's part in a ring. No reference to its role or KV may stay, as these hold the weights."""
        role, part.role = part.role, None
        if role is None:
            return None
        log.debug("ring %s: left", part.ring.id)
        # Another ring that runs on these layers would never ask for the KV.
        keep = not any(other.role and other.shard == part.shard for other in others)
        left = await role.close(replaced(part.ring.id), keep=keep)
        if keep and (loaded := self._shards.get(part.shard)):
            loaded.leftover_tokens, loaded.shape = left, shape_of(part.ring)
        return role.runner.kv

    # --- loading ----------------------------------------------------------------------------------------------------

    def _begin_load(self, shard: Shard, *, ends: bool, at_once: bool) -> None:
        if shard not in self._loading:
            load = self._load(shard, ends, at_once=at_once)
            self._loading[shard] = self._group.create_task(load, name=f"load {shard}")

    async def _load(self, shard: Shard, ends: bool, *, at_once: bool) -> None:
        """Load layers, once for all rings that wait for them, and begin this node's part in those that now have all.

        A task's root: any error is reported as a failed load.
        """
        try:
            if not self._shards.get(shard) and (lost := stranded()):
                log.warning("%s", Code.WIRED_MEMORY.issue(node=self._agent.info.name, bytes=format_bytes(lost)).text)
            if await self._shards.load(shard, ends, partial(self._progress, shard), at_once=at_once):
                self._told.pop(shard.model, None)
                loaded = self._shards.get(shard)
                if shard not in self._measuring and not (loaded and loaded.is_mtp):
                    self._measuring.add(shard)
                    self._group.create_task(self._measure(shard), name=f"measure {shard}")
            for part in self._waiting(shard):
                await self._begin(part)
        except Exception as error:
            failed = as_pippin_error(error)
            said = f"layers {shard.start}-{shard.end - 1}: {failed}"
            if self._told.get(shard.model) != said:  # else it is tried again, and fails as before
                self._told[shard.model] = said
                if isinstance(error, OSError):  # of the disk, or no descriptors are left
                    log.error("loading failed: %s", error)
                elif not isinstance(error, PippinError):
                    log.exception("loading failed")
                log.error("%s %s", shard.model, said)
            for part in self._waiting(shard):
                if shard == part.draft:  # a ring serves without what was to guess
                    part.draft, part.lacks = None, str(failed)
                    await self._begin(part)
                else:
                    self._report(part, StageState.FAILED, failed)
        finally:
            self._loading.pop(shard, None)

    async def _measure(self, shard: Shard) -> None:
        """Measure a shard until its model's speed is known, or it is unloaded."""
        pause, busy = MEASURE_S, 0
        while self._shards.get(shard) and self._shards.speeds.is_stale(shard, now()):
            await asyncio.sleep(in_step(pause))
            if not await self._shards.measure(shard, self._computes if busy < MOST_BUSY else lambda: False):
                busy += 1
                continue
            pause, busy = 2 * pause, 0
            self._agent.touch()
        self._measuring.discard(shard)

    def _computes(self) -> bool:
        """Whether sessions have KV in a ring of this node: a measurement would hold up their steps. In any thread."""
        roles = (part.role for part in list(self._parts.values()))
        return any(role.runner.kv.has_sessions for role in roles if role)

    def _waiting(self, shard: Shard) -> list[RingPart]:
        """The parts that wait for this shard to be loaded, as their stage or as their draft model."""
        return [part for part in self._parts.values() if part.report.loads and shard in (part.shard, part.draft)]

    def _progress(self, shard: Shard, state: StageState, share: float, download: Download | None = None) -> None:
        """Sent with the next heartbeat, a new state at once. That of a draft model, which is small, is not told."""
        for part in self._waiting(shard):
            if part.shard == shard:
                is_new = part.report.state is not state
                part.report = StageReport(part.ring.id, shard, state, share, download=download)
                if is_new:
                    self._agent.touch()

    async def _begin(self, part: RingPart) -> None:
        """Begin this node's part in a ring if its layers are loaded, and those of the draft model."""
        loaded = self._shards.get(part.shard)
        draft = self._shards.get(part.draft) if part.draft else None
        if not loaded or (part.draft and not draft):
            return
        if loaded.shape != shape_of(part.ring):
            await self._shards.clear_leftover(loaded)  # of other stages, or more than is set aside now
            if part not in self._waiting(part.shard):  # it was replaced, or the other load has begun it
                return
        part.role = role = self._roles.new(part, loaded, draft, partial(self._ended, part))
        if isinstance(role, Driver):
            self._group.create_task(role.run(), name=f"driver of {part.ring.id}")
        self._report(part, StageState.READY)
        self._began.notify()

    def _ended(self, part: RingPart, reason: PippinError, chunk: int) -> None:
        """Report the end, to the head at once, so that the successor is placed within milliseconds.

        `chunk`: see Admission.prompt_chunk. After a time-out of a device, of whichever stage, the successor divides
        prompts into smaller chunks. Rings of the same layers that one time-out ends halve the same chunk.
        """
        loaded = self._shards.get(part.shard)
        if isinstance(reason, DeviceTimeout) and chunk and loaded:
            halved = max(MIN_CHUNK, chunk // 2)
            loaded.chunk = min(loaded.chunk or halved, halved)
            log.warning("prompts of %s run in chunks of %d tokens from now on", part.shard.model, loaded.chunk)
        self._report(part, StageState.ENDED, reason)
        self._agent.head_due.notify()

    def _report(self, part: RingPart, state: StageState, reason: PippinError | None = None) -> None:
        progress = 1.0 if state is StageState.READY else 0.0
        error = f"{reason.code}: {reason}"[:MAX_TEXT_CHARS] if reason else ""
        part.report = StageReport(part.ring.id, part.shard, state, progress, error)
        self._agent.touch()


def _needed(parts: Iterable[RingPart]) -> set[Shard]:
    """The shards of these parts, draft models too."""
    return {shard for part in parts for shard in (part.shard, part.draft) if shard}
