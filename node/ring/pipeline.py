"""The way round a ring as its driver has it: frames leave in the order of their numbers, and come back in it."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from node.core.clock import now
from node.core.errors import BadRequest, PippinError, StaleFence
from node.core.frames import CacheOp, Frame
from node.core.types import Ring
from node.ring.onward import Onward
from node.ring.step import Step
from node.rpc.link import Link


@dataclass(frozen=True, slots=True)
class InFlight:
    step: Step | None
    """None for the ring's first frame, which asks what the stages have of earlier rings."""
    seq: int
    begun_at: float


class Circuit:
    """`on_broken` is called when the link to the next stage breaks, unless it was cut."""

    def __init__(self, ring: Ring, onward: Onward | None, on_broken: Callable[[PippinError], None]) -> None:
        """`onward` is None when the ring is this node alone."""
        self._ring = ring
        self._onward = onward
        self._on_broken = on_broken
        self._link: Link | None = None
        self._in_flight: deque[InFlight] = deque()
        self._sending = asyncio.Lock()
        self._seq = 0
        self.is_cut = False
        """For good."""

    @property
    def alone(self) -> bool:
        return self._onward is None

    @property
    def full(self) -> bool:
        """As many steps are on their way as there are stages to do them."""
        return len(self._in_flight) >= len(self._ring.stages)

    @property
    def waited_s(self) -> float:
        """How long the oldest step has been on its way."""
        return now() - self._in_flight[0].begun_at if self._in_flight else 0.0

    # --- out --------------------------------------------------------------------------------------------------------

    def frame(self, ops: tuple[CacheOp, ...] = ()) -> Frame:
        """Without a number yet: that is given when it is sent."""
        return Frame(self._ring.id, self._ring.fence, 0, ops)

    def open(self) -> None:
        """Make sure that there is a link. Raises PeerUnavailable when no address of the next stage is known."""
        if self._onward and not self._link and not self.is_cut:
            self._link = self._onward.open(self._on_broken)

    async def send(self, frame: Frame, step: Step | None = None, begun_at: float = 0.0) -> None:
        """Number a frame and send it, unless the circuit is cut.

        Raises PeerUnavailable.
        """
        async with self._sending:
            if not self._link:
                return
            frame = replace(frame, seq=self._seq)
            self._seq += 1
            if step or frame.held:
                self._in_flight.append(InFlight(step, frame.seq, begun_at or now()))
            await self._link.send(frame)

    # --- back -------------------------------------------------------------------------------------------------------

    def check(self, frame: Frame) -> None:
        """Raises StaleFence for a frame that is not of this ring, or comes after its end."""
        if frame.fence != self._ring.fence:
            raise StaleFence(f"A frame of {frame.fence} came to ring {self._ring.id}, of {self._ring.fence}.")
        if not self._link:
            raise StaleFence(f"A frame came to ring {self._ring.id}, which has ended or sent none.")

    def due(self, frame: Frame) -> InFlight:
        """What the frame is the answer to. Raises BadRequest, which ends the link, when another one is due."""
        due = self._in_flight[0] if self._in_flight else None
        if due is None or (due.seq, due.step and due.step.lane) != (frame.seq, frame.lane):
            raise BadRequest(f"Frame {frame.seq} of lane {frame.lane} came back when another one was due.")
        return self._in_flight.popleft()

    # --- the end ----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Close the link for good, and forget what is on its way."""
        self.is_cut = True
        if self._link:
            self._link.close()
            self._link = None
        self._in_flight.clear()
