"""The first stage of a ring: takes requests, sends steps round, samples what comes back, and emits tokens."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from node.core.clock import now
from node.core.errors import PippinError, RingLost, as_pippin_error, error_from
from node.core.evaluation import Findings, Question
from node.core.frames import CacheOp, Frame, Held
from node.core.types import Ring, RingLoad
from node.engine.compute import Compute
from node.engine.runner import Draw, Runner
from node.engine.sampling import Sampled
from node.ring.limits import Limits
from node.ring.onward import Onward
from node.ring.pipeline import Circuit
from node.ring.prompts import GRID
from node.ring.rate import Rate
from node.ring.scheduler import Scheduler
from node.ring.sessions import Sessions
from node.ring.step import Step
from node.text.grammars import Grammars

log = logging.getLogger(__name__)

WATCH_S = 1.0


class Driver:
    """Runs one ring, once: whatever breaks ends it, and the head makes another. `run` is its task; `sessions` is for gateways."""

    def __init__(
        self,
        ring: Ring,
        limits: Limits,
        compute: Compute,
        runner: Runner,
        onward: Onward | None,
        on_ended: Callable[[PippinError], None],
        *,
        step_timeout_s: float,
        numbers: Iterator[int],
        left: Mapping[int, tuple[int, ...]],
        grammars: Grammars,
    ) -> None:
        """`on_ended` is told why, once, if the ring ends by itself. `step_timeout_s`: a step that has not come round by then
        is lost. `numbers`: see node.ring.scheduler.sequence_numbers. `left`: the tokens of which a ring of the same
        layers had KV, by their numbers.
        """
        self._ring = ring
        self._on_ended = on_ended
        self._step_timeout = step_timeout_s
        self._compute = compute
        self._runner = runner
        self._circuit = Circuit(ring, onward, self._end)
        self._scheduler = Scheduler(
            limits,
            numbers,
            stages=len(ring.stages),
            batchable=runner.batchable,
            pads=runner.pads,
            trimmable=runner.trimmable,
            grid=GRID if runner.chunked else 0,
        )
        self._wake = asyncio.Event()
        self.sessions = Sessions(runner, self._scheduler, self._wake, grammars)
        self._landed_at = 0.0
        self._left = left
        self._held: tuple[Held, ...] = ()
        """What this stage has of it. The others are asked for theirs before anything else."""
        self._asking = False
        self._rate = Rate()

    # --- what others see --------------------------------------------------------------------------------------------

    def load(self) -> RingLoad:
        scheduler = self._scheduler
        return RingLoad(self._ring.id, scheduler.running, scheduler.queued, self._rate.per_second(now()))

    @property
    def kv_bytes(self) -> int:
        return self._runner.kv_bytes

    def give_up(self, reason: PippinError) -> None:
        """End all requests with `reason`, and the links."""
        if not self._circuit.is_cut:
            self._left = {**self._left, **self._scheduler.sequences()}
            self._circuit.cut()
            self.sessions.close(reason)

    async def close(self, reason: PippinError, *, keep: bool) -> Mapping[int, tuple[int, ...]]:
        """Give up, and `keep` the KV for the next ring of these stages, or free it. Tells the tokens of what is kept."""
        self.give_up(reason)
        await self._compute.run(self._runner.leave if keep else self._runner.reset)
        return self._left if keep else {}

    # --- the loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the ring ends."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(), name=f"watch of {self._ring.id}")
            await self._drive()
            watching.cancel()

    async def _drive(self) -> None:
        """Send steps as long as there is one and the ring has room for it."""
        try:
            if not self.sessions.closed:
                await self._inherit()
            while not self.sessions.closed:
                await self._wake.wait()
                self._wake.clear()
                await self._send_all()
        except Exception as error:
            if not isinstance(error, PippinError):
                log.exception("a step failed")
            self._end(as_pippin_error(error))

    async def _send_all(self) -> None:
        while not (self.sessions.closed or self._asking or self._circuit.full):
            if self._held and self._scheduler.queued:
                await self._ask()
            elif step := self._scheduler.next():
                await self._send(step)
            elif ops := self._scheduler.take_ops():
                await self._send_ops(ops)
            else:
                return

    async def _send(self, step: Step) -> None:
        frame = replace(
            self._circuit.frame(step.ops),
            lane=step.lane,
            sampled=step.samples,
            every=bool(step.readings),
            lengths=step.lengths,
        )
        begun_at = now()
        if self._circuit.alone:
            await self._run_alone(step, frame, begun_at)
            return
        self._circuit.open()
        try:
            frame = await self._compute.run(self._runner.begin, frame, step.tokens)
        except PippinError as error:
            self._fail_step(step, error)
        else:
            await self._circuit.send(frame, step, begun_at)

    async def _run_alone(self, step: Step, frame: Frame, begun_at: float) -> None:
        results: Sequence[Sampled | Findings | PippinError]
        try:
            if step.readings:
                results = await self._compute.run(self._runner.answer_alone, frame, step.tokens, _questions(step))
            else:
                results = await self._compute.run(self._runner.run_alone, frame, step.tokens, _draws(step))
        except PippinError as error:
            self._fail_step(step, error)
        else:
            self._landed(step, results, now() - begun_at)

    async def _send_ops(self, ops: tuple[CacheOp, ...]) -> None:
        frame = self._circuit.frame(ops)
        await self._compute.run(self._runner.apply, ops)
        await self._circuit.send(frame)

    # --- what comes back --------------------------------------------------------------------------------------------

    async def frames(self, first: Frame, frames: AsyncIterator[Frame]) -> None:
        """Serve the link from the last stage until it ends."""
        await self._take(first)
        async for frame in frames:
            await self._take(frame)

    async def _take(self, frame: Frame) -> None:
        self._circuit.check(frame)
        due = self._circuit.due(frame) if self._asking or frame.lane is not None else None
        if frame.failure:
            error = error_from(frame.failure.code, frame.failure.message, hint=frame.failure.hint)
            self._fail_step(due.step if due else None, error)
        elif due and due.step:
            await self._finish_step(due.step, due.begun_at, frame)
        elif due:
            self._restore(frame.held)

    async def _finish_step(self, step: Step, begun_at: float, frame: Frame) -> None:
        # From when it had the ring to itself: so long it held up what came behind it.
        present = now()
        seconds, self._landed_at = present - max(begun_at, self._landed_at), present
        onward = None
        results: Sequence[Sampled | Findings | PippinError] = ()
        try:
            if step.readings:
                results = await self._compute.run(self._runner.answer, frame, _questions(step))
            elif draws := _draws(step):
                go_on = self._scheduler.goes_on(step)
                results, onward = await self._compute.run(self._runner.finish, frame, draws, go_on=go_on)
        except PippinError as error:
            self._fail_step(step, error)
            return
        if self.sessions.closed:
            return
        self._landed(step, results, seconds)
        if onward:
            try:
                await self._circuit.send(onward, self._scheduler.go_on(step))
            except PippinError as error:
                self._end(error)

    def _landed(self, step: Step, results: Sequence[Sampled | Findings | PippinError], seconds: float) -> None:
        self._wake.set()  # first, so that the next step is on its way before the tokens are made text and sent
        landed_at = now()
        for slot, result in zip(step.rows, results, strict=bool(results)):
            if slot.gone:
                continue
            if isinstance(result, Sampled):
                self._rate.count(landed_at)
            self.sessions.take(slot, result)
        self._scheduler.landed(step, seconds)

    def _fail_step(self, step: Step | None, error: PippinError) -> None:
        """Its sessions fail. The stages may have come to differ, so the ring ends for all others, too."""
        for slot in step.rows if step else ():
            if not slot.gone:
                self.sessions.fail(slot.session, error)
        self._end(error)

    # --- what a ring before this one left, and the end --------------------------------------------------------------

    async def _inherit(self) -> None:
        """Without anything of it here, whatever the other stages have is of no use."""
        left = tuple(Held(number, len(tokens)) for number, tokens in self._left.items())
        self._held = await self._compute.run(self._runner.inherit, left)
        if not self.sessions.closed and (self._circuit.alone or not self._held):
            self._restore(self._held)

    async def _ask(self) -> None:
        """Find out what the other stages still have of what this one has."""
        self._asking = True
        self._circuit.open()
        await self._circuit.send(replace(self._circuit.frame(), held=self._held))

    def _restore(self, held: tuple[Held, ...]) -> None:
        """All stages have this. Nothing else is under way."""
        if held:
            tokens = sum(each.tokens for each in held)
            log.info("ring %s begins with the KV of %d tokens, of %d sequences", self._ring.id, tokens, len(held))
        self._scheduler.restore(self._left, held)
        self._left, self._held, self._asking = {}, (), False
        self._wake.set()

    def _end(self, reason: PippinError) -> None:
        """The ring lost frames or a link, or its stages may differ. Its requests go on with the next one."""
        if not self.sessions.closed:
            log.warning("ring %s ended: %s", self._ring.id, reason)
            self.give_up(RingLost(f"The ring ended: {reason.message}"))
            self._on_ended(reason)

    async def _watch(self) -> None:
        """End the ring when a step does not come round. A task of its own: timers have no place on the token path."""
        while True:
            await asyncio.sleep(WATCH_S)
            if self._circuit.waited_s > self._step_timeout:
                self._end(RingLost(f"A step did not come round in {self._step_timeout:.0f} s."))


def _draws(step: Step) -> list[Draw]:
    """One for each row, of a session that may be gone by now; none when the step yields no tokens."""
    return [slot.session.draw() for slot in step.rows] if step.samples else []


def _questions(step: Step) -> list[Question]:
    """One for each row of a step of texts that are evaluated."""
    return [reading.question(len(tokens)) for reading, tokens in zip(step.readings, step.tokens, strict=True)]
