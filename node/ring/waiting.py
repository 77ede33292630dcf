"""Who is next for a place in a ring: fair among clients, in order of arrival within each. Pure.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) with tokens as what is shared, as in Sheng et al., "Fairness in Serving
Large Language Models" (2024): each client has a count of the tokens that were computed for it, and the one with the lowest
count is next. A client that comes starts at the count at which the last one was admitted: having asked for nothing is no
credit.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

from node.ring.session import Session

MOST_COUNTS = 1024
"""Clients whose counts are kept while they wait for nothing."""


class Waiting:
    """Sessions without a place."""

    def __init__(self) -> None:
        self._returned: deque[Session] = deque()
        self._lines: dict[str, deque[Session]] = {}
        """By client, in the order in which the clients came; none is empty."""
        self._counts: dict[str, int] = {}
        """Tokens computed for a client, beginning at what was the start when it came; missing: the start."""
        self._start = 0
        """The count of the client that was admitted last, when it was."""

    def __len__(self) -> int:
        return len(self._returned) + sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Session]:
        return chain(self._returned, *self._lines.values())

    def add(self, session: Session) -> None:
        client = session.request.client
        if client not in self._lines:
            self._lines[client] = deque()
            self._counts[client] = max(self._count(client), self._start)
            self._forget()
        self._lines[client].append(session)

    def put_back(self, session: Session) -> None:
        """It lost its place, and is before all others."""
        self._returned.appendleft(session)

    def put_first(self, session: Session) -> None:
        """It made room for another client, and is before its own client's others."""
        self._lines.setdefault(session.request.client, deque()).appendleft(session)

    def remove(self, session: Session) -> None:
        """It hangs up."""
        client = session.request.client
        if session in self._returned:
            self._returned.remove(session)
        elif session in (line := self._lines.get(client, ())):
            assert isinstance(line, deque)
            line.remove(session)
            if not line:
                del self._lines[client]

    def admit(self, session: Session) -> None:
        """It gets a place."""
        if session not in self._returned:
            self._start = max(self._start, self._count(session.request.client))
        self.remove(session)

    def charge(self, session: Session, tokens: int) -> None:
        """So many were, or are about to be, computed for it."""
        client = session.request.client
        self._counts[client] = self._count(client) + tokens

    def next(self, fits: Callable[[Session], bool]) -> Session | None:
        """The first in line of those that fit."""
        for line in (
            self._returned,
            *sorted(self._lines.values(), key=lambda line: self._count(line[0].request.client)),
        ):
            if session := next(filter(fits, line), None):
                return session
        return None

    def crowding(self, newcomer: Session) -> Session | None:
        """Whom a newcomer may replace when all places to wait are taken: of the client with the most waiting, the last
        that has not begun; None if the newcomer's client would then have as many waiting as that one, or more.
        """
        most = max(self._lines.values(), key=len, default=None)
        if most is None or len(most) <= len(self._lines.get(newcomer.request.client, ())) + 1:
            return None
        return next((session for session in reversed(most) if not session.generated), None)

    def _count(self, client: str) -> int:
        return self._counts.get(client, self._start)

    def _forget(self) -> None:
        """Clients that wait for nothing: they start again when they come again."""
        if len(self._counts) > MOST_COUNTS + len(self._lines):
            self._counts = {client: self._counts[client] for client in self._lines}
