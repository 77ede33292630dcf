"""POST /api/embed and its predecessor, /api/embeddings."""

import time

from aiohttp import web

from api.chat.embedding import embed
from api.chat.env import Env
from api.http.callers import CLIENT
from api.ollama.keeping import CheckChange, keep
from api.ollama.schema import EmbedBody, EmbeddingsBody


async def create(env: Env, check_change: CheckChange, request: web.Request) -> web.Response:
    begun = time.monotonic_ns()
    body = await env.read(request, EmbedBody)
    model = await env.gateway.open_models.open(body.model, request[CLIENT])
    opened = time.monotonic_ns()
    embeddings, tokens = await embed(env, model, body.input, request[CLIENT], truncate=body.truncate)
    await keep(env, check_change, request, body.model, body.keep_alive)
    return web.json_response(
        {
            "model": body.model,
            "embeddings": [list(each) for each in embeddings],
            "total_duration": time.monotonic_ns() - begun,
            "load_duration": opened - begun,
            "prompt_eval_count": tokens,
        }
    )


async def create_older(env: Env, check_change: CheckChange, request: web.Request) -> web.Response:
    body = await env.read(request, EmbeddingsBody)
    model = await env.gateway.open_models.open(body.model, request[CLIENT])
    texts = [body.prompt] if body.prompt else []
    embeddings, _ = await embed(env, model, texts, request[CLIENT], truncate=True)
    await keep(env, check_change, request, body.model, body.keep_alive)
    return web.json_response({"embedding": list(embeddings[0]) if embeddings else []})
