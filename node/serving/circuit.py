"""The way round a ring as its driver has it: frames leave in the order of their numbers, and come back in it."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from node.core.clock import now
from node.core.errors import BadRequest, PippinError, StaleFence
from node.core.frames import CacheOp, Frame, Held
from node.core.types import Ring
from node.rpc.link import Link
from node.serving.onward import Onward
from node.serving.step import Step


@dataclass(frozen=True, slots=True)
class InFlight:
    step: Step | None
    """None for the question what the stages still have."""
    seq: int
    begun_at: float


def run_numbers(incarnation: int) -> Iterator[int]:
    """For all runs of a node's process: each above those before, and above those of the node's earlier processes.

    No clock is asked, as it may be set back. `incarnation` rises with each start of the node.
    """
    return itertools.count(incarnation << 32)


class Circuit:
    """`on_broken` is called when the link to the next stage breaks, unless it was cut."""

    def __init__(
        self, ring: Ring, onward: Onward | None, on_broken: Callable[[PippinError], None], runs: Iterator[int]
    ) -> None:
        """`onward` is None when the ring is this node alone. `runs`: see `run_numbers`."""
        self._ring = ring
        self._onward = onward
        self._on_broken = on_broken
        self._link: Link | None = None
        self._in_flight: deque[InFlight] = deque()
        self._sending = asyncio.Lock()
        self._runs = runs
        self._run = self._first = next(runs)
        self._seq = 0

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
        return Frame(self._ring.id, self._ring.fence, self._run, 0, ops)

    def question(self, held: tuple[Held, ...]) -> Frame:
        """What the stages still have of this, as the first frame of a run."""
        return replace(self.frame(), held=held, since=self._first)

    def open(self) -> None:
        """Make sure that there is a link. Raises PeerUnavailable when no address of the next stage is known."""
        if self._onward and not self._link:
            self._link = self._onward.open(self._on_broken)

    async def send(self, frame: Frame, step: Step | None = None, begun_at: float = 0.0) -> None:
        """Number a frame and send it, unless the circuit was cut since it was made: then all is begun anew.

        Raises PeerUnavailable.
        """
        async with self._sending:
            if not self._link or frame.run != self._run:
                return
            frame = replace(frame, seq=self._seq)
            self._seq += 1
            if step or frame.held:
                self._in_flight.append(InFlight(step, frame.seq, begun_at or now()))
            await self._link.send(frame)

    # --- back -------------------------------------------------------------------------------------------------------

    def is_current(self, frame: Frame) -> bool:
        """False for a leftover from before a cut. Raises StaleFence for a frame of another placement's ring."""
        if frame.fence != self._ring.fence:
            raise StaleFence(f"A frame of {frame.fence} came to ring {self._ring.id}, of {self._ring.fence}.")
        return self._link is not None and frame.run == self._run

    def due(self, frame: Frame) -> InFlight:
        """What the frame is the answer to. Raises BadRequest, which ends the link, when another one is due."""
        due = self._in_flight[0] if self._in_flight else None
        if due is None or (due.seq, due.step and due.step.lane) != (frame.seq, frame.lane):
            raise BadRequest(f"Frame {frame.seq} of lane {frame.lane} came back when another one was due.")
        return self._in_flight.popleft()

    # --- breaking ---------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Close the link and forget what is on its way."""
        if self._link:
            self._link.close()
            self._link = None
        self._in_flight.clear()

    def renew(self) -> None:
        """A new run, which voids all frames of the one that was cut."""
        self._run = next(self._runs)
        self._seq = 0
