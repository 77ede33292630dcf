"""The first stage of a ring: sends the steps of its sessions round, samples from the results, and emits tokens."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from node.core.clock import now
from node.core.errors import DeviceFailed, Overloaded, PippinError, RingLost, as_pippin_error, error_from
from node.core.frames import CacheOp, Frame, Held, SequenceId
from node.core.reports import RingTraffic
from node.core.rings import Ring
from node.core.row_family import RowFamily
from node.engine.compute import Compute
from node.engine.runner import Runner
from node.engine.verdict import Verdict
from node.ring.asking import Asking
from node.ring.flight import Step
from node.ring.guessing import Guessing
from node.ring.pipeline import OpenLink, Pipeline
from node.ring.scheduler import Scheduler
from node.ring.seeing import Seeing
from node.ring.session import Session
from node.ring.stored_kv import StoredKv
from node.ring.taking import Taking

log = logging.getLogger(__name__)

WATCH_S = 1.0
"""How often the driver checks whether a step takes too long."""
RATE_S = 5.0
"""Window of the token rate: long enough to be read by a person, short enough to show a stall."""


class Driver:
    """Runs one ring, once: any failure ends it, and the head makes another. `run` is its task."""

    def __init__(
        self,
        ring: Ring,
        scheduler: Scheduler,
        compute: Compute,
        runner: Runner,
        open_link: OpenLink | None,
        on_ended: Callable[[PippinError, int], None],
        *,
        leftover: Mapping[SequenceId, tuple[int, ...]],
        guessing: Guessing | None = None,
        stored: StoredKv | None = None,
    ) -> None:
        """`open_link`: None when the ring has one stage. `on_ended` is called with the reason, once, if the ring ends by
        itself, and with the Admission.prompt_chunk that it had. `leftover`: the tokens whose KV a ring of the same layers
        left, by sequence number. `stored`: None if no KV is kept on the disk.
        """
        self.ring = ring
        self._on_ended = on_ended
        self._compute = compute
        self.runner = runner
        self._has_one_stage = open_link is None
        self._pipeline = Pipeline(ring, open_link, self.end)
        self._scheduler, self._admission = scheduler, scheduler.admission
        self._guessing = guessing or Guessing()
        scheduler.filling.context = self._guessing.source.max_context if self._guessing.source else 0
        self._family: RowFamily | None = None
        """Of the steps of a single session; known from the first request on."""
        self._wake = asyncio.Event()
        """There may be a step to send."""
        self._ended: PippinError | None = None
        """Why the ring accepts no requests."""
        self._finishing: asyncio.Task[None] | None = None
        """Delivers the results of the last step that came back."""
        self._running: asyncio.Task[None] | None = None
        self._landed_at = 0.0
        self._leftover = leftover
        self._held: tuple[Held, ...] = ()
        """KV of `_leftover` that this stage has. The other stages are asked for theirs before anything else is sent."""
        self._stored = stored
        taking = Taking(stored, runner.kv)
        self._asking = Asking(
            taking, self._pipeline, self._admission, self._wake.set, self.end, has_one_stage=self._has_one_stage
        )
        self._seeing = Seeing(compute, runner, self._admission, self._wake.set)
        self._sampled_at: deque[float] = deque()
        """Times of the tokens of the last RATE_S."""
        self._requests = 0
        """Requests since the ring began."""
        self._used_at = int(time.time())

    def traffic(self) -> RingTraffic:
        while self._sampled_at and self._sampled_at[0] < now() - RATE_S:
            self._sampled_at.popleft()
        prompts = [prefill for prefill in self._admission.prefills if not prefill.gone]
        return RingTraffic(
            self.ring.id,
            running=self._admission.running,
            queued=len(self._admission.waiting),
            tokens_per_second=len(self._sampled_at) / RATE_S,
            guesses=self._scheduler.guessed,
            right_guesses=self._scheduler.guessed_right,
            recomputed=self._admission.recomputed,
            requests=self._requests,
            used_at=self._used_at,
            foretold=self._scheduler.alone.foretold,
            token_ms=self._scheduler.alone.token_ms,
            prompt_tokens=sum(each.progress.total for each in prompts),
            prompt_done=sum(each.progress.done for each in prompts),
            prompt_tokens_per_second=sum(each.rate.at(each.progress.done) for each in prompts),
        )

    @property
    def kv_bytes(self) -> int:
        return self.runner.kv.nbytes + self._guessing.kv_bytes

    @property
    def lacks(self) -> str:
        """Why the draft model or MTP layer that was to guess does not; empty if it does, or there is none."""
        return self._guessing.failure

    def give_up(self, reason: PippinError) -> None:
        """End all requests with `reason`, also later ones, and the links."""
        if not self._ended:
            self._ended = reason
            self._leftover = {**self._leftover, **self._admission.sequences()}
            self._pipeline.close()
            self._asking.end()
            self._seeing.end()
            for session in self._admission.sessions():
                self._admission.fail(session, reason)
            self._wake.set()

    async def close(self, reason: PippinError, *, keep: bool) -> Mapping[SequenceId, tuple[int, ...]]:
        """Give up, and `keep` the KV for the next ring of these stages, or free it. Returns its tokens."""
        self.give_up(reason)
        await self._compute.run(self.runner.kv.leave if keep else self.runner.kv.free)
        await self._guessing.clear(self._compute)
        if self._running:
            self._running.cancel()
            await asyncio.wait([self._running])
        return self._leftover if keep else {}

    # --- sessions ---------------------------------------------------------------------------------------------------

    def submit(self, session: Session) -> None:
        """Queue a session. Raises the errors of Admission.submit, and RingLost after the ring's end."""
        if self._ended:
            raise self._ended
        self._family = self._guessing.family(self._family)
        self._scheduler.keep_to(self._family)
        self._scheduler.filling.watched = self._guessing.is_watched()
        self._requests += 1
        self._used_at = int(time.time())
        session.memory = self._guessing.memory
        if replaced := self._admission.submit(session):
            full = "The queue is full, and this client has the most requests in it."
            hint = "Try again in a moment, with fewer requests at once."
            self._admission.fail(replaced, Overloaded(full, hint=hint))
        self._wake.set()

    def finish(self, session: Session, *, keep: bool) -> None:
        """Free the session's slot, and its KV unless `keep` and there is room."""
        self._admission.finish(session, keep=keep)
        self._used_at = int(time.time())
        self._wake.set()

    # --- steps out --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the ring ends."""
        self._running = asyncio.current_task()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(), name=f"watch of {self.ring.id}")
            await self._drive()
            watching.cancel()

    async def _drive(self) -> None:
        try:
            if not self._ended:
                # If this stage has nothing of what earlier rings left, what the others have is of no use.
                left = tuple(Held(number, len(tokens)) for number, tokens in self._leftover.items())
                self._held = await self._compute.run(self.runner.kv.inherit, left)
                if not self._ended and (self._has_one_stage or not self._held):
                    self._begin_with(self._held)
            while not self._ended:
                await self._wake.wait()
                self._wake.clear()
                await self._send_all()
        except Exception as error:
            if not isinstance(error, PippinError):
                log.exception("a step failed")
            self.end(as_pippin_error(error))

    async def _send_all(self) -> None:
        """Send steps as long as there are any and not all stages are busy: certain ones first; then guesses behind which others can
        follow, those for which the draft model has to be asked, and those with padding.
        """
        pipeline, scheduler, begun_at = self._pipeline, self._scheduler, now()
        while not (self._ended or pipeline.asking or scheduler.flight.is_full):
            if self._held and self._admission.waiting:
                pipeline.open()
                await pipeline.send(pipeline.frame(held=self._held))
                continue
            if await self._guessing.fill(self._compute, scheduler) or self._ended:
                continue
            begun_at = max(begun_at, self._guessing.drew_at)
            step = scheduler.next()
            self._asking.begin()
            self._seeing.begin(step)
            if step:
                begun_at = await self._send(step, begun_at)
            elif ops := self._admission.pop_ops():
                if self._admission.running:  # else the other stages have nothing to which they could apply
                    pipeline.open()
                await self._compute.run(self.runner.apply, ops)
                await pipeline.send(pipeline.frame(ops))
                self._keep(ops)
                begun_at = now()
            elif self._compute.waiting:
                return
            elif guess := scheduler.guess(whole=True):
                begun_at = await self._send(guess, begun_at)
            elif await self._guessing.guess(self._compute, scheduler):
                continue
            elif guess := scheduler.guess():
                begun_at = await self._send(guess, max(begun_at, self._guessing.drew_at))
            else:
                return

    async def _send(self, step: Step, begun_at: float) -> float:
        """Send a step, for which this stage is free since `begun_at`. Returns the time since when it is free for the next one."""
        frame = self._pipeline.frame(step=step, every=self._guessing.wants_all(step, self._scheduler))
        if self._has_one_stage:
            begun_at = await self._run_whole(step, frame, begun_at)
            self._keep(step.ops)
            return begun_at
        self._pipeline.open()
        # The caches here change in the order of jobs, those of other stages in the order of `send`. Both are the same for
        # a lane, as nothing else is awaited between the choice of a step, its job and `send`; nor in `_finish`.
        try:
            frame = await self._compute.run(self.runner.begin, frame, step.tokens, step.seen)
        except PippinError as error:
            self._fail_step(step, error)
        else:
            await self._pipeline.send(frame, step, begun_at)
            self._keep(step.ops)
        return now()

    def _keep(self, ops: Sequence[CacheOp]) -> None:
        """These operations have been applied here: begin to store what they keep."""
        if self._stored:
            self._stored.keep(self.runner.kv, self.ring.model, ops)

    async def _run_whole(self, step: Step, frame: Frame, begun_at: float) -> float:
        """Run a step of a ring of one stage, and the lane's next ones until something else is to be done. Each lands while
        the next one is computed. Returns when the last one's results came.
        """
        self._wake.clear()  # whatever it was set for, the next step is chosen after these

        def go_on() -> bool:
            return not (self._wake.is_set() or self._compute.waiting)

        told = self._guessing.follows(step, self._scheduler)
        asked = step.draws(), step.chunk_requests(), step.ahead, go_on
        work = self.runner.run(frame, step.tokens, *asked, told=told, seen=step.seen)
        try:
            async for verdict in self._compute.iterate(work):
                begun_at, before = now(), begun_at
                landed, step = step, self._land(step, verdict, begun_at - before) or step
                hidden, every = verdict.hidden, frame.every
                self._guessing.observe(self._compute, landed, hidden, verdict, self._scheduler, every=every)
                if step.ahead and self._scheduler.has_guesses(step):
                    self._wake.set()
        except PippinError as error:
            self._fail_step(step, error)
        return begun_at

    # --- results back -----------------------------------------------------------------------------------------------

    async def serve_link(self, first: Frame, frames: AsyncIterator[Frame]) -> None:
        """Serve the link from the last stage until it ends. Its end does not end the ring here: that end comes round to the
        link to the next stage.
        """
        try:
            await self._receive(first)
            async for frame in frames:
                await self._receive(frame)
            await self._finished()
        finally:
            if self._finishing:
                self._finishing.cancel()

    async def _receive(self, frame: Frame) -> None:
        # While the lane's last step is finished, this one counts as in flight: else a guess would go before its job.
        if frame.failure or frame.lane is None or self._scheduler.flight.is_landing(frame.lane):
            await self._finished()
        sent = self._pipeline.receive(frame)
        step = sent.step if sent else None
        if frame.failure:
            error = error_from(frame.failure.code, frame.failure.message, hint=frame.failure.hint)
            self._fail_step(step, error)
        elif sent and step:
            present = now()
            # Seconds since the step had the ring to itself: this is how long it delayed the steps behind it.
            seconds, self._landed_at = present - max(sent.begun_at, self._landed_at), present
            following = self._scheduler.returned(step, seconds)
            if following is None:
                self._wake.set()
                return
            job = None
            if step.evaluations:
                job = self._compute.queue(self.runner.evaluate, frame, step.chunk_requests())
            elif step.samples:
                job = self._compute.queue(self.runner.finish, frame, step.draws(), following)
            # The job waits for that of another lane, so that no thread waits while that one's tokens are delivered.
            before, finish = self._finishing, self._finish(step, frame, job, seconds, present)
            self._finishing = asyncio.create_task(finish, name=f"step of {self.ring.id}")
            if before:
                await before
        elif sent and sent.restore:
            self._asking.answered(sent.restore, frame.restore)
        elif sent:
            self._begin_with(frame.held)

    async def _finished(self) -> None:
        """Wait until the results of all steps that came back are delivered."""
        if self._finishing:
            await self._finishing

    async def _finish(
        self, step: Step, frame: Frame, job: asyncio.Future[Verdict] | None, seconds: float, returned_at: float
    ) -> None:
        """Deliver the results of a step, and send the lane's next one if the job has begun it.

        Root of a task: any error ends the ring, as no step would follow, and nobody would notice.
        """
        try:
            verdict = await job if job else Verdict()
            if self._ended:
                return
            self._wake.set()  # first, so that the next step is on its way before the tokens are made text and sent
            next_step = self._land(step, verdict, seconds)
            hidden, every = frame.tensors, frame.every
            self._guessing.observe(self._compute, step, hidden, verdict, self._scheduler, every=every)
            if next_step and verdict.begun:
                await self._pipeline.send(verdict.begun, next_step, returned_at)
        except PippinError as error:
            self._fail_step(step, error)
        except Exception as error:
            log.exception("a step's results could not be delivered")
            self.end(as_pippin_error(error))

    def _land(self, step: Step, verdict: Verdict, seconds: float) -> Step | None:
        if step.samples:
            self._sampled_at += [now() for slot, _ in step.pairs(verdict.results) if not slot.gone]
        return self._scheduler.landed(step, verdict, seconds)

    def _fail_step(self, step: Step | None, error: PippinError) -> None:
        """Fail the step's sessions, unless a device did: no request is to blame for that. The stages may have come to
        differ, so the ring ends for all others, too, which go on with the next one.
        """
        is_needed = step and self._scheduler.flight.is_certain(step) and not isinstance(error, DeviceFailed)
        for slot in step.rows if step and is_needed else ():
            if not slot.gone:
                self._admission.fail(slot.session, error)
        self.end(error)

    # --- KV of earlier rings ----------------------------------------------------------------------------------------

    def _begin_with(self, held: tuple[Held, ...]) -> None:
        """Begin with the KV that all stages have. No step is in flight."""
        if held:
            tokens = sum(each.tokens for each in held)
            log.info("%s goes on with the KV of %d tokens, of %d sequences", self.ring.model, tokens, len(held))
        self._admission.inherit(self._leftover, held)
        self._leftover, self._held = {}, ()
        self._wake.set()

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self, reason: PippinError) -> None:
        """End the ring: it lost a frame, a link or a device, or its stages may differ. Its requests go on with the next
        ring.
        """
        if not self._ended:
            fence = self.ring.fence
            log.warning("placement %d.%d: the ring of %s ended: %s", fence.term, fence.epoch, self.ring.model, reason)
            chunk = self._admission.prompt_chunk
            self.give_up(RingLost(f"The ring ended: {reason.message}", hint=reason.hint))
            self._on_ended(reason, chunk)

    async def _watch(self) -> None:
        """End the ring when a step takes too long. It polls: a timer for each step would burden the token path."""
        while True:
            self._scheduler.flight.wire_is_slow = self._guessing.is_wire_slow()
            await asyncio.sleep(WATCH_S)
            waited_s, limit = self._pipeline.waited_s, self._admission.limits.step_timeout_s
            if waited_s > limit:
                told = f"Nothing came back from the other stages for {waited_s:.0f} s, --step-timeout being {limit:g}"
                hint = "Look at `cluster status` for a node that hangs; if all are only slow, raise --step-timeout on each."
                self.end(RingLost(f"{told}: {self._pipeline.awaited}.", hint=hint))
