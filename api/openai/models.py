"""GET /v1/models and /v1/models/{id}, as OpenAI writes them."""

from typing import Any

from aiohttp import web

from api.chat.env import Env, known_model
from node.core.models import ModelEntry


async def index(env: Env, _request: web.Request) -> web.Response:
    models = env.gateway.models
    return web.json_response({"object": "list", "data": [_entry(await models.told(each)) for each in models.entries()]})


async def show(env: Env, request: web.Request) -> web.Response:
    """A short name gives the entry of the model that it stands for."""
    return web.json_response(_entry(await env.gateway.models.told(known_model(env, request.match_info["id"]))))


def _entry(model: ModelEntry) -> dict[str, Any]:
    """With the context and the model that an alias stands for, for which clients of vLLM look, and with whether it takes
    pictures, for which those of Mistral do.
    """
    known: dict[str, Any] = {"max_model_len": model.context} if model.context else {}
    if model.config:
        known["capabilities"] = {"vision": model.takes_pictures}
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owned_by,
        "root": model.model,
        **known,
    }
