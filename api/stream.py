"""Server-sent events, exactly as OpenAI writes them."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Pace:
    """When a quiet stream speaks and when a reader is given up."""

    keepalive_s: float = 10.0  # proxies and clients tend to give up after 30 or 60 silent seconds
    loading_s: float = 600.0  # a stream waits so long for its model, at least
    stall_s: float = 60.0  # a reader that takes nothing for so long holds a place that others wait for


class EventStream:
    """A response of events. Nothing is sent before the first one, so that a refusal can still be a plain error."""

    def __init__(self, request: web.Request, pace: Pace) -> None:
        self._request = request
        self._pace = pace
        self._lock = asyncio.Lock()
        self._writing = False
        self._since = asyncio.get_running_loop().time()
        """When the write under way began, or the last one ended."""
        self._stalled = False
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",  # nginx would collect tokens into lumps
            }
        )

    async def send(self, data: dict[str, Any], name: str = "") -> None:
        """Chat and completions have events without a name."""
        line = f"event: {name}\n".encode() if name else b""
        # ASCII: some clients split lines at U+2028 and the like, which JSON would carry bare.
        await self._write(line + b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n")

    async def done(self) -> None:
        await self._write(b"data: [DONE]\n\n")

    @asynccontextmanager
    async def kept_alive(self) -> AsyncGenerator[None, None]:
        """Inside, a comment is sent whenever there was nothing else to send for a while, as in a long prefill."""
        task = asyncio.create_task(self._keep_alive())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_alive(self) -> None:
        """One timer for the whole stream: a timeout around each write would cost as much as the write."""
        while True:
            now = asyncio.get_running_loop().time()
            if self._writing and now >= self._since + self._pace.stall_s:
                self._give_up()
                return
            if not self._writing and now >= self._since + self._pace.keepalive_s:
                try:
                    await self._write(b": keep-alive\n\n")
                except ConnectionError:
                    return  # the handler learns of it by its own next write, or is cancelled
                continue
            limit = self._pace.stall_s if self._writing else min(self._pace.keepalive_s, self._pace.stall_s)
            await asyncio.sleep(self._since + limit - now)

    def _give_up(self) -> None:
        self._stalled = True
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _write(self, event: bytes) -> None:
        loop = asyncio.get_running_loop()
        async with self._lock:
            self._writing, self._since = True, loop.time()
            try:
                if not self.response.prepared:
                    await self.response.prepare(self._request)
                await self.response.write(event)
            finally:
                self._writing, self._since = False, loop.time()
            if self._stalled:
                raise ConnectionResetError(f"the reader took nothing for {self._pace.stall_s} s")
