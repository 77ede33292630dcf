"""GET /cluster/logs: the last lines of a node's log as text, and with `follow=true` those that come."""

import re
from contextlib import aclosing

from aiohttp import hdrs, web

from api.http.callers import CLIENT
from node.core.errors import BadRequest, PippinError
from node.core.followers import Followers
from node.core.logs import RECENT
from node.gateway.peers import Peers

LINES = 200


async def show(peers: Peers, followers: Followers, request: web.Request) -> web.StreamResponse:
    """`node`: the name or id of another node, which this one asks. Raises BadRequest, and what Peers.log raises."""
    node, lines = request.query.get("node", ""), request.query.get("lines", str(LINES))
    if not re.fullmatch(r"[0-9]{1,5}", lines):
        raise BadRequest(f"'lines' is a number from 0 to {RECENT}.", param="lines")
    count = min(int(lines), RECENT)
    if request.query.get("follow") == "true":
        return await _follow(peers, followers, node, count, request)
    async with aclosing(peers.log(node, count, follow=False)) as parts:
        text = "".join([_text(part) async for part in parts])
    return web.Response(text=text, headers={"Cache-Control": "no-store"})


async def _follow(
    peers: Peers, followers: Followers, node: str, count: int, request: web.Request
) -> web.StreamResponse:
    """An error that comes later than the first line, such as the end of the other node, is the last line."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})
    try:
        async with followers.place(request[CLIENT]), aclosing(peers.log(node, count, follow=True)) as parts:
            async for part in parts:
                if not response.prepared:
                    await response.prepare(request)
                if request.method == hdrs.METH_HEAD:
                    break
                await response.write(_text(part or [""]).encode())
    except PippinError as error:
        if not response.prepared:
            raise
        await response.write(_text([str(error)]).encode())
    return response


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
