"""The answers of chat and completions, plain or as a stream of chunks."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from aiohttp import web

from api.chat.answer import Delta, Ending, TokenText
from api.chat.env import STREAM, Env
from api.chat.generation import Choice, Prepared, best, respond, usage
from api.chat.reader import CallDelta
from api.http.json_object import Json


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


@dataclass(slots=True)
class Reply:
    """The output of one request (see `Output`), in the format of its endpoint."""

    prepared: Prepared
    choices: Sequence[Choice]
    top_logprobs: int | None
    object: ClassVar[str]
    chunk_object: ClassVar[str]
    _collected: dict[int, Collected] = field(default_factory=dict)
    _head: Json = field(default_factory=dict)
    """What all chunks, and the plain answer, begin with."""

    def chunks(self, index: int, delta: Delta) -> Sequence[Json]:
        """`choices` entries for an increment of a choice, one per chunk."""
        raise NotImplementedError

    def choice(self, index: int, collected: Collected) -> Json:
        """`choices` entry of a plain answer."""
        raise NotImplementedError

    async def send(self, request: web.Request, env: Env) -> web.StreamResponse:
        is_stream, model = self.prepared.body.stream, self.prepared.model.id
        self._head = {
            "id": self.prepared.id,
            "object": self.chunk_object if is_stream else self.object,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"fp_{hashlib.sha256(model.encode()).hexdigest()[:10]}",
        }
        response = await respond(env, request, self.choices, self)
        if is_stream:
            if self.prepared.body.include_usage:
                used = usage(self.choices, self.prepared.body.copies)
                await request[STREAM].send({**self._head, "choices": [], "usage": used})
            await request[STREAM].done()
        return response

    def grow(self, index: int, delta: Delta) -> Iterator[Json]:
        body = self.prepared.body
        if not body.stream:
            self._collected.setdefault(index, Collected()).add(delta)
            return
        for choice in self.chunks(index, delta):
            chunk = {**self._head, "choices": [choice]}
            # OpenAI's chunks have `usage: null` if the last chunk will have the usage.
            yield {**chunk, "usage": None} if body.include_usage else chunk

    def whole(self) -> Json:
        body = self.prepared.body
        kept = best(self.choices, body)
        choices = [self.choice(index, self._collected[choice.index]) for index, choice in enumerate(kept)]
        return {**self._head, "choices": choices, "usage": usage(self.choices, body.copies)}
