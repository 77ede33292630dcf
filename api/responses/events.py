"""The events of background responses that are streamed: kept, so that a client whose stream breaks goes on where it was."""

from collections.abc import AsyncGenerator, Iterable

from api.http.errors import NotFound
from api.http.json_object import Json
from api.http.limits import MAX_EVENTS_BYTES, MAX_RESPONSES
from api.http.stream import Sse
from api.responses.room import first_to_go
from node.core.signal import Signal

QUIET_S = 5.0
"""Seconds of silence after which a reader gets an empty part, so that one on another node knows that this one is there."""
_PART = 256
"""Events that are read at once."""


class EventLog:
    """The events of one response; each is found by its number, which counts from 0."""

    def __init__(self, client: str) -> None:
        """`client`: who asked for the response."""
        self.client = client
        self.events: list[bytes] = []
        self.bytes = 0
        self.ended = False
        self.lost = False
        """Whether its events have made room for others."""
        self.changed = Signal()

    async def read(self, first: int) -> AsyncGenerator[bytes, None]:
        """Events from this number on, as a stream writes them, up to the last one; empty while none comes. Raises NotFound."""
        while True:
            if self.lost:
                raise NotFound("The events of this response are gone: they made room for others.")
            if part := self.events[first : first + _PART]:
                first += len(part)
                yield b"".join(part)
            elif self.ended:
                return
            elif not await self.changed.wait(QUIET_S):
                yield b""


class EventLogs:
    """The logs of a node's responses. Some lose their events when there are too many (see `first_to_go`)."""

    def __init__(self) -> None:
        self._logs: dict[str, EventLog] = {}
        self._bytes = 0
        self._form = Sse()

    def begin(self, response_id: str, client: str) -> None:
        self._logs[response_id] = EventLog(client)

    def get(self, response_id: str) -> EventLog | None:
        return self._logs.get(response_id)

    def add(self, response_id: str, events: Iterable[Json], *, ended: bool) -> None:
        """Add events of a response; if it was not begun here, nobody is going to read them."""
        log = self._logs.get(response_id)
        if log is None:
            return
        written = [self._form.event(event) for event in events]
        size = sum(map(len, written))
        log.events += written
        log.bytes += size
        log.ended = ended
        self._bytes += size
        log.changed.notify()
        while len(self._logs) > MAX_RESPONSES or self._bytes > MAX_EVENTS_BYTES:
            self.drop(first_to_go(self._logs, by_bytes=self._bytes > MAX_EVENTS_BYTES))

    def drop(self, response_id: str) -> None:
        """Forget the events of a response, if they are here."""
        if log := self._logs.pop(response_id, None):
            self._bytes -= log.bytes
            log.events, log.lost = [], True
            log.changed.notify()
