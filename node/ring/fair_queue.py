"""The queue of a ring: fair among clients, in order of arrival within each. Pure.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) with tokens as the shared resource, as in Sheng et al., "Fairness
in Serving Large Language Models" (2024): each client has a count of the tokens computed for it, and the client with the
lowest count is next. A new client starts at the count at which the last session was admitted: idle time gives no
credit.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

from node.ring.session import Session

MAX_COUNTS = 1024
"""Clients whose counts are kept while none of their sessions waits."""


class FairQueue:
    """Sessions without a slot."""

    def __init__(self) -> None:
        self._returned: deque[Session] = deque()
        self._lines: dict[str, deque[Session]] = {}
        """By client, in the order in which the clients came; none is empty."""
        self._counts: dict[str, int] = {}
        """Tokens computed for a client, plus the start when it came; a client without a count is at the start."""
        self._start = 0
        """The count of the client that was admitted last, at that time."""

    def __len__(self) -> int:
        return len(self._returned) + sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Session]:
        return chain(self._returned, *self._lines.values())

    def add(self, session: Session) -> None:
        client = session.request.client
        if client not in self._lines:
            self._lines[client] = deque()
            self._counts[client] = max(self._count(client), self._start)
            if len(self._counts) > MAX_COUNTS + len(self._lines):
                self._counts = {client: self._counts[client] for client in self._lines}
        self._lines[client].append(session)

    def put_back(self, session: Session) -> None:
        """Add a session that lost its slot before all others."""
        self._returned.appendleft(session)

    def put_first(self, session: Session) -> None:
        """Add a session that made room for another client before its own client's others."""
        self._lines.setdefault(session.request.client, deque()).appendleft(session)

    def remove(self, session: Session) -> None:
        client = session.request.client
        if session in self._returned:
            self._returned.remove(session)
        elif session in (line := self._lines.get(client, ())):
            assert isinstance(line, deque)
            line.remove(session)
            if not line:
                del self._lines[client]

    def admit(self, session: Session) -> None:
        """Remove a session that gets a slot."""
        if session not in self._returned:
            self._start = max(self._start, self._count(session.request.client))
        self.remove(session)

    def bill(self, session: Session, tokens: int) -> None:
        """Count tokens that were, or are about to be, computed for the session's client."""
        client = session.request.client
        self._counts[client] = self._count(client) + tokens

    def next(self, fits: Callable[[Session], bool]) -> Session | None:
        """The first in line of the sessions that fit."""
        for line in (
            self._returned,
            *sorted(self._lines.values(), key=lambda line: self._count(line[0].request.client)),
        ):
            if session := next(filter(fits, line), None):
                return session
        return None

    def replaceable(self, newcomer: Session) -> Session | None:
        """The session that a newcomer replaces when the queue is full: the last one that has not begun of the client
        with the most sessions waiting. None if the newcomer's client would then have as many waiting, or more.
        """
        most = max(self._lines.values(), key=len, default=None)
        if most is None or len(most) <= len(self._lines.get(newcomer.request.client, ())) + 1:
            return None
        return next((session for session in reversed(most) if not session.generated), None)

    def _count(self, client: str) -> int:
        return self._counts.get(client, self._start)
