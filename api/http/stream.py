"""Streamed answers: events in the format of the request's surface, kept alive while nothing happens."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from api.http.json_object import Json


@dataclass(frozen=True, slots=True)
class StreamTiming:
    keepalive_s: float = 10.0  # proxies and clients tend to give up after 30 or 60 silent seconds
    progress_s: float = 1.0  # silence after which people are told how far a prompt is
    loading_s: float = 600.0  # minimum time that a stream waits for its model


class StreamFormat(Protocol):
    """How the events of a stream are written; an error is the last one of a stream that fails."""

    content_type: str

    def event(self, data: Json) -> bytes: ...

    def waiting(self, awaited: str) -> bytes:
        """What is sent when there is no event for a while. `awaited`: what the stream waits for; may be empty."""


class Sse:
    """Server-sent events, exactly as OpenAI writes them: an event that has a type is named by it."""

    content_type = "text/event-stream"

    def event(self, data: Json) -> bytes:
        line = f"event: {data['type']}\n".encode() if "type" in data else b""
        return line + b"data: " + to_json(data) + b"\n\n"

    def waiting(self, awaited: str) -> bytes:
        line = "".join(char if char.isprintable() else "?" for char in awaited)
        return f": {line or 'keep-alive'}\n\n".encode()


def to_json(data: Json) -> bytes:
    # ASCII: some clients split lines at U+2028 and the like, which JSON may contain unescaped.
    return json.dumps(data, separators=(",", ":")).encode()


class EventStream:
    """A stream of events. Nothing is sent before the first one, so that a refusal can still be a plain error."""

    def __init__(
        self, request: web.Request, timing: StreamTiming, form: StreamFormat, awaited: Callable[[], str] = lambda: ""
    ) -> None:
        """`awaited`: what the stream waits for, for people; it may be empty."""
        self._request = request
        self._awaited = awaited
        self._form = form
        self._timing = timing
        self._lock = asyncio.Lock()
        self._written_at = asyncio.get_running_loop().time()
        self.response = web.StreamResponse(
            headers={
                "Content-Type": self._form.content_type,
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",  # nginx would collect tokens into lumps
            }
        )

    async def send(self, event: Json) -> None:
        await self.write(self._form.event(event))

    async def tell(self, progress: str) -> None:
        """Tell people how far what the stream waits for is, if it has been silent for a moment."""
        if asyncio.get_running_loop().time() >= self._written_at + self._timing.progress_s:
            await self.write(self._form.waiting(progress))

    async def done(self) -> None:
        """End the stream as OpenAI does."""
        await self.write(b"data: [DONE]\n\n")

    @asynccontextmanager
    async def kept_alive(self) -> AsyncGenerator[None, None]:
        """Inside, the stream is kept alive whenever nothing was sent for `keepalive_s` seconds, as in a long prefill."""
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
                await self.write(self._form.waiting(self._awaited()))
            except ConnectionError:
                return  # the handler learns of it by its own next write, or is cancelled

    async def write(self, event: bytes) -> None:
        """Send what the stream's format has written. Return when the transport has taken the event, so that a client that does not read costs no more memory."""
        async with self._lock:
            if not self.response.prepared:
                await self.response.prepare(self._request)
            await self.response.write(event)
            await self._request.writer.drain()
            self._written_at = asyncio.get_running_loop().time()
