"""GET /v1/models, in pages, and /v1/models/{id}, as Anthropic writes them."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from aiohttp import web

from api.chat.env import Env, known_model
from api.http.json_object import Json
from node.core.errors import BadRequest
from node.core.models import ModelEntry

MAX_PAGE = 1000


async def show(env: Env, request: web.Request) -> web.Response:
    return web.json_response(_entry(known_model(env, request.match_info["id"])))


async def index(env: Env, request: web.Request) -> web.Response:
    """The models after that of `after_id`, or the last ones before that of `before_id`. Raises BadRequest."""
    models, query = env.gateway.models.entries(), request.query
    limit = query.get("limit", "20")
    if not re.fullmatch(r"[0-9]{1,4}", limit) or not 1 <= int(limit) <= MAX_PAGE:
        raise BadRequest(f"Invalid 'limit': it must be from 1 to {MAX_PAGE}.", param="limit")
    most, rest = int(limit), list(models)
    if before := query.get("before_id"):
        rest = rest[: _place(models, "before_id", before)]
        shown = rest[-most:]
    else:
        after = query.get("after_id")
        rest = rest[_place(models, "after_id", after) + 1 :] if after else rest
        shown = rest[:most]
    data = [_entry(model) for model in shown]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return web.json_response({"data": data, "has_more": len(rest) > len(shown), **ends})


def _place(models: Sequence[ModelEntry], param: str, wanted: str) -> int:
    place = next((index for index, model in enumerate(models) if model.id == wanted), None)
    if place is None:
        raise BadRequest(f"Invalid '{param}': there is no model {wanted[:80]!r}.", param=param)
    return place


def _entry(model: ModelEntry) -> Json:
    created_at = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    name = model.id.rpartition("/")[2]
    return {"type": "model", "id": model.id, "display_name": name, "created_at": created_at, "lifecycle": "active"}
