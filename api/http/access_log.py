"""The id of each request: in its answer's headers, as OpenAI and Anthropic have it, and in a line of the log."""

import asyncio
import logging
import time
import uuid

from aiohttp import web
from aiohttp.typedefs import Handler

HEADER = "X-Request-ID"
ANTHROPIC_HEADER = "Request-Id"
REQUEST_ID = web.RequestKey("request_id", str)

log = logging.getLogger(__name__)


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


@web.middleware
async def log_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request an id; at level debug, log its end. Queries are left out, as they may hold a key."""
    request[REQUEST_ID] = new_request_id()
    begun, end = time.monotonic(), "failed"
    try:
        response = await handler(request)
    except asyncio.CancelledError:
        end = "left by its client"
        raise
    else:
        end = str(response.status)
        return response
    finally:
        seconds, size = time.monotonic() - begun, request.content_length or 0
        log.debug(
            "%s %s %s from %s: %s after %.3f s, %d bytes",
            *(request[REQUEST_ID], request.method, request.path, request.remote, end, seconds, size),
        )


async def add_request_id(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Signal handler. Clients show the id with an error."""
    response.headers[HEADER] = response.headers[ANTHROPIC_HEADER] = request.get(REQUEST_ID) or new_request_id()
