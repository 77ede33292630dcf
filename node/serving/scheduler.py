"""Decides which session steps next. Pure: no I/O, no clock, no tensors.

Sessions wait in order of arrival until the KV that was set aside by the placement has room for all the tokens they
may come to need; then they step in turn, one step of one session a frame. A session decodes only when its last token
is known, so at most one of its steps is in flight; chunks of its prompt may follow each other without waiting.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from node.core.errors import ContextExceeded, Overloaded
from node.serving.session import Session


@dataclass(frozen=True, slots=True)
class Step:
    """Run `tokens` through the ring for a session; `samples` when the result yields its next token."""

    session: Session
    opens: bool
    tokens: tuple[int, ...]
    samples: bool


class Scheduler:
    def __init__(self, *, context: int, max_sessions: int, max_queue: int, chunk: int) -> None:
        self._context = context
        self._budget = context * max_sessions
        self._max_queue = max_queue
        self._chunk = chunk
        self._waiting: deque[Session] = deque()
        self._active: deque[Session] = deque()
        self._next_lane = 0

    @property
    def running(self) -> int:
        return len(self._active)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Session]:
        yield from self._active
        yield from self._waiting

    def submit(self, session: Session) -> None:
        """Raises ContextExceeded, or Overloaded when the queue is full."""
        if session.reserved > self._context:
            raise ContextExceeded(
                f"This model's context is {self._context} tokens; {len(session.request.prompt)} of prompt and "
                f"{session.request.max_tokens} to generate are {session.reserved}.",
                hint="Send a shorter prompt or ask for fewer tokens.",
            )
        if len(self._waiting) >= self._max_queue:
            raise Overloaded(f"{len(self._waiting)} requests are waiting already.", hint="Try again in a moment.")
        self._waiting.append(session)

    def remove(self, session: Session) -> bool:
        """Whether it had a lane, which is then to be dropped."""
        if session in self._active:
            self._active.remove(session)
            return session.lane >= 0 and session.sent > 0
        if session in self._waiting:
            self._waiting.remove(session)
        return False

    def rewind(self) -> None:
        """All KV is lost: every active session starts again from its tokens, before those that wait."""
        for session in reversed(self._active):
            session.rewind()
            self._waiting.appendleft(session)
        self._active.clear()

    def next(self) -> Step | None:
        """The next step, or None when every active session waits for a token."""
        self._admit()
        for _ in range(len(self._active)):
            session = self._active[0]
            self._active.rotate(-1)
            left = len(session.tokens) - session.sent
            if left:
                return self._step(session, min(left, self._chunk))
        return None

    def _step(self, session: Session, count: int) -> Step:
        begin, end = session.sent, session.sent + count
        session.sent = end
        session.in_flight += 1
        return Step(session, begin == 0, tuple(session.tokens[begin:end]), end == len(session.tokens))

    def _admit(self) -> None:
        reserved = sum(session.reserved for session in self._active)
        while self._waiting and reserved + self._waiting[0].reserved <= self._budget:
            session = self._waiting.popleft()
            session.lane = self._next_lane
            self._next_lane += 1
            reserved += session.reserved
            self._active.append(session)
