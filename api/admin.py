"""What operators ask: is this node alive, what does it run, how is the cluster, and that a node be taken out of use."""

from aiohttp import web

from api.drain import DRAIN
from api.response import Gateway
from node import PROTOCOL, __version__


async def health(gateway: Gateway, request: web.Request) -> web.Response:
    """503 from the moment the node was told to stop, so that a load balancer sends nothing more."""
    if request.app[DRAIN].begun:
        return web.json_response({**gateway.backend.health(), "status": "stopping"}, status=503)
    return web.json_response(gateway.backend.health())


async def version(_request: web.Request) -> web.Response:
    return web.json_response({"version": __version__, "protocol": PROTOCOL})


async def cluster_status(gateway: Gateway, _request: web.Request) -> web.Response:
    return web.json_response(gateway.backend.status())


async def drain(gateway: Gateway, request: web.Request) -> web.Response:
    return web.json_response(await gateway.backend.drain(request.match_info["node"], draining=True))


async def undrain(gateway: Gateway, request: web.Request) -> web.Response:
    return web.json_response(await gateway.backend.drain(request.match_info["node"], draining=False))
