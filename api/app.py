"""The HTTP application: routes, and the one place where errors become responses."""

import logging
from collections.abc import Collection
from functools import partial

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from api import admin, chat, completions, embeddings, models
from api.backend import Backend
from api.cors import Cors
from api.errors import describe, error_object
from api.response import STREAM, Gateway
from api.stream import EventStream, Pace
from node.core.errors import PippinError

log = logging.getLogger(__name__)

BODY_LIMIT = 32 * 2**20
"""Bytes; the longest prompts of today's models are some 4 MB."""


def create_app(
    backend: Backend,
    *,
    cors_origins: Collection[str] = ("*",),
    body_limit: int = BODY_LIMIT,
    pace: Pace | None = None,
) -> web.Application:
    """Run it with `handler_cancellation=True`: a client that hangs up must end its generation."""
    cors = Cors(cors_origins)
    gateway = Gateway(backend, pace or Pace())
    app = web.Application(client_max_size=body_limit, middlewares=[_preflights(cors), answer_errors])
    app.on_response_prepare.append(cors.on_prepare)
    routes = app.router
    for prefix in ("/v1", ""):
        routes.add_post(f"{prefix}/chat/completions", partial(chat.create, gateway))
        routes.add_post(f"{prefix}/completions", partial(completions.create, gateway))
        routes.add_post(f"{prefix}/embeddings", partial(embeddings.create, gateway))
        routes.add_get(f"{prefix}/models", partial(models.index, gateway))
        routes.add_get(f"{prefix}/models/{{id:.+}}", partial(models.show, gateway))
    routes.add_get("/health", partial(admin.health, gateway))
    routes.add_get("/cluster/status", partial(admin.cluster_status, gateway))
    routes.add_post("/cluster/nodes/{node}/drain", partial(admin.drain, gateway))
    routes.add_post("/cluster/nodes/{node}/undrain", partial(admin.undrain, gateway))
    return app


def _preflights(cors: Cors) -> Middleware:
    @web.middleware
    async def answer_preflights(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method == hdrs.METH_OPTIONS:
            return cors.preflight(request)
        return await handler(request)

    return answer_preflights


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure becomes an error object: as a response, or as the last event of a stream that has begun."""
    headers: dict[str, str] = {}
    try:
        return await handler(request)
    except PippinError as error:
        status, body = error.status, describe(error)
        if error.retry_after is not None:
            headers[hdrs.RETRY_AFTER] = str(error.retry_after)
    except web.HTTPException as error:
        status, body = error.status, error_object(error.status, _sentence(request, error))
        if hdrs.ALLOW in error.headers:
            headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
    except ConnectionError:
        raise  # there is nobody left to tell
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        status, body = 500, error_object(500, "The server failed. Its log says why.", code="internal_error")
    stream: EventStream | None = request.get(STREAM)
    if stream is None or not stream.response.prepared:
        return web.json_response(body, status=status, headers=headers)
    await stream.send(body)
    return stream.response


def _sentence(request: web.Request, error: web.HTTPException) -> str:
    match error.status:
        case 404:
            return f"There is no {request.path} here."
        case 405:
            return f"{request.path} does not take {request.method}."
        case _:
            return error.text or error.reason
