"""Graceful shutdown: requests under way are finished, new ones are refused."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from node.core.errors import ShuttingDown


class Drain:
    """Counts the work under way. Create it inside a running event loop."""

    def __init__(self) -> None:
        self.begun = False
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as work under way. Raises ShuttingDown once the shutdown has begun."""
        if self.begun:
            raise ShuttingDown("This node is stopping.", hint="Ask another node, or this one when it is back.")
        with self.under_way():
            yield

    @contextmanager
    def under_way(self) -> Iterator[None]:
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
        """Refuse new requests, and wait up to `limit_s` seconds for the work under way."""
        self.begun = True
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return


DRAIN = web.AppKey("drain", Drain)
