"""Ollama's `keep_alive`: how long a model stays in memory after a request. The head decides, and outlives this gateway."""

import asyncio
import logging
from collections.abc import Callable

from aiohttp import web

from api.chat.env import Env
from node.core.commands import KeepModel
from node.core.errors import PippinError

log = logging.getLogger(__name__)

FOREVER_S = 1e9
"""Seconds that stand for a negative `keep_alive` of a request with a prompt."""
CheckChange = Callable[[web.BaseRequest], None]
"""Raises OriginNotAllowed for requests that may not change the cluster."""


async def keep(env: Env, check_change: CheckChange, request: web.Request, model: str, keep_alive: float | None) -> None:
    """Tell the head how long the model of a request may be idle, once the request has done its work: told earlier, the
    model could be unloaded before the head sees the request, and the word would be lost with it. The answer comes also
    if that can't be told, or is not for the caller to say.
    """
    if keep_alive is None:
        return
    try:
        check_change(request)
        async with asyncio.timeout(1.0):  # the head may be about to be replaced
            await env.gateway.commands.run(
                KeepModel(model, FOREVER_S if keep_alive < 0 else min(keep_alive, FOREVER_S))
            )
    except (PippinError, TimeoutError) as error:
        log.info("the keep_alive of a request to %s is ignored: %s", model, error or "the head does not answer")
