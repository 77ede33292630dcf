"""Server-sent events, exactly as OpenAI writes them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """Timing of a quiet stream."""

    keepalive_s: float = 10.0  # proxies and clients tend to give up after 30 or 60 silent seconds
    loading_s: float = 600.0  # minimum time that a stream waits for its model


class EventStream:
    """A response of server-sent events.

    Nothing is sent before the first one, so that a refusal can still be a plain error.
    """

    def __init__(self, request: web.Request, timing: StreamTiming, awaited: Callable[[], str] = lambda: "") -> None:
        """`awaited`: what the stream waits for, which the comments say; it may be empty."""
        self._request = request
        self._awaited = awaited
        self._timing = timing
        self._lock = asyncio.Lock()
        self._written_at = asyncio.get_running_loop().time()
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",  # nginx would collect tokens into lumps
            }
        )

    async def send(self, data: dict[str, Any], name: str = "") -> None:
        """Send one event. The events of chat and completions have no name."""
        line = f"event: {name}\n".encode() if name else b""
        # ASCII: some clients split lines at U+2028 and the like, which JSON may contain unescaped.
        await self._write(line + b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n")

    async def done(self) -> None:
        await self._write(b"data: [DONE]\n\n")

    @asynccontextmanager
    async def kept_alive(self) -> AsyncGenerator[None, None]:
        """Inside, a comment is sent whenever nothing was sent for `keepalive_s` seconds, as in a long prefill."""
        task = asyncio.create_task(self._keep_alive())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_alive(self) -> None:
        """One timer for the whole stream: a timeout around each write would cost as much as the write."""
        loop = asyncio.get_running_loop()
        while True:
            left = self._written_at + self._timing.keepalive_s - loop.time()
            if left > 0 or self._lock.locked():
                await asyncio.sleep(left if left > 0 else self._timing.keepalive_s)
                continue
            try:
                line = "".join(char if char.isprintable() else "?" for char in self._awaited())
                await self._write(f": {line or 'keep-alive'}\n\n".encode())
            except ConnectionError:
                return  # the handler learns of it by its own next write, or is cancelled

    async def _write(self, event: bytes) -> None:
        """Return when the transport has taken the event, so that a client that does not read costs no more memory."""
        async with self._lock:
            if not self.response.prepared:
                await self.response.prepare(self._request)
            await self.response.write(event)
            await self._request.writer.drain()
            self._written_at = asyncio.get_running_loop().time()
