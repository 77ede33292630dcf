"""What operators ask: is this node alive, what does it run, how is the cluster, and that a node be taken out of use."""

from aiohttp import web

from api.drain import DRAIN
from api.response import Env
from node import PROTOCOL, __version__


async def health(env: Env, request: web.Request) -> web.Response:
    """503 from the moment the node was told to stop, so that a load balancer sends nothing more; or while it is stuck."""
    told = env.backend.health()
    if request.app[DRAIN].begun:
        told["status"] = "stopping"
    return web.json_response(told, status=200 if told["status"] == "ok" else 503)


async def version(_request: web.Request) -> web.Response:
    return web.json_response({"version": __version__, "protocol": PROTOCOL})


async def cluster_status(env: Env, _request: web.Request) -> web.Response:
    return web.json_response(env.backend.status())


async def drain(env: Env, request: web.Request) -> web.Response:
    return web.json_response(await env.backend.drain(request.match_info["node"], draining=True))


async def undrain(env: Env, request: web.Request) -> web.Response:
    return web.json_response(await env.backend.drain(request.match_info["node"], draining=False))
