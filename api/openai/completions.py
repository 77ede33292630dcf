"""POST /v1/completions: OpenAI's legacy endpoint, which continues raw text."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from aiohttp import web

from api.chat.answer import Delta
from api.chat.echo import Echo, prompt_pieces
from api.chat.env import Env, open_model
from api.chat.generation import Choice, Prepared, new_id
from api.chat.logprobs import legacy_logprobs
from api.chat.prompt import encode_text
from api.chat.schema import CompletionRequest, parse
from api.http.json_object import Json
from api.http.limits import MAX_ANSWERS
from api.openai.reply import Collected, Reply
from node.core.errors import BadRequest
from node.core.evaluation import EvaluateRequest
from node.text.sandboxed_encoder import OpenModel


async def create(env: Env, request: web.Request) -> web.StreamResponse:
    body = await env.bodies.read(request, partial(parse, CompletionRequest))
    model = await open_model(env, request, body)
    prepared = await Prepared.of(request, model, body, new_id("cmpl"))
    if len(body.prompt) * body.copies > MAX_ANSWERS:
        raise BadRequest(
            f"{len(body.prompt)} prompts with {body.copies} answers each are more than {MAX_ANSWERS}.", param="prompt"
        )
    choices: list[Choice] = []
    echoed = 0
    for prompt in body.prompt:
        await asyncio.sleep(0)  # let other tasks run: thousands of prompts take long
        tokens = await encode_text(model, prompt, param="prompt")
        prepared.max_new_tokens(tokens)
        name = f"{prepared.id}-{len(choices)}-prompt"
        wanted = None
        if body.echo and body.logprobs is not None:
            wanted = EvaluateRequest(name, model.id, tuple(tokens), body.logprobs, prepared.client, model.revision)
        echo = await _echo(model, prompt, tokens, wanted) if body.echo else None
        echoed += body.copies * len(echo.text) if echo else 0
        if echoed > env.bodies.limit:
            raise BadRequest(f"The answers would echo more than {env.bodies.limit:,} characters.", param="echo")
        choices += prepared.choices(tokens, first=len(choices), echo=echo, control_logprobs=True)
    return await CompletionReply(prepared, choices, body.logprobs).send(request, env)


async def _echo(
    model: OpenModel, prompt: str | list[int], tokens: Sequence[int], wanted: EvaluateRequest | None
) -> Echo:
    text = prompt if isinstance(prompt, str) else None
    if text is not None and wanted is None:
        return Echo((), text, wanted)  # nothing asks for the text of each token
    return Echo(await model.encoder.work(prompt_pieces, model.tokenizer, tokens, text), text, wanted)


class CompletionReply(Reply):
    object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"

    def chunks(self, index: int, delta: Delta) -> Sequence[Json]:
        return [self.choice(index, delta)]

    def choice(self, index: int, part: Delta | Collected) -> Json:
        wanted = self.top_logprobs
        logprobs = None if wanted is None else legacy_logprobs(self.prepared.model.tokenizer, part.tokens, wanted)
        return {"index": index, "text": part.text, "logprobs": logprobs, "finish_reason": part.finish}
