"""A cheap reader of streamed answers: it counts events in the bytes and parses none of them."""

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Any

CONTENT = re.compile(rb'"content":"[^"]')
COMPLETION_TOKENS = re.compile(rb'"completion_tokens":(\d+)')
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Read:
    ttft: float
    """Seconds from the request's last byte to the first event with text."""
    tokens: int
    events: int


class RawClient(asyncio.Protocol):
    """One connection, one answer at a time."""

    def __init__(self) -> None:
        self._done: asyncio.Future[Read] = asyncio.get_running_loop().create_future()
        self._transport: Any = None
        self._begin = self._first = 0.0
        self._events = 0
        self._tail = b""
        """The latest bytes, as a marker may arrive in two parts."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(f"The server hung up: {self._tail!r}"))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._events += data.count(b"\n\n") + (self._tail.endswith(b"\n") and data.startswith(b"\n"))
        near = self._tail + data
        self._tail = near[-600:]
        if not self._first and CONTENT.search(near):
            self._first = now
        if near.endswith(b"\r\n0\r\n\r\n") and b"data: [DONE]" in near and not self._done.done():
            told = COMPLETION_TOKENS.findall(self._tail)
            self._done.set_result(Read(self._first - self._begin, int(told[-1]) if told else 0, self._events))

    async def ask(self, request: bytes) -> Read:
        self._done = asyncio.get_running_loop().create_future()
        self._first, self._events, self._tail = 0.0, 0, b""
        self._begin = time.perf_counter()
        self._transport.write(request)
        async with asyncio.timeout(TIMEOUT_S):
            return await self._done

    def close(self) -> None:
        self._transport.close()


async def connect(port: int) -> RawClient:
    _, client = await asyncio.get_running_loop().create_connection(RawClient, "127.0.0.1", port)
    return client


def request(model: str, prompt: str, tokens: int) -> bytes:
    body = {
        "model": model,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": prompt},
        ],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data
