"""What operators ask: is this node alive, and how is the cluster."""

from aiohttp import web

from api.response import Gateway


async def health(gateway: Gateway, _request: web.Request) -> web.Response:
    return web.json_response(gateway.backend.health())


async def cluster_status(gateway: Gateway, _request: web.Request) -> web.Response:
    return web.json_response(gateway.backend.status())
