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
    lines, number = recent.last(_lines(request))
    if request.query.get("follow") != "true":
        return web.Response(text=_text(lines), headers={"Cache-Control": "no-store"})
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})
    await response.prepare(request)
    quiet = 0
    while True:
        if lines or quiet % QUIET_LOOKS == 0:
            await response.write(_text(lines or [""]).encode())
        await asyncio.sleep(LOOK_S)
        lines, number = recent.since(number)
        quiet = 0 if lines else quiet + 1


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _lines(request: web.Request) -> int:
    text = request.query.get("lines", str(LINES))
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise BadRequest(f"'lines' is a number from 0 to {RECENT}.", param="lines")
    return int(text)
