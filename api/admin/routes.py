"""Endpoints for operators: health, version, cluster status, models, and draining of nodes."""

from contextlib import aclosing
from functools import partial

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from api.chat.env import STREAM, Env
from api.chat.schema import MAX_INT, parse
from api.http.callers import CLIENT
from api.http.in_flight import IN_FLIGHT
from api.http.stream import EventStream, Sse
from node import PROTOCOL, __version__
from node.core.commands import Command, DrainNode, LoadModel, UnloadModel
from node.core.errors import ShuttingDown
from node.core.models import Wish


class LoadRequest(BaseModel):
    """How to place a model; see node.core.models.Wish."""

    model_config = ConfigDict(strict=True)

    stages: int = Field(default=0, ge=1, le=1024)
    context: int = Field(default=0, ge=1, le=MAX_INT)


async def health(env: Env, request: web.Request) -> web.Response:
    """Answer 503 while the node is stopping or stuck, so that a load balancer sends it no more requests.

    One where some work waits for long ("full") serves the models that are loaded.
    """
    answer = env.gateway.monitor.health()
    if request.app[IN_FLIGHT].stopping:
        answer["status"] = "stopping"
    return web.json_response(answer, status=503 if answer["status"] in ("stopping", "stuck") else 200)


async def version(_request: web.Request) -> web.Response:
    return web.json_response({"version": __version__, "protocol": PROTOCOL})


async def cluster_status(env: Env, _request: web.Request) -> web.Response:
    return web.json_response(env.gateway.monitor.status())


async def cluster_models(env: Env, _request: web.Request) -> web.Response:
    return web.json_response(env.gateway.models.overview())


async def load(env: Env, request: web.Request) -> web.Response:
    """Load a model for good. The body may be empty."""
    body = await env.bodies.read(request, partial(parse, LoadRequest)) if request.can_read_body else LoadRequest()
    wish = Wish(named=True, stages=body.stages, context=body.context)
    return await _run(env, LoadModel(request.match_info["model"], wish))


async def unload(env: Env, request: web.Request) -> web.Response:
    return await _run(env, UnloadModel(request.match_info["model"]))


async def pull(env: Env, request: web.Request) -> web.StreamResponse:
    """Stream the progress of a download. Raises ShuttingDown as soon as the node is stopping: the next one goes on there."""
    events = request[STREAM] = EventStream(request, env.timing, Sse())
    async with (
        events.kept_alive(),
        aclosing(env.gateway.disk.pull(request.match_info["model"], request[CLIENT])) as progress,
    ):
        async for each in progress:
            if request.app[IN_FLIGHT].stopping:
                raise ShuttingDown("This node is stopping.", hint="Fetch the model again later: what has come is kept.")
            await events.send(each._asdict())
        await events.done()
    return events.response


async def remove(env: Env, request: web.Request) -> web.Response:
    model, freed = await env.gateway.disk.remove(request.match_info["model"])
    return web.json_response({"model": model, "bytes": freed})


async def set_draining(env: Env, request: web.Request, *, draining: bool) -> web.Response:
    return await _run(env, DrainNode(request.match_info["node"], draining))


async def _run(env: Env, command: Command) -> web.Response:
    match await env.gateway.commands.run(command):
        case DrainNode(node, draining):
            return web.json_response({"node": node, "draining": draining})
        case LoadModel(model) | UnloadModel(model):
            return web.json_response({"model": model})
