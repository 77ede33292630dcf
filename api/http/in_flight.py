"""Graceful shutdown: requests in flight are finished, new ones are refused."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from aiohttp import web

from node.core.errors import ShuttingDown


class RequestsInFlight:
    """Counts the requests in flight, and the background responses."""

    def __init__(self) -> None:
        self.stopping = False
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a new request. Raises ShuttingDown once the node is stopping."""
        if self.stopping:
            raise ShuttingDown("This node is stopping.", hint="Ask another node, or this one when it is back.")
        with self.counted():
            yield

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count work that an accepted request still has to do."""
        self._count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._idle.set()

    async def finish(self, limit_s: float) -> None:
        """Refuse new requests, and wait up to `limit_s` seconds for those in flight."""
        self.stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._idle.wait()


IN_FLIGHT = web.AppKey("in_flight", RequestsInFlight)
