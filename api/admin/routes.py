"""Endpoints for operators: health, version, cluster status, models, and draining of nodes."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from aiohttp import web
from pydantic import Field

from api.chat.env import STREAM, Env, fetch_model
from api.chat.message import StrictModel
from api.chat.prompt import has_thinking_switch, thinks
from api.chat.schema import MAX_INT
from api.http.callers import CLIENT
from api.http.in_flight import IN_FLIGHT
from api.http.stream import EventStream, Sse
from node.core.commands import Command, DrainNode, KeepModel, LoadModel, UnloadModel
from node.core.errors import BadRequest
from node.core.limits import MAX_NAME_CHARS
from node.core.models import Wish


class LoadRequest(StrictModel):
    """How to place a model, as in Wish."""

    stages: int = Field(default=0, ge=1, le=1024)
    context: int = Field(default=0, ge=1, le=MAX_INT)


class RemoveRequest(StrictModel):
    """What to delete of a model."""

    not_fetched: bool = False


async def health(env: Env, request: web.Request) -> web.Response:
    """Answer 503 while the node is stopping or stuck, for load balancers; "full", it serves the models that it has."""
    answer = env.gateway.monitor.health()
    if request.app[IN_FLIGHT].stopping:
        answer["status"] = "stopping"
    return web.json_response(answer, status=503 if answer["status"] in ("stopping", "stuck") else 200)


async def show(tell: Callable[[], Any], _request: web.Request) -> web.Response:
    return web.json_response(tell())


async def load(env: Env, request: web.Request) -> web.Response:
    """Load a model for good. The body may be empty."""
    body = await env.read(request, LoadRequest) if request.can_read_body else LoadRequest()
    wish = Wish(named=True, stages=body.stages, context=body.context)
    return await _run(env, LoadModel(request.match_info["model"], wish))


async def unload(env: Env, request: web.Request) -> web.Response:
    return await _run(env, UnloadModel(request.match_info["model"]))


async def pull(env: Env, request: web.Request) -> web.StreamResponse:
    """Stream the progress of a download."""
    events = request[STREAM] = EventStream(request, env.timing, Sse())
    async with events.kept_alive(), aclosing(fetch_model(env, request, request.match_info["model"])) as progress:
        async for each in progress:
            await events.send(each._asdict())
        await events.done()
    return events.response


async def remove(env: Env, request: web.Request) -> web.Response:
    """Delete a model's files. The body may be empty."""
    body = await env.read(request, RemoveRequest) if request.can_read_body else RemoveRequest()
    model, freed = await env.gateway.disk.remove(request.match_info["model"], not_fetched=body.not_fetched)
    return web.json_response({"model": model, "bytes": freed})


async def describe(env: Env, request: web.Request) -> web.Response:
    """What the small files of a model tell whoever talks to it."""
    model = await env.gateway.models.describe(request.match_info["model"])
    return web.json_response(
        {
            "model": model.entry.model,
            "context": model.entry.context,
            "parameters": model.entry.parameters,
            "sampling": dict(model.sampling),
            "thinks": thinks(model.template),
            "thinking_switch": has_thinking_switch(model.template),
        }
    )


async def search(env: Env, request: web.Request) -> web.Response:
    """Models of the hub by a part of their names, or the one of an id."""
    if model := request.query.get("model", ""):
        return web.json_response({"models": [asdict(await env.gateway.disk.about(model, request[CLIENT]))]})
    text = request.query.get("search", "").strip()
    if not 0 < len(text) <= MAX_NAME_CHARS:
        raise BadRequest(f"'search' should have 1 to {MAX_NAME_CHARS} characters.", param="search")
    found = await env.gateway.disk.search(text, request[CLIENT])
    return web.json_response({"models": [asdict(model) for model in found]})


async def set_draining(env: Env, request: web.Request, *, draining: bool) -> web.Response:
    return await _run(env, DrainNode(request.match_info["node"], draining))


async def _run(env: Env, command: Command) -> web.Response:
    match await env.gateway.commands.run(command):
        case DrainNode(node, draining):
            return web.json_response({"node": node, "draining": draining})
        case LoadModel(model) | UnloadModel(model) | KeepModel(model):
            return web.json_response({"model": model})
