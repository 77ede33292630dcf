"""Limits attempts that are likely to fail: so many at once, then one per interval. Those that succeed do not count."""

import asyncio
import math

from node.core.clock import now
from node.core.signal import Signal


class Turns:
    def __init__(self, at_once: int, interval_s: float) -> None:
        self._at_once = at_once
        self._interval = interval_s
        self._queue = asyncio.Lock()
        """Held by the attempt whose turn is next; the others wait in order."""
        self._last_at = -math.inf
        """Time of the last turn, if all had been taken at their intervals; later ones wait until one interval after it."""
        self._returned = Signal()

    async def take(self) -> None:
        """Wait for a turn."""
        async with self._queue:
            while (left := self._last_at + self._interval - now()) > 0:
                await self._returned.wait(left)
            self._last_at = max(self._last_at + self._interval, now() - (self._at_once - 1) * self._interval)

    def give_back(self) -> None:
        """The attempt succeeded."""
        self._last_at -= self._interval
        self._returned.notify()
