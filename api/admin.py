"""Endpoints for operators: health, version, cluster status, and draining of nodes."""

from aiohttp import web

from api.in_flight import IN_FLIGHT
from api.response import Env
from node import PROTOCOL, __version__


async def health(env: Env, request: web.Request) -> web.Response:
    """Answer 503 while the node is stopping or stuck, so that a load balancer sends it no more requests."""
    answer = env.backend.health()
    if request.app[IN_FLIGHT].stopping:
        answer["status"] = "stopping"
    return web.json_response(answer, status=200 if answer["status"] == "ok" else 503)


async def version(_request: web.Request) -> web.Response:
    return web.json_response({"version": __version__, "protocol": PROTOCOL})


async def cluster_status(env: Env, _request: web.Request) -> web.Response:
    return web.json_response(env.backend.status())


async def set_draining(env: Env, request: web.Request, *, draining: bool) -> web.Response:
    return web.json_response(await env.backend.set_draining(request.match_info["node"], draining=draining))
