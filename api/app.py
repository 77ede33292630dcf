"""The HTTP application: routes, and the one place where errors become responses."""

import contextlib
import logging
import uuid
from collections.abc import Collection
from functools import partial

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from api import admin, chat, completions, embeddings, metrics, models
from api.auth import ApiKeys
from api.backend import Backend
from api.body import Bodies
from api.callers import Callers
from api.cors import Cors
from api.drain import DRAIN, Drain
from api.errors import describe, error_object
from api.gate import gate, leave_to_gate
from api.limits import BODY_S, MAX_BODY
from api.metrics import ANYTHING_ELSE, Metered, Metrics
from api.response import STREAM, Env
from api.responses.background import Background
from api.responses.routes import Responses
from api.stream import EventStream, Pace
from node.core.errors import PippinError, ShuttingDown, Unauthorized

log = logging.getLogger(__name__)


def create_app(
    backend: Backend,
    *,
    api_keys: Collection[str] = (),
    cors_origins: Collection[str] = (),
    names: Collection[str] = (),
    open_api: bool = False,
    body_limit: int = MAX_BODY,
    body_s: float = BODY_S,
    pace: Pace | None = None,
) -> web.Application:
    """Create the application. Call it inside a running event loop, and serve the application with an ApiServer.

    Without `api_keys`, requests are accepted from private-network addresses only, or with `open_api` from any address.
    `cors_origins`: origins whose pages may use the API, in addition to local ones. `names`: host names of this node, in
    addition to local ones. `body_limit`: bytes. `body_s`: seconds allowed for a body, before the allowance for its
    size.
    """
    keyed = bool(api_keys)
    # The `Host` check prevents DNS rebinding. It adds nothing where any page may use the API or every request needs a
    # key.
    callers = Callers(anywhere=keyed or open_api, names=None if keyed or "*" in cors_origins else names)
    cors, drain, counted = Cors(cors_origins, names, keyed=keyed), Drain(), Metrics(backend)
    bodies = Bodies(body_limit, body_s)
    env = Env(Metered(backend, counted), pace or Pace(), bodies)
    app = web.Application(
        client_max_size=body_limit,
        middlewares=[counted.middleware, answer_errors, gate(callers, cors, ApiKeys(api_keys), drain, bodies)],
    )
    app[DRAIN] = drain
    app.on_response_prepare.append(cors.on_prepare)
    app.on_response_prepare.append(_number)
    # By default aiohttp asks for the body, or refuses the `Expect` header, before any middleware runs.
    post, get, delete = (
        partial(add, expect_handler=leave_to_gate)
        for add in (app.router.add_post, app.router.add_get, app.router.add_delete)
    )
    responses = Responses(env, Background(env.backend, drain))
    app.on_cleanup.append(responses.end)
    for prefix in ("/v1", ""):
        post(f"{prefix}/chat/completions", partial(chat.create, env))
        post(f"{prefix}/completions", partial(completions.create, env))
        post(f"{prefix}/embeddings", partial(embeddings.create, env))
        get(f"{prefix}/models", partial(models.index, env))
        get(f"{prefix}/models/{{id:.+}}", partial(models.show, env))
        post(f"{prefix}/responses", responses.create)
        get(f"{prefix}/responses/{{id}}", responses.show)
        delete(f"{prefix}/responses/{{id}}", responses.delete)
        post(f"{prefix}/responses/{{id}}/cancel", responses.cancel)
        get(f"{prefix}/responses/{{id}}/input_items", responses.input_items)
    get("/health", partial(admin.health, env))
    get("/version", admin.version)
    get("/metrics", partial(metrics.show, counted))
    get("/cluster/status", partial(admin.cluster_status, env))
    post("/cluster/nodes/{node}/drain", partial(admin.drain, env))
    post("/cluster/nodes/{node}/undrain", partial(admin.undrain, env))
    # aiohttp's own 404 and 405 responses are plain text if the request has an `Expect` header.
    for resource in app.router.resources():
        assert isinstance(resource, web.Resource)
        resource.add_route(ANYTHING_ELSE, _wrong_method, expect_handler=leave_to_gate)
    app.router.add_route(ANYTHING_ELSE, "/{path:.*}", _nothing_here, expect_handler=leave_to_gate)
    return app


async def _wrong_method(request: web.Request) -> web.StreamResponse:
    routes = request.match_info.route.resource or ()
    raise web.HTTPMethodNotAllowed(request.method, {route.method for route in routes} - {ANYTHING_ELSE})


async def _nothing_here(_request: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound


async def _number(_request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Add a request id, as OpenAI does; its clients show it with an error."""
    response.headers["X-Request-ID"] = f"req_{uuid.uuid4().hex}"


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every failure into an error object: a response, or the last event of a stream that has begun."""
    headers: dict[str, str] = {}
    try:
        return await handler(request)
    except PippinError as error:
        status, body = error.status, describe(error)
        if error.retry_after is not None:
            headers[hdrs.RETRY_AFTER] = str(error.retry_after)
        if isinstance(error, ShuttingDown):
            headers[hdrs.CONNECTION] = "close"
        if isinstance(error, Unauthorized):
            headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    except web.HTTPException as error:
        status, body = error.status, error_object(error.status, _sentence(request, error))
        if hdrs.ALLOW in error.headers:
            headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
    except ConnectionError:  # the client is gone; raised, this would be logged as a server failure
        gone: EventStream | None = request.get(STREAM)
        return gone.response if gone else web.Response()
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        status, body = 500, error_object(500, "The server failed. Its log says why.", code="internal_error")
    stream: EventStream | None = request.get(STREAM)
    if stream is None or not stream.response.prepared:
        return web.json_response(body, status=status, headers=headers)
    with contextlib.suppress(ConnectionError):  # the client may be gone by now, too
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
