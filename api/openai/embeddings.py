"""POST /v1/embeddings: texts as vectors."""

import base64
import struct
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from api.chat.embedding import embed
from api.chat.env import Env
from api.chat.message import StrictModel, Whole
from api.chat.parameters import WIDTH
from api.chat.schema import MAX_INT, ModelName, text_list
from api.http.callers import CLIENT


def _input_list(value: Any) -> list[str | list[int]]:
    inputs = text_list(value, "input")
    if "" in inputs:
        raise PydanticCustomError("input", "Input should not be an empty string")
    return inputs


class EmbeddingRequest(StrictModel):
    model: ModelName
    input: Annotated[list[str | list[int]], PlainValidator(_input_list)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[Whole | None, WIDTH] = Field(default=None, ge=1, le=MAX_INT)


async def create(env: Env, request: web.Request) -> web.Response:
    body = await env.read(request, EmbeddingRequest)
    model = await env.gateway.open_models.open(body.model, request[CLIENT])
    embeddings, tokens = await embed(env, model, body.input, request[CLIENT])
    data = []
    for index, vector in enumerate(embeddings):
        written: str | list[float] = list(vector)
        if body.encoding_format == "base64":  # of float32, little-endian, as OpenAI writes it
            written = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        data.append({"object": "embedding", "index": index, "embedding": written})
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return web.json_response({"object": "list", "data": data, "model": model.id, "usage": usage})
