"""Which part of which file a node takes from which peer. Pure.

Each peer is asked for one part at a time, so a quick one delivers more of them. When all parts are under way, a peer that
has nothing to do takes over the rest of a part from a peer that is much slower, or silent.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from node.core.nodes import Address

PART = 8 << 20
"""Bytes asked of a peer at once; the last part of a file is shorter."""
PATIENCE_S = 1.0
"""A part is taken over if it would take its peer so much longer than twice the time of the other."""
_FIRST = 1 << 20
"""Bytes that are taken as delivered before the first ones come."""


@dataclass(slots=True, eq=False)
class Part:
    file: str
    at: int
    """Next byte that is lacking."""
    end: int


@dataclass(slots=True)
class _Job:
    part: Part
    since: float
    came: int = 0
    """Bytes since then."""

    def rest_s(self, now: float) -> float:
        """Expected seconds until the part is complete, at the rate since the peer was asked; silence lowers it."""
        return (now - self.since) * (self.part.end - self.part.at) / max(self.came, _FIRST)


@dataclass(slots=True)
class _Speed:
    seconds: float = 0.0
    came: int = 0


class Parts:
    """The parts that are lacking of some files, and the peers that are asked for them."""

    def __init__(self) -> None:
        self._holders: dict[str, set[Address]] = {}
        self._free: dict[str, deque[Part]] = {}
        self._jobs: dict[Address, _Job] = {}
        self._speeds: dict[Address, _Speed] = {}

    def add(self, file: str, parts: Iterable[Part], holders: Iterable[Address]) -> None:
        """Files are taken in the order in which they are added."""
        self._free[file], self._holders[file] = deque(parts), set(holders)

    def take(self, peer: Address, now: float) -> Part | None:
        """A part that the peer is to deliver, from its `at` on: the next one that nobody delivers, else one that
        another peer delivers too slowly. None if it has nothing to do at present.
        """
        part = self._next(peer) or self._slowest(peer, now)
        if part:
            self._jobs[peer] = _Job(part, now)
        return part

    def _next(self, peer: Address) -> Part | None:
        return next((free.popleft() for file, free in self._free.items() if free and peer in self._holders[file]), None)

    def _slowest(self, peer: Address, now: float) -> Part | None:
        """Take the part that would take longest away from its peer, if this one is quicker by far."""
        jobs = {other: job for other, job in self._jobs.items() if peer in self._holders[job.part.file]}
        if not jobs:
            return None
        other = max(jobs, key=lambda other: jobs[other].rest_s(now))
        part, own = jobs[other].part, self._speeds.get(peer, _Speed())
        own_s = (part.end - part.at) * own.seconds / max(own.came, _FIRST)
        if jobs[other].rest_s(now) <= PATIENCE_S + 2 * own_s:
            return None
        self._record(other, self._jobs.pop(other), now)
        return part

    def is_with(self, peer: Address, part: Part) -> bool:
        """Whether the part is still to come from the peer."""
        job = self._jobs.get(peer)
        return job is not None and job.part is part

    def note(self, peer: Address, count: int) -> None:
        """Note bytes that the peer delivered of its part."""
        job = self._jobs[peer]
        job.part.at += count
        job.came += count

    def end(self, peer: Address, now: float) -> None:
        """The peer delivers no more of its part. What is lacking of it is free again, before all others of its file."""
        if job := self._jobs.pop(peer, None):
            self._record(peer, job, now)
            if job.part.at < job.part.end:
                self._free[job.part.file].appendleft(job.part)

    def _record(self, peer: Address, job: _Job, now: float) -> None:
        speed = self._speeds.setdefault(peer, _Speed())
        speed.seconds, speed.came = speed.seconds + now - job.since, speed.came + job.came

    def has(self, file: str) -> bool:
        return file in self._holders

    def is_complete(self, file: str) -> bool:
        return not self._free[file] and all(job.part.file != file for job in self._jobs.values())

    def remove(self, file: str) -> None:
        """Nothing more of the file is wanted. All of its parts are complete."""
        del self._free[file], self._holders[file]

    def concerns(self, peer: Address) -> bool:
        """Whether the peer holds a file of which something may still be wanted."""
        return any(peer in holders for holders in self._holders.values())
