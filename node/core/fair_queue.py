"""A queue that is fair among clients, and in order of arrival within each. Pure.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): each client has a count of what it was given of the shared
resource, and the client with the lowest count is next. A new client starts at the count at which the last entry was
admitted: idle time gives no credit. A ring's queue counts tokens, as in Sheng et al., "Fairness in Serving Large
Language Models" (2024); `node.core.fair_turns` counts seconds.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Generic, Protocol, TypeVar

MAX_COUNTS = 1024
"""Clients whose counts are kept while none of their entries waits."""


class Entry(Protocol):
    @property
    def client(self) -> str: ...


T = TypeVar("T", bound=Entry)


class FairQueue(Generic[T]):
    def __init__(self) -> None:
        self._returned: deque[T] = deque()
        self._lines: dict[str, deque[T]] = {}
        """By client, in the order in which the clients came; none is empty."""
        self._counts: dict[str, float] = {}
        """What a client was given, plus the start when it came; a client without a count is at the start."""
        self._start = 0.0
        """The count of the client that was admitted last, at that time."""

    def __len__(self) -> int:
        return len(self._returned) + sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[T]:
        return chain(self._returned, *self._lines.values())

    def add(self, entry: T) -> None:
        client = entry.client
        if client not in self._lines:
            self._lines[client] = deque()
            self._counts[client] = max(self._count(client), self._start)
            if len(self._counts) > MAX_COUNTS + len(self._lines):
                self._counts = {client: self._count(client) for client in self._lines}
        self._lines[client].append(entry)

    def put_back(self, entry: T) -> None:
        """Add an entry that lost its place before all others."""
        self._returned.appendleft(entry)

    def put_first(self, entry: T) -> None:
        """Add an entry that made room for another client before its own client's others."""
        self._lines.setdefault(entry.client, deque()).appendleft(entry)

    def remove(self, entry: T) -> None:
        client = entry.client
        if entry in self._returned:
            self._returned.remove(entry)
        elif entry in (line := self._lines.get(client, ())):
            assert isinstance(line, deque)
            line.remove(entry)
            if not line:
                del self._lines[client]

    def admit(self, entry: T) -> None:
        """Remove an entry that gets a place."""
        if entry not in self._returned:
            self._start = max(self._start, self._count(entry.client))
        self.remove(entry)

    def bill(self, entry: T, cost: float) -> None:
        """Count what the entry's client was, or is about to be, given."""
        client = entry.client
        self._counts[client] = self._count(client) + cost

    def next(self, fits: Callable[[T], bool]) -> T | None:
        """The first in line of the entries that fit."""
        for line in (self._returned, *sorted(self._lines.values(), key=lambda line: self._count(line[0].client))):
            if entry := next(filter(fits, line), None):
                return entry
        return None

    def waiting(self, client: str) -> int:
        """How many entries of a client wait, without those that were put back."""
        return len(self._lines.get(client, ()))

    def replaceable(self, newcomer: T, may_go: Callable[[T], bool]) -> T | None:
        """The entry that a newcomer replaces when the queue is full: the last one that may go of the client with the
        most entries waiting. None if the newcomer's client would then have as many waiting, or more.
        """
        most = max(self._lines.values(), key=len, default=None)
        if most is None or len(most) <= self.waiting(newcomer.client) + 1:
            return None
        return next(filter(may_go, reversed(most)), None)

    def _count(self, client: str) -> float:
        return self._counts.get(client, self._start)
