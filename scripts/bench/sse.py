"""One streamed answer of an OpenAI-compatible server, with the times at which its tokens arrived.

Bytes are only stamped while they arrive, and parsed when the answer has ended, so that many streams at once are not
slowed by their reader.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=900)
Json = dict[str, Any]
BEGUN = 6
"""Number of socket reads after which tokens are certainly flowing."""


class RefusedError(Exception):
    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body[:500]}")
        self.status = status


@dataclass(slots=True)
class Answer:
    """An answer and its times (seconds of time.perf_counter)."""

    sent: float = 0.0
    lumps: list[tuple[float, bytes]] = field(default_factory=list)
    """Chunks as the socket returned them; grows while the answer runs."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when some tokens have arrived, or the answer has ended or failed."""
    texts: list[float] = field(default_factory=list)
    """Time of each event with text. This field and all below are set at the end."""
    ended: float = 0.0
    """Time of the event with the finish reason."""
    text: str = ""
    tokens: int = 0
    """The server's own count of tokens, or the number of events with text if it reports none."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Those of the prompt that were not computed."""

    @property
    def first(self) -> float:
        return self.texts[0] if self.texts else self.ended

    @property
    def ttft(self) -> float:
        return self.first - self.sent

    @property
    def rate(self) -> float:
        """Tokens per second after the first."""
        span = self.ended - self.first
        return (self.tokens - 1) / span if span > 0 else float("nan")

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.texts, self.texts[1:], strict=False)]

    def parse(self) -> None:
        """Fill the other fields. Raises RuntimeError for a stream that ended with an error or without an end."""
        for at, event in self._events():
            if "error" in event:
                raise RuntimeError(f"The stream ended with an error: {event['error']}")
            usage = event.get("usage") or {}
            self.tokens = usage.get("completion_tokens", self.tokens)
            self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", self.cached_tokens)
            for choice in event.get("choices", ()):
                if text := _text(choice):
                    self.texts.append(at)
                    self.text += text
                if choice.get("finish_reason"):
                    self.ended = at
        if not self.ended:
            raise RuntimeError("The stream broke off.")
        self.tokens = self.tokens or len(self.texts)

    def _events(self) -> Iterator[tuple[float, Json]]:
        rest = b""
        for at, lump in self.lumps:
            *whole, rest = (rest + lump).replace(b"\r\n", b"\n").split(b"\n\n")
            for event in whole:
                data = event.removeprefix(b"data:").strip()
                if event.startswith(b"data:") and data != b"[DONE]":
                    yield at, json.loads(data)


def _text(choice: Json) -> str:
    delta = choice.get("delta") or {}
    return str(choice.get("text") or delta.get("content") or delta.get("reasoning_content") or "")


def client(key: str = "") -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(timeout=TIMEOUT, connector=aiohttp.TCPConnector(limit=0), headers=headers)


async def stream(http: aiohttp.ClientSession, url: str, body: Json, answer: Answer | None = None) -> Answer:
    """Send a request and read its answer to the end; `answer` may be watched meanwhile. Raises RefusedError."""
    answer = answer or Answer()
    answer.sent = time.perf_counter()
    try:
        async with http.post(url, json={**body, "stream": True}) as response:
            if response.status != 200:
                raise RefusedError(response.status, await response.text())
            async for lump in response.content.iter_any():
                answer.lumps.append((time.perf_counter(), lump))
                if len(answer.lumps) == BEGUN:
                    answer.begun.set()
    finally:
        answer.begun.set()
    answer.parse()
    return answer


async def whole(http: aiohttp.ClientSession, url: str, body: Json) -> Json:
    """Send a request that is not streamed. Raises RefusedError."""
    async with http.post(url, json=body) as response:
        if response.status != 200:
            raise RefusedError(response.status, await response.text())
        answer: Json = await response.json()
        return answer
