"""A stage that is not the driver: takes frames, runs its layers, forwards."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

from node.core.errors import BadRequest, PippinError, StaleFence
from node.core.frames import Failure, Frame
from node.core.types import Ring
from node.engine.compute import Compute
from node.engine.runner import Runner
from node.rpc.link import Link
from node.serving.onward import Onward

log = logging.getLogger(__name__)


class Worker:
    """Holds the KV of its layers for one ring."""

    def __init__(self, ring: Ring, compute: Compute, runner: Runner, onward: Onward) -> None:
        self._ring = ring.id
        self._fence = ring.fence
        self._last = onward.node == ring.driver
        self._compute = compute
        self._runner = runner
        self._onward = onward
        self._lock = asyncio.Lock()
        self._run = -1
        self._seq = 0
        self._recalled = -1
        """The last run at whose beginning all KV was freed that it did not name."""
        self._link: Link | None = None
        self._upstream: asyncio.Task[None] | None = None
        """Serves the link that began the run."""
        self._broken: PippinError | None = None
        self._closed: PippinError | None = None
        """Why this stage takes no frames any more."""

    @property
    def kv_bytes(self) -> int:
        return self._runner.kv_bytes

    async def frames(self, first: Frame, frames: AsyncIterator[Frame]) -> None:
        """Serve one link from the stage before until it ends or the way onward breaks."""
        try:
            await self._take(first)
            async for frame in frames:
                await self._take(frame)
        except asyncio.CancelledError:
            # Cancelled by `_onward_broke`, not by the caller: answer with the reason, so that it reaches the driver.
            if self._broken and self._upstream is asyncio.current_task():
                raise self._broken from None
            raise
        finally:
            await self._end_run()

    def give_up(self, reason: PippinError) -> None:
        """End the links: the one from the stage before with `reason`, and so those of them that come from now on."""
        self._closed = reason
        self._onward_broke(reason)
        if self._link:
            self._link.close()

    async def close(self, reason: PippinError) -> None:
        """And free the KV."""
        self.give_up(reason)
        await self._compute.run(self._runner.reset)

    async def _take(self, frame: Frame) -> None:
        async with self._lock:
            if frame.fence != self._fence:
                raise StaleFence(f"A frame of {frame.fence} came to ring {self._ring}, which is at {self._fence}.")
            if self._closed:
                raise self._closed
            if frame.run < self._run:
                # Left over from before the driver's fresh start, and nobody hears this; else the driver has to know at once.
                raise StaleFence(f"A frame of run {frame.run} came to ring {self._ring}, which is at run {self._run}.")
            due = self._seq if frame.run == self._run else 0
            if frame.seq != due:
                raise BadRequest(f"Frame {frame.seq} came when {due} was due: frames were lost.")
            if frame.run > self._run:
                frame = await self._begin(frame)
            self._seq += 1
            await self._forward(frame)

    async def _end_run(self) -> None:
        """The link is gone, and with it the run, unless a newer one has begun. The next one may still use the KV."""
        async with self._lock:
            if self._upstream is asyncio.current_task() and self._link:
                self._link.close()

    async def _begin(self, frame: Frame) -> Frame:
        """Begin a run, with the KV that is still good; the frame then tells what that is."""
        self._run, self._seq, self._broken = frame.run, 0, None
        self._upstream = asyncio.current_task()
        if self._link:
            self._link.close()
        held = frame.held if self._recalled >= frame.since else ()
        held = await self._compute.run(self._runner.recall, held)
        self._recalled = frame.run
        self._link = self._onward.open(self._onward_broke)
        return replace(frame, held=held)

    async def _forward(self, frame: Frame) -> None:
        assert self._link
        try:
            frame = await self._compute.run(self._runner.relay, frame, last=self._last)
        except PippinError as error:
            log.error("ring %s: frame %d failed: %s", self._ring, frame.seq, error)
            failure = Failure(error.code, error.message, error.hint)
            frame = Frame(
                frame.ring, frame.fence, frame.run, frame.seq, lane=frame.lane, ops=frame.ops, failure=failure
            )
        await self._link.send(frame)

    def _onward_broke(self, reason: PippinError) -> None:
        if self._broken:
            return  # cancelled once more while it ends, the link before would end without a word, and its sender wait
        self._broken = reason
        if self._upstream:
            self._upstream.cancel()
