"""The HTTP application: routes, and the one place where errors become responses."""

import contextlib
import logging
from collections.abc import Callable, Collection
from functools import partial

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from api.admin import logs, metrics, tokenize
from api.admin import routes as admin
from api.admin.metrics import ANYTHING_ELSE, Metrics
from api.anthropic import models as anthropic_models
from api.anthropic import routes as messages
from api.chat.env import STREAM, Env
from api.http.access_log import REQUEST_ID, add_request_id, log_request
from api.http.auth import ApiKeys
from api.http.body import Bodies
from api.http.callers import Callers
from api.http.cors import Cors
from api.http.errors import EndpointUnsupported
from api.http.gate import gate, leave_to_gate
from api.http.in_flight import IN_FLIGHT, InFlight
from api.http.limits import BODY_S, FOLLOWERS, FOLLOWERS_OF_ONE, MAX_BODY
from api.http.stream import EventStream, StreamTiming
from api.ollama.greeting import greeting
from api.ollama.routes import ollama_routes
from api.openai import chat, completions, embeddings, models
from api.page.routes import FILES as PAGE
from api.page.routes import page_routes
from api.responses.background import Background
from api.responses.keeper import KEEPER, Keeper
from api.responses.routes import Responses
from api.surfaces import by_client, error_writer
from node.core.errors import PippinError, ShuttingDown, Unauthorized
from node.core.followers import Followers
from node.gateway.gateway import Gateway

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", *PAGE})
"""Paths that need no key: load balancers, supervisors and addresses typed into a browser have none, and the answers
contain nothing confidential.
"""


def create_app(
    gateway: Gateway,
    *,
    api_keys: Collection[str] = (),
    cors_origins: Collection[str] = (),
    names: Collection[str] = (),
    open_api: bool = False,
    body_limit: int = MAX_BODY,
    body_s: float = BODY_S,
    timing: StreamTiming | None = None,
    ollama_port: int | None = None,
) -> web.Application:
    """Create the application. Call it inside a running event loop, and serve the application with an ApiServer. Its
    KEEPER answers other nodes.

    Without `api_keys`, requests are accepted from private-network addresses only, or with `open_api` from any address.
    `cors_origins`: origins whose pages may use the API, in addition to local ones. `names`: host names of this node, in
    addition to local ones. `body_limit`: bytes. `body_s`: seconds allowed for a body, before the allowance for its
    size. `ollama_port`: port at which Ollama's clients ask; None: there is none for them.
    """
    keyed = bool(api_keys)
    # The `Host` check prevents DNS rebinding. It adds nothing where every request needs a key; where any page may use the
    # API, `Cors` makes it for what is left to named pages.
    callers = Callers(anywhere=keyed or open_api, names=None if keyed or "*" in cors_origins else names)
    cors, in_flight, counted = Cors(cors_origins, names, keyed=keyed), InFlight(), Metrics(gateway.monitor)
    bodies = Bodies(body_limit, body_s)
    app = web.Application(
        client_max_size=body_limit,
        middlewares=[
            log_request,
            counted.middleware,
            answer_errors,
            gate(callers, cors, ApiKeys(api_keys, OPEN_PATHS), in_flight, bodies),
        ],
    )
    app[IN_FLIGHT] = in_flight
    app.on_response_prepare.append(cors.on_prepare)
    app.on_response_prepare.append(add_request_id)
    app.on_response_prepare.append(_keep_type)
    env = Env(gateway, counted, timing or StreamTiming(), bodies)
    background = Background(env, in_flight)
    app[KEEPER] = Keeper(background, bodies, gateway.peers)
    responses = Responses(env, background, app[KEEPER])
    app.on_cleanup.append(responses.end)
    _add_openai_routes(app.router, env, responses)
    _add_anthropic_routes(app.router, env)
    _add_refusals(app.router)
    _add_own_routes(app.router, env, counted)
    _add_ollama_routes(app.router, env, cors)
    _add_page(app.router, ollama_port)
    _add_fallbacks(app.router)
    return app


async def _keep_type(_request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Signal handler. A browser must not take what a model or a stranger wrote for markup, whatever it looks like."""
    response.headers["X-Content-Type-Options"] = "nosniff"


def _add_openai_routes(router: web.UrlDispatcher, env: Env, responses: Responses) -> None:
    for prefix in ("/v1", ""):
        _add(router.add_post, f"{prefix}/chat/completions", partial(chat.create, env))
        _add(router.add_post, f"{prefix}/completions", partial(completions.create, env))
        _add(router.add_post, f"{prefix}/embeddings", partial(embeddings.create, env))
        _add(router.add_post, f"{prefix}/tokenize", partial(tokenize.tokenize, env))
        _add(router.add_post, f"{prefix}/detokenize", partial(tokenize.detokenize, env))
        for path, handler, theirs in (
            ("/models", models.index, anthropic_models.index),
            ("/models/{id:.+}", models.show, anthropic_models.show),
        ):
            _add(router.add_get, f"{prefix}{path}", by_client(partial(handler, env), partial(theirs, env)))
        _add(router.add_post, f"{prefix}/responses", responses.create)
        _add(router.add_get, f"{prefix}/responses/{{id}}", responses.show)
        _add(router.add_delete, f"{prefix}/responses/{{id}}", responses.delete)
        _add(router.add_post, f"{prefix}/responses/{{id}}/cancel", responses.cancel)
        _add(router.add_get, f"{prefix}/responses/{{id}}/input_items", responses.input_items)


def _add_ollama_routes(router: web.UrlDispatcher, env: Env, cors: Cors) -> None:
    add = {hdrs.METH_GET: router.add_get, hdrs.METH_POST: router.add_post, hdrs.METH_DELETE: router.add_delete}
    for method, path, handler in ollama_routes(env, cors.check_change):
        _add(add[method], path, handler)


def _add_anthropic_routes(router: web.UrlDispatcher, env: Env) -> None:
    for prefix in ("/v1", ""):
        _add(router.add_post, f"{prefix}/messages", partial(messages.create, env))
        _add(router.add_post, f"{prefix}/messages/count_tokens", partial(messages.count, env))


def _add_page(router: web.UrlDispatcher, ollama_port: int | None) -> None:
    for path, show in page_routes().items():
        _add(router.add_get, path, greeting(show, ollama_port) if path == "/" else show)


def _add_refusals(router: web.UrlDispatcher) -> None:
    """Endpoints of servers such as vLLM, refused with the reason: clients would take a bare 404 for a wrong URL."""
    for path in ("/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank"):
        _add(router.add_post, path, _no_scores)


def _add_own_routes(router: web.UrlDispatcher, env: Env, counted: Metrics) -> None:
    _add(router.add_get, "/health", partial(admin.health, env))
    _add(router.add_get, "/version", admin.version)
    _add(router.add_get, "/metrics", partial(metrics.show, counted))
    _add(router.add_get, "/cluster/status", partial(admin.cluster_status, env))
    _add(router.add_get, "/cluster/logs", partial(logs.show, env.gateway.peers, Followers(FOLLOWERS, FOLLOWERS_OF_ONE)))
    _add(router.add_get, "/cluster/models", partial(admin.cluster_models, env))
    _add(router.add_post, "/cluster/models/{model:.+}/load", partial(admin.load, env))
    _add(router.add_post, "/cluster/models/{model:.+}/unload", partial(admin.unload, env))
    _add(router.add_post, "/cluster/models/{model:.+}/pull", partial(admin.pull, env))
    _add(router.add_delete, "/cluster/models/{model:.+}", partial(admin.remove, env))
    _add(router.add_post, "/cluster/nodes/{node}/drain", partial(admin.set_draining, env, draining=True))
    _add(router.add_post, "/cluster/nodes/{node}/undrain", partial(admin.set_draining, env, draining=False))


def _add_fallbacks(router: web.UrlDispatcher) -> None:
    """Answer 404 and 405: aiohttp's own responses are plain text if the request has an `Expect` header."""
    for resource in router.resources():
        assert isinstance(resource, web.Resource)
        resource.add_route(ANYTHING_ELSE, _wrong_method, expect_handler=leave_to_gate)
    router.add_route(ANYTHING_ELSE, "/{path:.*}", _nothing_here, expect_handler=leave_to_gate)


def _add(add_method: Callable[..., object], path: str, handler: Handler) -> None:
    # By default aiohttp asks for the body, or refuses the `Expect` header, before any middleware runs.
    add_method(path, handler, expect_handler=leave_to_gate)


async def _wrong_method(request: web.Request) -> web.StreamResponse:
    routes = request.match_info.route.resource or ()
    raise web.HTTPMethodNotAllowed(request.method, {route.method for route in routes} - {ANYTHING_ELSE})


async def _no_scores(request: web.Request) -> web.StreamResponse:
    raise EndpointUnsupported(
        f"{request.path} is not supported: the models generate text, and none has the head of a reranker, which scores "
        "pairs of texts.",
        hint="Compare embeddings of the texts (/v1/embeddings).",
    )


async def _nothing_here(_request: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every failure into an error object: a response, or the last event of a stream that has begun."""
    headers: dict[str, str] = {}
    write = error_writer(request)
    try:
        return await handler(request)
    except PippinError as error:
        status, body = error.status, write(error.status, str(error), code=error.code, param=error.param)
        if error.retry_after is not None:
            headers[hdrs.RETRY_AFTER] = str(error.retry_after)
        if isinstance(error, ShuttingDown):
            headers[hdrs.CONNECTION] = "close"
        if isinstance(error, Unauthorized):
            headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    except web.HTTPException as error:
        status, body = error.status, write(error.status, _sentence(request, error))
        if hdrs.ALLOW in error.headers:
            headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
    except ConnectionError:  # the client is gone; raised, this would be logged as a server failure
        gone: EventStream | None = request.get(STREAM)
        return gone.response if gone else web.Response()
    except Exception:
        log.exception("%s %s %s failed", request[REQUEST_ID], request.method, request.path)
        status, body = 500, write(500, "The server failed. Its log says why.", code="internal_error")
    stream: EventStream | None = request.get(STREAM)
    if stream is None or not stream.response.prepared:
        return web.json_response(body, status=status, headers=headers)
    with contextlib.suppress(ConnectionError):  # the client may be gone by now, too
        await stream.fail(body)
    return stream.response


def _sentence(request: web.Request, error: web.HTTPException) -> str:
    match error.status:
        case 404:
            return f"There is no {request.path} here."
        case 405:
            return f"{request.path} does not take {request.method}."
        case _:
            return error.text or error.reason
