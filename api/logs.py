"""GET /cluster/logs: the last lines of this node's log as text, and with `follow=true` those that come."""

import asyncio
import re

from aiohttp import web

from node.core.errors import BadRequest
from node.core.logs import RECENT, RecentLines

LINES = 200
LOOK_S = 0.5
"""Interval at which new lines are sent."""
QUIET_LOOKS = 20
"""An empty line is sent after so many looks without a line, so that a reader that is gone is noticed."""


async def show(recent: RecentLines, request: web.Request) -> web.StreamResponse:
    """Raises BadRequest."""
    number = recent.count - _lines(request)
    if request.query.get("follow") != "true":
        text = "".join(f"{line}\n" for line in recent.since(number))
        return web.Response(text=text, headers={"Cache-Control": "no-store"})
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})
    await response.prepare(request)
    quiet = 0
    while True:
        lines, number = recent.since(number), recent.count
        quiet = 0 if lines else quiet + 1
        if lines or quiet % QUIET_LOOKS == 0:
            await response.write("".join(f"{line}\n" for line in lines or [""]).encode())
        await asyncio.sleep(LOOK_S)


def _lines(request: web.Request) -> int:
    text = request.query.get("lines", str(LINES))
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise BadRequest(f"'lines' is a number from 0 to {RECENT}.", param="lines")
    return int(text)
