"""Sends the choices of a request as a plain or streamed response, in the format of the endpoint."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Protocol

from aiohttp import web

from api.chat.answer import Delta, Ending, TokenText
from api.chat.env import STREAM, Env
from api.chat.generation import Choice, Prepared, best, run_all, usage
from api.chat.reader import CallDelta


@dataclass(slots=True)
class Collected:
    """Complete output of one choice."""

    text: str = ""
    tokens: list[TokenText] = field(default_factory=list)
    finish: Ending | None = None
    reasoning: str = ""
    calls: dict[int, CallDelta] = field(default_factory=dict)
    """Complete tool calls by index."""

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.reasoning += delta.reasoning
        for call in delta.calls:
            before = self.calls.get(call.index)
            self.calls[call.index] = before.grown(call) if before else call
        self.tokens += delta.tokens
        self.finish = delta.finish


class Shape(Protocol):
    """The JSON format of an endpoint's choices."""

    object: ClassVar[str]
    chunk_object: ClassVar[str]

    def chunks(self, index: int, delta: Delta) -> Sequence[dict[str, Any]]:
        """`choices` entries for an increment of a choice, one per chunk."""

    def whole(self, index: int, collected: Collected) -> dict[str, Any]:
        """`choices` entry of a plain response."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The response to one request, while it is being made."""

    prepared: Prepared
    choices: Sequence[Choice]
    shape: Shape
    created: int = field(default_factory=lambda: int(time.time()))

    async def send(self, request: web.Request, env: Env) -> web.StreamResponse:
        if self.prepared.body.stream:
            return await self._stream(request, env)
        collected = [Collected() for _ in self.choices]

        async def collect(index: int, delta: Delta) -> None:
            collected[index].add(delta)

        await run_all(env, self.choices, collect)
        kept = best(self.choices, self.prepared.body)
        choices = [self.shape.whole(index, collected[choice.index]) for index, choice in enumerate(kept)]
        used = usage(self.choices, self.prepared.body.copies)
        return web.json_response(self._object(self.shape.object, choices) | {"usage": used})

    async def _stream(self, request: web.Request, env: Env) -> web.StreamResponse:
        events = request[STREAM]
        chunk = self._object(self.shape.chunk_object, [])
        # OpenAI's chunks have `usage: null` if the last chunk will have the usage.
        no_usage = {"usage": None} if self.prepared.body.include_usage else {}

        async def emit(index: int, delta: Delta) -> None:
            for choice in self.shape.chunks(index, delta):
                await events.send(chunk | {"choices": [choice]} | no_usage)

        async with events.kept_alive():
            await run_all(env, self.choices, emit)
            if self.prepared.body.include_usage:
                await events.send(chunk | {"usage": usage(self.choices, self.prepared.body.copies)})
            await events.done()
        return events.response

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.prepared.id,
            "object": kind,
            "created": self.created,
            "model": self.prepared.model.id,
            "system_fingerprint": fingerprint(self.prepared.model.id),
            "choices": choices,
        }


@cache
def fingerprint(model_id: str) -> str:
    return "fp_" + hashlib.sha256(model_id.encode()).hexdigest()[:10]
