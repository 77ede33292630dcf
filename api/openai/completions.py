"""POST /v1/completions: OpenAI's legacy endpoint, which continues raw text."""

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from aiohttp import web

from api.chat.answer import Delta
from api.chat.constraint import make_grammar
from api.chat.echo import Echo, prompt_pieces
from api.chat.env import Env, open_model
from api.chat.generation import Choice, Prepared, new_id
from api.chat.logprobs import legacy_logprobs
from api.chat.prompt import encode_middle, encode_text
from api.chat.schema import CompletionRequest
from api.chat.tools import ToolUse
from api.http.callers import CLIENT
from api.http.json_object import Json
from api.http.limits import MAX_ANSWERS
from api.openai.reply import Collected, Reply
from node.core.errors import BadRequest
from node.core.evaluation import EvaluateRequest


async def create(env: Env, request: web.Request) -> web.StreamResponse:
    body = await env.read(request, CompletionRequest)
    model = await open_model(env, request, body)
    grammar = await make_grammar(env.gateway.grammars, ToolUse(), body.format, request[CLIENT])
    prepared = await Prepared.of(request, model, body, new_id("cmpl"), grammar)
    if len(body.prompt) * body.copies > MAX_ANSWERS:
        raise BadRequest(
            f"{len(body.prompt)} prompts with {body.copies} answers each are more than {MAX_ANSWERS}.", param="prompt"
        )
    choices: list[Choice] = []
    echoed = 0
    for prompt in body.prompt:
        await asyncio.sleep(0)  # let other tasks run: thousands of prompts take long
        if body.suffix:
            tokens = await encode_middle(model, prompt, body.suffix)
        else:
            tokens = await encode_text(model, prompt, param="prompt", bos=body.add_special_tokens)
        prepared.max_new_tokens(tokens)
        echo, wanted = None, None
        if body.echo:
            if body.logprobs is not None:
                name = f"{prepared.id}-{len(choices)}-prompt"
                wanted = EvaluateRequest(name, model.id, tuple(tokens), body.logprobs, prepared.client, model.revision)
            text, pieces = prompt if isinstance(prompt, str) else None, list[str]()
            if text is None or wanted:  # else nothing asks for the text of each token
                pieces = await model.encoder.work(prompt_pieces, model.tokenizer, tokens, text)
            echo = Echo(pieces, text, wanted)
            echoed += body.copies * len(echo.text)
        if echoed > env.bodies.limit:
            raise BadRequest(f"The answers would echo more than {env.bodies.limit:,} characters.", param="echo")
        choices += prepared.choices(tokens, first=len(choices), echo=echo, control_logprobs=True)
    return await CompletionReply(prepared, choices, body.logprobs).send(request, env)


class CompletionReply(Reply):
    object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"

    def chunks(self, index: int, delta: Delta) -> Sequence[Json]:
        return [self.choice(index, delta)]

    def choice(self, index: int, part: Delta | Collected) -> Json:
        wanted = self.top_logprobs
        logprobs = None if wanted is None else legacy_logprobs(self.prepared.model.tokenizer, part.tokens, wanted)
        return {"index": index, "text": part.text, "logprobs": logprobs, "finish_reason": part.finish}
