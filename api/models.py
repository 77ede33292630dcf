"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from aiohttp import web

from api.response import Gateway
from node.core.errors import ModelNotFound
from node.core.types import ModelEntry


async def index(gateway: Gateway, _request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [_entry(model) for model in gateway.backend.models()]})


async def show(gateway: Gateway, request: web.Request) -> web.Response:
    wanted = request.match_info["id"]
    for model in gateway.backend.models():
        if model.id == wanted:
            return web.json_response(_entry(model))
    raise ModelNotFound(f"The model '{wanted}' does not exist.", param="model")


def _entry(model: ModelEntry) -> dict[str, Any]:
    return {"id": model.id, "object": "model", "created": model.created, "owned_by": model.owned_by}
