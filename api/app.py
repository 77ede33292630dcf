"""The HTTP application: routes, and the one place where errors become responses."""

import contextlib
import logging
import re
from collections.abc import Collection, Iterator
from functools import partial

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from api.admin import logs, tokenize
from api.admin import routes as admin
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
from api.http.in_flight import IN_FLIGHT, RequestsInFlight
from api.http.limits import BODY_S, FOLLOWERS, FOLLOWERS_OF_ONE, MAX_BODY
from api.http.metrics import ANYTHING_ELSE, Metrics
from api.http.stream import EventStream, StreamTiming
from api.ollama import disk, embedding
from api.ollama import generation as ollama
from api.ollama import models as ollama_models
from api.openai import chat, completions, embeddings, models, rerank
from api.page.routes import FILES as PAGE
from api.page.routes import page_routes
from api.responses.background import Background
from api.responses.keeper import KEEPER, Keeper
from api.responses.routes import Responses
from api.surfaces import by_client, error_writer
from node import PROTOCOL, __version__
from node.core.errors import PippinError, ShuttingDown, Unauthorized
from node.core.followers import Followers
from node.gateway.gateway import Gateway

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", *PAGE})
"""Paths that need no key: load balancers, supervisors and addresses typed into a browser have none, and the answers
contain nothing confidential.
"""
GET, POST, DELETE = hdrs.METH_GET, hdrs.METH_POST, hdrs.METH_DELETE


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
    cors, in_flight, counted = Cors(cors_origins, names, keyed=keyed), RequestsInFlight(), Metrics(gateway.monitor)
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
    app.on_response_prepare.extend((cors.on_prepare, add_request_id, _keep_type))
    env = Env(gateway, counted, timing or StreamTiming(), bodies)
    app[KEEPER] = Keeper(Background(env, in_flight), bodies, gateway.peers)
    responses = Responses(env, app[KEEPER])
    app.on_cleanup.append(responses.end)
    both = list(_model_routes(env, responses))
    for method, path, handler in (
        *((method, f"/v1{path}", handler) for method, path, handler in both),
        *both,
        *_own_routes(env, ollama_port),
        *_ollama_routes(env, cors),
    ):
        # With add_get, HEAD is answered as well.
        add = app.router.add_get if method == GET else partial(app.router.add_route, method)
        # By default aiohttp asks for the body, or refuses the `Expect` header, before any middleware runs.
        add(path, handler, expect_handler=leave_to_gate)
    _add_fallbacks(app.router)
    return app


async def _keep_type(_request: web.BaseRequest, response: web.StreamResponse) -> None:
    """A browser must not take what a model or a stranger wrote for markup, whatever it looks like."""
    response.headers["X-Content-Type-Options"] = "nosniff"


Route = tuple[str, str, Handler]
"""Method, path and handler."""


def _model_routes(env: Env, responses: Responses) -> Iterator[Route]:
    """OpenAI's and Anthropic's, which are also found below `/v1`."""
    yield POST, "/chat/completions", partial(chat.create, env)
    yield POST, "/completions", partial(completions.create, env)
    yield POST, "/embeddings", partial(embeddings.create, env)
    yield POST, "/rerank", partial(rerank.create, env)
    yield POST, "/score", _no_scores
    yield POST, "/tokenize", partial(tokenize.tokenize, env)
    yield POST, "/detokenize", partial(tokenize.detokenize, env)
    yield GET, "/models", by_client(partial(models.index, env), partial(anthropic_models.index, env))
    yield GET, "/models/{id:.+}", by_client(partial(models.show, env), partial(anthropic_models.show, env))
    yield POST, "/responses", responses.create
    yield POST, "/responses/input_tokens", responses.count
    yield POST, "/responses/compact", _no_compaction
    yield GET, "/responses/{id}", responses.show
    yield DELETE, "/responses/{id}", responses.delete
    yield POST, "/responses/{id}/cancel", responses.cancel
    yield GET, "/responses/{id}/input_items", responses.input_items
    yield POST, "/messages", partial(messages.create, env)
    yield POST, "/messages/count_tokens", partial(messages.count, env)


def _own_routes(env: Env, ollama_port: int | None) -> Iterator[Route]:
    yield GET, "/health", partial(admin.health, env)
    yield GET, "/version", partial(admin.show, lambda: {"version": __version__, "protocol": PROTOCOL})
    yield GET, "/metrics", env.metrics.show
    yield GET, "/cluster/status", partial(admin.show, env.gateway.monitor.status)
    yield GET, "/cluster/logs", partial(logs.show, env.gateway.peers, Followers(FOLLOWERS, FOLLOWERS_OF_ONE))
    yield GET, "/cluster/models", partial(admin.show, env.gateway.models.overview)
    yield GET, "/cluster/hub", partial(admin.search, env)
    yield POST, "/cluster/models/{model:.+}/load", partial(admin.load, env)
    yield POST, "/cluster/models/{model:.+}/unload", partial(admin.unload, env)
    yield POST, "/cluster/models/{model:.+}/pull", partial(admin.pull, env)
    yield GET, "/cluster/models/{model:.+}", partial(admin.describe, env)
    yield DELETE, "/cluster/models/{model:.+}", partial(admin.remove, env)
    yield POST, "/cluster/nodes/{node}/drain", partial(admin.set_draining, env, draining=True)
    yield POST, "/cluster/nodes/{node}/undrain", partial(admin.set_draining, env, draining=False)
    for path, show in page_routes():
        yield GET, path, ollama_models.greeting(show, ollama_port) if path == "/" else show
    yield POST, "/v2/rerank", partial(rerank.create, env)  # Cohere's


def _ollama_routes(env: Env, cors: Cors) -> Iterator[Route]:
    for path in ("chat", "generate"):
        yield POST, f"/api/{path}", partial(ollama.generate, env, cors.check_named, chat=path == "chat")
    yield POST, "/api/embed", partial(embedding.create, env, cors.check_named)
    yield POST, "/api/embeddings", partial(embedding.create_older, env, cors.check_named)
    yield GET, "/api/tags", partial(ollama_models.tags, env)
    yield GET, "/api/ps", partial(ollama_models.ps, env)
    yield POST, "/api/show", partial(ollama_models.show, env)
    yield GET, "/api/version", ollama_models.version
    yield POST, "/api/pull", partial(disk.pull, env)
    yield DELETE, "/api/delete", partial(disk.delete, env)
    for path, hint in disk.REFUSED.items():
        yield POST, path, partial(disk.refuse, hint)


def _add_fallbacks(router: web.UrlDispatcher) -> None:
    """Answer 404 and 405: aiohttp's own responses are plain text if the request has an `Expect` header."""
    for resource in router.resources():
        assert isinstance(resource, web.Resource)
        resource.add_route(ANYTHING_ELSE, _wrong_method, expect_handler=leave_to_gate)
    router.add_route(ANYTHING_ELSE, "/{path:.*}", _nothing_here, expect_handler=leave_to_gate)


async def _wrong_method(request: web.Request) -> web.StreamResponse:
    if request.headers.get(hdrs.UPGRADE, "").lower() == "websocket":
        raise EndpointUnsupported(
            f"{request.path} is not supported by WebSocket.",
            hint="Send each request by POST; with 'stream': true its events come one by one.",
        )
    routes = request.match_info.route.resource or ()
    raise web.HTTPMethodNotAllowed(request.method, {route.method for route in routes} - {ANYTHING_ELSE})


async def _no_scores(request: web.Request) -> web.StreamResponse:
    raise EndpointUnsupported(
        f"{request.path} is not supported: it is of vLLM alone.",
        hint="Have documents scored with /v1/rerank, or compare embeddings (/v1/embeddings).",
    )


async def _no_compaction(_request: web.Request) -> web.StreamResponse:
    raise EndpointUnsupported(
        "/v1/responses/compact is not supported: only OpenAI can read what it returns.",
        hint="Send the whole conversation, with 'truncation': 'auto' if it may get too long.",
    )


async def _nothing_here(request: web.Request) -> web.StreamResponse:
    """404; but where a base URL was written with a slash too many, the client is sent to the path that it means, as FastAPI and Gin
    do for one at the end.
    """
    path = "/" + re.sub("//+", "/", request.rel_url.raw_path).strip("/")
    if path != request.rel_url.raw_path:
        meant = request.rel_url.with_path(path, encoded=True, keep_query=True)
        found = await request.app.router.resolve(request.clone(rel_url=meant))
        if found.handler is not _nothing_here:
            raise web.HTTPTemporaryRedirect(meant)
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
        path, status = request.path, error.status
        said = {404: f"There is no {path} here.", 405: f"{path} does not take {request.method}."}.get(status)
        body = write(status, said or error.text or error.reason)
        headers |= {name: error.headers[name] for name in (hdrs.ALLOW, hdrs.LOCATION) if name in error.headers}
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
        await stream.send(body)
    return stream.response
