"""POST /v1/embeddings: texts as vectors."""

import base64
import struct
from collections.abc import Sequence
from functools import partial

from aiohttp import web

from api.callers import CLIENT
from api.completions import encode
from api.env import Env
from api.generation import run_concurrently
from api.response import new_id
from api.schema import EmbeddingRequest, parse
from node.core.errors import ContextExceeded
from node.core.evaluation import EvaluateRequest
from node.text.sandboxed_encoder import OpenModel


async def create(env: Env, request: web.Request) -> web.Response:
    body = await env.bodies.read(request, partial(parse, EmbeddingRequest))
    model = await env.backend.open(body.model, request[CLIENT])
    texts = [await tokens_to_embed(model, text) for text in body.input]
    written = _base64 if body.encoding_format == "base64" else list
    data = [
        {"object": "embedding", "index": index, "embedding": written(embedding)}
        for index, embedding in enumerate(await embed(env, model, texts, request[CLIENT]))
    ]
    tokens = sum(map(len, texts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return web.json_response({"object": "list", "data": data, "model": model.id, "usage": usage})


async def embed(env: Env, model: OpenModel, texts: Sequence[Sequence[int]], client: str) -> list[Sequence[float]]:
    """The embeddings of texts, given as tokens. `client`: name of the caller."""
    name = new_id("embd")
    asked = [
        EvaluateRequest(f"{name}-{index}", model.id, tuple(tokens), client=client, revision=model.revision)
        for index, tokens in enumerate(texts)
    ]
    found = await run_concurrently([partial(env.inference.evaluate, each) for each in asked])
    return [evaluation.embedding for evaluation in found]


async def tokens_to_embed(model: OpenModel, text: str | list[int]) -> Sequence[int]:
    """Raises BadRequest, ContextExceeded."""
    tokens = await encode(model, text, param="input")
    if len(tokens) > model.context:
        raise ContextExceeded(
            f"This model's maximum context length is {model.context} tokens, but an input has {len(tokens)} tokens.",
            param="input",
        )
    return tokens


def _base64(vector: Sequence[float]) -> str:
    """Base64 of float32, little-endian, as OpenAI writes it."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
