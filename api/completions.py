"""POST /v1/completions: OpenAI's legacy endpoint, which continues raw text."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from aiohttp import web

from api.answer import Delta
from api.backend import Model
from api.body import read_object
from api.generation import Choice, Job, check_tokens
from api.logprobs import legacy_logprobs
from api.response import Collected, Gateway, Reply, new_id
from api.schema import CompletionRequest, parse
from node.core.errors import BadRequest
from node.engine.tokenizer import Tokenizer

MAX_CHOICES = 2048
"""Answers to one request, as OpenAI bounds its list of prompts; each costs memory before the first token."""


async def create(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    body = parse(CompletionRequest, await read_object(request))
    model = await gateway.backend.open(body.model)
    job = Job(
        id=new_id("cmpl"),
        model=model,
        body=body,
        sampling=body.sampling(body.logprobs),
        max_tokens=body.max_tokens,
        param="prompt",
    )
    if len(body.prompt) * body.n > MAX_CHOICES:
        raise BadRequest(
            f"{len(body.prompt)} prompts with {body.n} answers each are more than {MAX_CHOICES}.", param="prompt"
        )
    choices: list[Choice] = []
    for prompt in body.prompt:
        echo = _text(model, prompt) if body.echo else ""
        choices += job.choices(await _encode(model, prompt), first=len(choices), echo=echo)
    return await Reply(job, choices, CompletionShape(model.tokenizer, body.logprobs)).send(request, gateway)


async def _encode(model: Model, prompt: str | list[int]) -> Sequence[int]:
    if isinstance(prompt, list):
        check_tokens(model, prompt, param="prompt")
        return prompt
    # In a thread: a long prompt takes long, and other streams go on.
    tokens = await asyncio.to_thread(model.tokenizer.encode, prompt)
    if tokens:
        return tokens
    start = model.tokenizer.start
    if start is None:
        raise BadRequest("The prompt is empty, and the model has no token to begin a text with.", param="prompt")
    return [start]


def _text(model: Model, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt)


@dataclass(frozen=True, slots=True)
class CompletionShape:
    tokenizer: Tokenizer
    top_logprobs: int | None
    object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"

    def chunks(self, index: int, delta: Delta) -> Sequence[dict[str, Any]]:
        return [self._choice(index, delta)]

    def whole(self, index: int, collected: Collected) -> dict[str, Any]:
        return self._choice(index, collected)

    def _choice(self, index: int, part: Delta | Collected) -> dict[str, Any]:
        wanted = self.top_logprobs
        logprobs = None if wanted is None else legacy_logprobs(self.tokenizer, part.tokens, wanted)
        return {"index": index, "text": part.text, "logprobs": logprobs, "finish_reason": part.finish}
