"""GET /v1/models and /v1/models/{id}, as OpenAI writes them or as Anthropic does."""

from typing import Any

from aiohttp import web

from api.anthropic import models as anthropic_models
from api.env import Env
from api.surfaces import is_of_anthropic
from node.core.errors import ModelNotFound
from node.core.models import ModelEntry


async def index(env: Env, request: web.Request) -> web.Response:
    if is_of_anthropic(request):
        return web.json_response(anthropic_models.page(env.backend.models(), request.query))
    return web.json_response({"object": "list", "data": [_entry(model) for model in env.backend.models()]})


async def show(env: Env, request: web.Request) -> web.Response:
    """A short name gives the entry of the model that it stands for."""
    wanted = request.match_info["id"]
    if model := env.backend.known(wanted):
        return web.json_response(anthropic_models.entry(model) if is_of_anthropic(request) else _entry(model))
    raise ModelNotFound(f"The model '{wanted}' does not exist.", param="model")


def _entry(model: ModelEntry) -> dict[str, Any]:
    return {"id": model.id, "object": "model", "created": model.created, "owned_by": model.owned_by}
