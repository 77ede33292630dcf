"""POST /api/embed and its predecessor, /api/embeddings."""

import time
from collections.abc import Sequence
from functools import partial

from aiohttp import web

from api.chat.embedding import embed, tokens_to_embed
from api.chat.env import Env
from api.chat.schema import parse
from api.http.callers import CLIENT
from api.http.errors import Unsupported
from api.ollama.schema import EmbedBody, EmbeddingsBody
from node.text.sandboxed_encoder import OpenModel


async def create(env: Env, request: web.Request) -> web.Response:
    begun = time.monotonic_ns()
    body = await env.bodies.read(request, partial(parse, EmbedBody))
    if body.dimensions:
        raise Unsupported(
            "'dimensions' is not supported: an embedding is as wide as the model's hidden states.", param="dimensions"
        )
    model = await env.gateway.open_models.open(body.model, request[CLIENT])
    opened = time.monotonic_ns()
    texts = [await _tokens(model, text, truncate=body.truncate) for text in body.input]
    embeddings = await embed(env, model, texts, request[CLIENT])
    return web.json_response(
        {
            "model": body.model,
            "embeddings": [list(each) for each in embeddings],
            "total_duration": time.monotonic_ns() - begun,
            "load_duration": opened - begun,
            "prompt_eval_count": sum(map(len, texts)),
        }
    )


async def create_older(env: Env, request: web.Request) -> web.Response:
    body = await env.bodies.read(request, partial(parse, EmbeddingsBody))
    model = await env.gateway.open_models.open(body.model, request[CLIENT])
    texts = [await _tokens(model, body.prompt, truncate=True)] if body.prompt else []
    embeddings = await embed(env, model, texts, request[CLIENT])
    return web.json_response({"embedding": list(embeddings[0]) if embeddings else []})


async def _tokens(model: OpenModel, text: str, *, truncate: bool) -> Sequence[int]:
    """Tokens of a text, as many as fit into the context. Raises ContextExceeded if not `truncate`, BadRequest."""
    if truncate and (tokens := await model.encoder.encode(text, context=model.context, param="input", truncate=True)):
        return tokens
    return await tokens_to_embed(model, text)
