"""What operators ask: is this node alive, how is the cluster, and that a node be taken out of use."""

from aiohttp import web

from api.response import Gateway


async def health(gateway: Gateway, _request: web.Request) -> web.Response:
    return web.json_response(gateway.backend.health())


async def cluster_status(gateway: Gateway, _request: web.Request) -> web.Response:
    return web.json_response(gateway.backend.status())


async def drain(gateway: Gateway, request: web.Request) -> web.Response:
    return web.json_response(await gateway.backend.drain(request.match_info["node"], draining=True))


async def undrain(gateway: Gateway, request: web.Request) -> web.Response:
    return web.json_response(await gateway.backend.drain(request.match_info["node"], draining=False))
