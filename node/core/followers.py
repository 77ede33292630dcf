"""Limits who follows a log at once: a client's newest reading is the one that somebody looks at, so older ones end."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from node.core.clock import now
from node.core.errors import Overloaded


class Followers:
    def __init__(self, most: int, of_one: int) -> None:
        """`most`: in all, and `of_one` client."""
        self._most = most
        self._of_one = of_one
        self._places: dict[asyncio.Timeout, str] = {}
        """The client of each, oldest first."""

    @asynccontextmanager
    async def place(self, client: str) -> AsyncGenerator[None, None]:
        """Inside, a log is followed. Raises Overloaded there as soon as a newer reading needs the place."""
        try:
            async with asyncio.timeout(None) as place:
                self._make_room(client)
                self._places[place] = client
                try:
                    yield
                finally:
                    self._places.pop(place, None)
        except TimeoutError as error:
            if not place.expired():
                raise
            raise Overloaded(
                f"Newer readings took this one's place: {self._of_one} of one client and {self._most} in all may follow."
            ) from error

    def _make_room(self, client: str) -> None:
        """End the oldest reading of this client if it has too many, or of the one with the most if all together have."""
        count = Counter(self._places.values())
        if count[client] < self._of_one:
            if len(self._places) < self._most:
                return
            client = max(count, key=count.__getitem__)
        oldest = next(place for place, its in self._places.items() if its == client)
        del self._places[oldest]
        oldest.reschedule(now())
