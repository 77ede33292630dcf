"""Turns at what only a few may use at once, fair among clients."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from node.core.clock import now
from node.core.errors import Overloaded
from node.core.fair_queue import FairQueue


@dataclass(slots=True, eq=False)
class _Wait:
    client: str
    begins: asyncio.Future[None]


class FairTurns:
    """Clients take turns: the next one is of the client that has used the least time, and while others wait, none has
    two. Whoever is cancelled while it waits is dropped.
    """

    def __init__(self, what: str, at_once: int, most_waiting: int) -> None:
        """`what`: what the turns are at, for errors. `most_waiting`: maximum turns that one client waits for."""
        self._what = what
        self._at_once = at_once
        self._most_waiting = most_waiting
        self._queue = FairQueue[_Wait]()
        self._running = Counter[str]()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncGenerator[None, None]:
        """Wait for a turn of a client; it lasts until the context ends. Raises Overloaded if too many of the client's
        own wait.
        """
        if (waiting := self._queue.waiting(client)) >= self._most_waiting:
            hint = "Send fewer requests at once, or this one again in a moment."
            raise Overloaded(f"{waiting} of your requests already wait for {self._what}.", hint=hint)
        wait = _Wait(client, asyncio.get_running_loop().create_future())
        self._queue.add(wait)
        self._begin()
        began = now()
        try:
            await wait.begins
            began = now()
            yield
        finally:
            if wait.begins.cancelled():
                self._queue.remove(wait)
            else:
                self._queue.bill(wait, now() - began)
                self._running -= Counter((client,))  # without clients that have no turn any more
                self._begin()

    def is_wanted(self, client: str) -> bool:
        """Whether a client that has a turn should end it, as another one that has none waits."""
        first = self._first()
        return first is not None and first.client != client

    def _begin(self) -> None:
        while self._running.total() < self._at_once and (wait := self._first() or self._queue.next(_is_there)):
            self._queue.admit(wait)
            self._running[wait.client] += 1
            wait.begins.set_result(None)

    def _first(self) -> _Wait | None:
        """The next one of the clients that have no turn."""
        return self._queue.next(lambda wait: _is_there(wait) and not self._running[wait.client])


def _is_there(wait: _Wait) -> bool:
    """Whether it was not cancelled just now."""
    return not wait.begins.cancelled()
