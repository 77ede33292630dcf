"""The first stage of a ring: takes requests, sends steps round, samples what comes back, and emits tokens."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, replace

from node.core.errors import PippinError, RingLost, StaleFence, error_from
from node.core.frames import CacheOp, Drop, Frame, Open
from node.core.types import Fence, GenerateRequest, Ring, RingLoad, TokenEvent
from node.engine.compute import Compute
from node.engine.runner import Draw, Runner
from node.engine.sampling import History, Sampled
from node.rpc.link import Link
from node.serving.onward import Onward
from node.serving.rate import Rate
from node.serving.scheduler import Scheduler, Step
from node.serving.session import Session

log = logging.getLogger(__name__)

PREFILL_CHUNK = 512
"""Tokens of a prompt in one step: long enough to keep the matrix units busy, short enough not to stall the others."""
MAX_QUEUE = 64
"""Requests that may wait; more are better told to come back than left to time out."""
STEP_TIMEOUT_S = 60.0
"""A step that has not come round by then is lost: the largest chunk on the slowest machine takes a tenth of it."""
RESTART_WINDOW_S = 15.0
"""How long a broken ring tries to start again before its requests are given back to their gateways."""
RESTART_DELAY_S = 0.3


@dataclass(slots=True)
class _InFlight:
    step: Step
    sent_at: float


class Driver:
    """Runs one ring. `run` is its task; `generate` may be called by any number of gateways."""

    def __init__(self, ring: Ring, fence: Fence, compute: Compute, runner: Runner, onward: Onward | None) -> None:
        self._ring = ring
        self._fence = fence
        self._compute = compute
        self._runner = runner
        self._onward = onward  # None: the ring is this node alone
        self._scheduler = Scheduler(
            context=ring.context, max_sessions=ring.max_sessions, max_queue=MAX_QUEUE, chunk=PREFILL_CHUNK
        )
        self._wake = asyncio.Event()
        self._ops: list[CacheOp] = []
        self._in_flight: deque[_InFlight] = deque()
        self._link: Link | None = None
        self._run = 0
        self._seq = 0
        self._broken: PippinError | None = None
        self._broken_since = 0.0
        self._closed: PippinError | None = None
        self._rate = Rate()

    # --- towards gateways -------------------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yields each new token once, in order. Closing it cancels the session.

        Raises ContextExceeded, Overloaded, RingLost when the ring is replaced or cannot be restarted.
        """
        if self._closed:
            raise self._closed
        session = Session(request)
        self._scheduler.submit(session)
        self._wake.set()
        try:
            while True:
                event = await session.events.get()
                if isinstance(event, PippinError):
                    raise event
                yield event
                if event.finish:
                    return
        finally:
            self._forget(session)

    def load(self) -> RingLoad:
        scheduler = self._scheduler
        return RingLoad(self._ring.id, scheduler.running, scheduler.queued, self._rate.per_second(time.monotonic()))

    async def close(self, reason: PippinError) -> None:
        """End all requests with `reason`, free the KV and the links."""
        self._closed = reason
        for session in list(self._scheduler):
            self._fail(session, reason)
        self._wake.set()
        if self._link:
            self._link.close()
        await self._compute.run(self._runner.reset)

    # --- the loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send steps as long as there is one and the ring has room for it."""
        while not self._closed:
            try:
                async with asyncio.timeout(1.0):
                    await self._wake.wait()
            except TimeoutError:
                self._check_deadlines()
            self._wake.clear()
            if self._broken:
                await self._restart()
            try:
                await self._send_all()
            except PippinError as error:
                self._break(error)

    async def _send_all(self) -> None:
        while not self._broken and len(self._in_flight) < len(self._ring.stages):
            step = self._scheduler.next()
            if step is not None:
                await self._send(step)
            elif self._ops:
                await self._send_ops()
            else:
                return

    async def _send(self, step: Step) -> None:
        ops = (*self._take_ops(), *((Open(step.session.lane),) if step.opens else ()))
        frame = self._frame(ops, step.session.lane)
        if self._onward is None:
            await self._run_alone(step, frame)
            return
        if self._link is None:
            self._link = self._onward.open(self._break)
        link = self._link
        try:
            frame = await self._compute.run(self._runner.begin, frame, step.tokens)
        except PippinError as error:
            # The other stages have not seen the frame: let them do its operations, without the step.
            self._fail(step.session, error)
            frame = replace(frame, lane=None)
        if self._broken:
            return  # meanwhile: the session has been rewound
        if frame.lane is not None:
            self._in_flight.append(_InFlight(step, time.monotonic()))
        await link.send(frame)

    async def _run_alone(self, step: Step, frame: Frame) -> None:
        try:
            drawn = await self._compute.run(self._runner.run_alone, frame, step.tokens, _draw(step))
        except PippinError as error:
            self._fail(step.session, error)
        else:
            self._landed(step, drawn)

    async def _send_ops(self) -> None:
        frame = self._frame(self._take_ops(), None)
        await self._compute.run(self._runner.apply, frame.ops)
        if self._link:
            await self._link.send(frame)

    def _frame(self, ops: tuple[CacheOp, ...], lane: int | None) -> Frame:
        frame = Frame(self._ring.id, self._fence, self._run, self._seq, ops, lane)
        self._seq += 1
        return frame

    def _take_ops(self) -> tuple[CacheOp, ...]:
        ops, self._ops = tuple(self._ops), []
        return ops

    # --- what comes back --------------------------------------------------------------------------------------------

    @property
    def kv_bytes(self) -> int:
        return self._runner.kv_bytes

    async def frames(self, first: Frame, frames: AsyncIterator[Frame]) -> None:
        """Serve the link from the last stage until it ends."""
        await self._take(first)
        async for frame in frames:
            await self._take(frame)

    async def _take(self, frame: Frame) -> None:
        if frame.fence != self._fence:
            raise StaleFence(f"A frame of {frame.fence} came to ring {self._ring.id}, which is at {self._fence}.")
        if frame.run != self._run or self._broken:
            return  # a leftover from before the fresh start
        if frame.failure:
            self._failed(frame)
        elif frame.lane is not None:
            step = self._in_flight.popleft().step
            draw = _draw(step)
            drawn = await self._compute.run(self._runner.finish, frame, draw) if draw else None
            if frame.run == self._run and not self._broken:
                self._landed(step, drawn)
        self._broken_since = 0.0

    def _failed(self, frame: Frame) -> None:
        assert frame.failure
        error = error_from(frame.failure.code, frame.failure.message, hint=frame.failure.hint)
        if frame.lane is None:
            self._break(error)  # an operation failed: the stages may differ now
        else:
            self._fail(self._in_flight.popleft().step.session, error)
        self._wake.set()

    def _landed(self, step: Step, drawn: Sampled | None) -> None:
        session = step.session
        session.in_flight -= 1
        if drawn and not session.finished:
            event = session.accept(drawn.token)
            self._rate.count(time.monotonic())
            session.events.put_nowait(replace(event, logprob=drawn.logprob, top=drawn.top))
            if event.finish:
                self._forget(session)
        self._wake.set()

    def _fail(self, session: Session, error: PippinError) -> None:
        if not session.finished:
            session.events.put_nowait(error)
        self._forget(session)

    def _forget(self, session: Session) -> None:
        """Free its place and its KV, now: at the end, when it failed, or when its gateway hung up."""
        session.finished = True
        lane = session.lane
        if self._scheduler.remove(session):
            self._ops.append(Drop(lane))
            self._wake.set()

    # --- breaking and starting again --------------------------------------------------------------------------------

    def _break(self, reason: PippinError) -> None:
        """The ring lost frames or a link: all KV is void. Sessions keep their tokens and will be replayed."""
        if self._broken or self._closed:
            return
        log.warning("ring %s broke: %s", self._ring.id, reason)
        self._broken = reason
        self._broken_since = self._broken_since or time.monotonic()
        if self._link:
            self._link.close()
            self._link = None
        self._in_flight.clear()
        self._ops.clear()
        self._scheduler.rewind()
        self._wake.set()

    async def _restart(self) -> None:
        assert self._broken
        if time.monotonic() - self._broken_since > RESTART_WINDOW_S:
            lost = RingLost(f"The ring could not be restarted for {RESTART_WINDOW_S:.0f} s: {self._broken.message}")
            for session in list(self._scheduler):
                self._fail(session, lost)
            self._broken_since = 0.0
        await asyncio.sleep(RESTART_DELAY_S)
        self._run += 1
        self._seq = 0
        await self._compute.run(self._runner.reset)
        self._broken = None

    def _check_deadlines(self) -> None:
        if self._in_flight and time.monotonic() - self._in_flight[0].sent_at > STEP_TIMEOUT_S:
            self._break(RingLost(f"A step did not come round in {STEP_TIMEOUT_S:.0f} s."))


def _draw(step: Step) -> Draw | None:
    session = step.session
    if not step.samples:
        return None
    prompt = len(session.request.prompt)
    return Draw(session.request.sampling, session.generated, History(session.tokens[:prompt], session.tokens[prompt:]))
