"""A stage after the driver: gets frames, runs its layers, and sends the frames on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

from node.core.errors import BadRequest, PippinError, RingLost, StaleFence, as_pippin_error
from node.core.frames import Failure, Frame
from node.core.rings import Ring
from node.engine.compute import Compute
from node.engine.runner import Runner
from node.ring.pipeline import OpenLink
from node.ring.stored_kv import StoredKv
from node.ring.taking import Taking
from node.rpc.link import FrameLink

log = logging.getLogger(__name__)

MAX_JOBS = 3
"""Maximum frames in work: one is computed, one waits for the compute thread, and one is sent on."""


class Worker:
    """Runs one ring, once. It serves one link from the stage before; when the link ends, so does the ring."""

    def __init__(
        self,
        ring: Ring,
        compute: Compute,
        runner: Runner,
        open_link: OpenLink,
        on_ended: Callable[[PippinError, int], None],
        *,
        is_last: bool,
        stored: StoredKv | None = None,
    ) -> None:
        """`on_ended`: see Driver; a worker knows of no prompts. `is_last`: of the ring's stages. `stored`: None if no KV is kept
        on the disk.
        """
        self.ring = ring
        self._is_last = is_last
        self._stored = stored
        self._taking = Taking(stored, runner.kv)
        self._compute = compute
        self.runner = runner
        self._open_link = open_link
        self._on_ended = on_ended
        self._seq = 0
        self._link: FrameLink | None = None
        self._relayed: asyncio.Queue[tuple[Frame, asyncio.Future[Frame]]] = asyncio.Queue()
        """Frames, and their jobs."""
        self._may_queue = asyncio.Semaphore(MAX_JOBS)
        self._upstream: asyncio.Task[None] | None = None
        """Serves the link from the stage before."""
        self._ended: PippinError | None = None
        """Why this stage accepts no frames."""

    @property
    def kv_bytes(self) -> int:
        return self.runner.kv.nbytes

    async def serve_link(self, first: Frame, frames: AsyncIterator[Frame]) -> None:
        """Serve the link from the stage before until the link or the ring ends."""
        if first.fence != self.ring.fence:
            raise StaleFence(f"A frame of {first.fence} came to ring {self.ring.id}, which is at {self.ring.fence}.")
        if self._ended:
            raise self._ended
        if self._upstream:
            raise StaleFence(f"Ring {self.ring.id} already has a link from the stage before.")
        self._upstream = asyncio.current_task()
        sending = asyncio.create_task(self._send_relayed(), name=f"frames of {self.ring.id}")
        try:
            held = await self._compute.run(self.runner.kv.inherit, first.held)  # the frame goes on with what is here
            self._link = self._open_link(self.end)
            await self._queue(replace(first, held=held))
            async for frame in frames:
                await self._queue(frame)
            await self._relayed.join()
        except asyncio.CancelledError:
            # When `give_up` has cancelled this task, answer with the reason, so that it reaches the driver.
            if self._ended:
                raise self._ended from None
            raise
        except PippinError as error:
            self.end(error)
            raise
        finally:
            self.end(RingLost("The link from the stage before ended."))
            sending.cancel()
            while not self._relayed.empty():
                self._relayed.get_nowait()[1].cancel()

    def give_up(self, reason: PippinError) -> None:
        """End the links: the one from the stage before, and later ones, with `reason`."""
        if self._ended:
            return  # cancelled a second time, the link before would end without an answer, and its sender would wait
        self._ended = reason
        self._taking.end()
        if self._link:
            self._link.close()
        if self._upstream and self._upstream is not asyncio.current_task():
            self._upstream.cancel()

    async def close(self, reason: PippinError, *, keep: bool) -> Mapping[int, tuple[int, ...]]:
        """Give up, and `keep` the KV for the next ring of these stages, or free it. Only a driver returns tokens."""
        self.give_up(reason)
        await self._compute.run(self.runner.kv.leave if keep else self.runner.kv.free)
        return {}

    def end(self, reason: PippinError) -> None:
        """End the ring, and report it. Its requests go on with the next one."""
        if not self._ended:
            self.give_up(reason)
            self._on_ended(reason, 0)

    async def _queue(self, frame: Frame) -> None:
        """Queue the frame's job behind the one that runs, so that no thread waits while that one's frame is sent."""
        if self._ended:
            raise self._ended
        if frame.fence != self.ring.fence or frame.seq != self._seq:
            raise BadRequest(f"Frame {frame.seq} of {frame.fence} came when {self._seq} of {self.ring.fence} was due.")
        self._seq += 1
        await self._may_queue.acquire()
        self._taking.forget(frame.ops)
        job = self._compute.queue(self.runner.relay, frame, last=self._is_last)
        self._relayed.put_nowait((frame, job))
        if self._stored:
            self._stored.keep(self.runner.kv, self.ring.model, frame.ops)

    async def _send_relayed(self) -> None:
        """Send the frames on, in the order in which they came."""
        try:
            while True:
                frame, job = await self._relayed.get()
                assert self._link
                try:
                    frame = await job
                    if frame.restore:
                        frame = replace(frame, restore=self._taking.told(frame.restore))
                except PippinError as error:
                    log.error("ring %s: frame %d failed: %s", self.ring.id, frame.seq, error)
                    failure = Failure(error.code, error.message, error.hint)
                    frame = Frame(frame.ring, frame.fence, frame.seq, lane=frame.lane, ops=frame.ops, failure=failure)
                await self._link.send(frame)
                self._may_queue.release()
                self._relayed.task_done()
        except Exception as error:
            if not isinstance(error, PippinError):
                log.exception("a frame could not be sent on")
            self.end(as_pippin_error(error))
