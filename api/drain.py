"""An orderly end: what is under way is finished, what comes new is sent elsewhere."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from node.core.errors import ShuttingDown


class Drain:
    """Counts what is under way. To be made inside a running loop."""

    def __init__(self) -> None:
        self.begun = False
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Raises ShuttingDown once the end has begun."""
        if self.begun:
            raise ShuttingDown("This node is stopping.", hint="Ask another node, or this one when it is back.")
        with self.under_way():
            yield

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Of what a request that was taken has still to do."""
        self._count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._idle.set()

    async def finish(self, limit_s: float) -> None:
        """Take no new requests, and wait up to `limit_s` for what is under way."""
        self.begun = True
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return


DRAIN = web.AppKey("drain", Drain)
