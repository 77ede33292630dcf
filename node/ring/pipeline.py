"""The frames that a driver has sent round its ring, and waits for."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from node.core.clock import now
from node.core.errors import BadRequest, PippinError, StaleFence
from node.core.frames import CacheOp, Frame, Held, Restore
from node.core.rings import Ring
from node.ring.flight import Step
from node.rpc.link import FrameLink

OpenLink = Callable[[Callable[[PippinError], None]], FrameLink]
"""Opens the link to the next stage, which calls back with the reason when it breaks. Raises PeerUnavailable when no address
of that node is known.
"""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A frame that the driver waits for."""

    step: Step | None
    """None for the ring's first frame, which asks the stages for KV of earlier rings, and for one that asks for KV on disks."""
    seq: int
    begun_at: float
    """When this stage began its part of the step, perhaps in the job of the one before it."""
    sent_at: float
    restore: Restore | None = None
    """What the other stages are asked to take from disks."""


class Pipeline:
    """The driver's frames: they leave in the order of their numbers and come back in the same order."""

    def __init__(self, ring: Ring, open_link: OpenLink | None, on_broken: Callable[[PippinError], None]) -> None:
        """`open_link`: None when the ring has one stage. `on_broken` is called when the link breaks before `close`."""
        self._ring = ring
        self._open_link = open_link
        self._on_broken = on_broken
        self._link: FrameLink | None = None
        self._in_flight: deque[InFlight] = deque()
        self._sending = asyncio.Lock()
        self._seq = 0
        self._returned_at = 0.0
        """When the last frame came back."""

    @property
    def asking(self) -> bool:
        """The ring's first frame is in flight."""
        return bool(self._in_flight) and self._in_flight[0].step is None and not self._in_flight[0].restore

    @property
    def waited_s(self) -> float:
        """Seconds since the oldest step in flight was sent, or a frame came back: while they do, stages are slow, but don't hang."""
        return now() - max(self._in_flight[0].sent_at, self._returned_at) if self._in_flight else 0.0

    @property
    def awaited(self) -> str:
        """What is in flight, for people."""
        step = self._in_flight[0].step
        what = f"a step of {max(1, sum(map(len, step.tokens)))} tokens" if step else "a question about stored KV"
        return f"{what}, the oldest of {len(self._in_flight)} frames in flight"

    # --- out --------------------------------------------------------------------------------------------------------

    def frame(
        self,
        ops: tuple[CacheOp, ...] = (),
        step: Step | None = None,
        held: tuple[Held, ...] = (),
        restore: Restore | None = None,
        *,
        every: bool = False,
    ) -> Frame:
        """A frame without tensors, which the runner adds, and without its number, which `send` gives it. `every`: see Frame."""
        if step is None:
            return Frame(self._ring.id, self._ring.fence, 0, ops, held=held, restore=restore)
        return Frame(
            self._ring.id,
            self._ring.fence,
            0,
            step.ops,
            step.lane,
            sampled=step.samples,
            every=every or bool(step.evaluations),
            lengths=step.lengths,
            shifts=step.shifts,
            spans=step.spans,
            unverified=step.unverified,
        )

    def open(self) -> None:
        """Open the link to the next stage if there is none. Raises PeerUnavailable when its address is not known."""
        if self._open_link and not self._link:
            self._link = self._open_link(self._on_broken)

    async def send(self, frame: Frame, step: Step | None = None, begun_at: float = 0.0) -> None:
        """Number a frame and send it; without a link, do nothing.

        Raises PeerUnavailable.
        """
        async with self._sending:
            if not self._link:
                return
            frame = replace(frame, seq=self._seq)
            self._seq += 1
            if step or frame.held or frame.restore:
                sent_at = now()
                self._in_flight.append(InFlight(step, frame.seq, begun_at or sent_at, sent_at, frame.restore))
            await self._link.send(frame)

    # --- back -------------------------------------------------------------------------------------------------------

    def receive(self, frame: Frame) -> InFlight | None:
        """A frame came back. Returns the one in flight that it answers, or None for operations alone.

        Raises StaleFence when the frame is of another ring or the link is not open, BadRequest when another one is due.
        """
        if frame.fence != self._ring.fence:
            raise StaleFence(f"A frame of {frame.fence} came to ring {self._ring.id}, of {self._ring.fence}.")
        if not self._link:
            raise StaleFence(f"A frame came to ring {self._ring.id}, which has ended or sent none.")
        sent = self._in_flight[0] if self._in_flight else None
        if frame.lane is None and not (sent and sent.seq == frame.seq):
            return None
        if sent is None or (sent.seq, sent.step and sent.step.lane) != (frame.seq, frame.lane):
            raise BadRequest(f"Frame {frame.seq} of lane {frame.lane} came back when another one was due.")
        self._returned_at = now()
        return self._in_flight.popleft()

    def close(self) -> None:
        """Close the link for good, and forget the steps in flight."""
        self._open_link = None
        if self._link:
            self._link.close()
            self._link = None
        self._in_flight.clear()
