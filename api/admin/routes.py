"""Endpoints for operators: health, version, cluster status, models, and draining of nodes."""

from contextlib import aclosing
from functools import partial

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from api.chat.env import STREAM, Env
from api.chat.schema import MAX_INT, parse
from api.http.callers import CLIENT
from api.http.in_flight import IN_FLIGHT
from api.http.stream import EventStream
from node import PROTOCOL, __version__
from node.core.errors import ShuttingDown


class LoadRequest(BaseModel):
    """How to place a model; see node.core.models.Wish."""

    model_config = ConfigDict(strict=True)

    stages: int = Field(default=0, ge=1, le=1024)
    context: int = Field(default=0, ge=1, le=MAX_INT)


async def health(env: Env, request: web.Request) -> web.Response:
    """Answer 503 while the node is stopping or stuck, so that a load balancer sends it no more requests.

    One where some work waits for long ("full") serves the models that are loaded.
    """
    answer = env.backend.health()
    if request.app[IN_FLIGHT].stopping:
        answer["status"] = "stopping"
    return web.json_response(answer, status=503 if answer["status"] in ("stopping", "stuck") else 200)


async def version(_request: web.Request) -> web.Response:
    return web.json_response({"version": __version__, "protocol": PROTOCOL})


async def cluster_status(env: Env, _request: web.Request) -> web.Response:
    return web.json_response(env.backend.status())


async def cluster_models(env: Env, _request: web.Request) -> web.Response:
    return web.json_response(env.backend.model_list())


async def load(env: Env, request: web.Request) -> web.Response:
    """Load a model for good. The body may be empty."""
    body = await env.bodies.read(request, partial(parse, LoadRequest)) if request.can_read_body else LoadRequest()
    return web.json_response(
        await env.backend.load(request.match_info["model"], stages=body.stages, context=body.context)
    )


async def unload(env: Env, request: web.Request) -> web.Response:
    return web.json_response(await env.backend.unload(request.match_info["model"]))


async def pull(env: Env, request: web.Request) -> web.StreamResponse:
    """Stream the progress of a download. Raises ShuttingDown as soon as the node is stopping: the next one goes on there."""
    events = request[STREAM] = EventStream(request, env.timing)
    async with (
        events.kept_alive(),
        aclosing(env.backend.pull(request.match_info["model"], request[CLIENT])) as progress,
    ):
        async for each in progress:
            if request.app[IN_FLIGHT].stopping:
                raise ShuttingDown("This node is stopping.", hint="Fetch the model again later: what has come is kept.")
            await events.send(each)
        await events.done()
    return events.response


async def remove(env: Env, request: web.Request) -> web.Response:
    return web.json_response(await env.backend.remove(request.match_info["model"]))


async def set_draining(env: Env, request: web.Request, *, draining: bool) -> web.Response:
    return web.json_response(await env.backend.set_draining(request.match_info["node"], draining=draining))
