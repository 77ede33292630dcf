"""The checks before a request's handler runs. Until they pass, the body is neither read nor asked for."""

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from api.http.auth import ApiKeys
from api.http.body import Bodies
from api.http.callers import CLIENT, Callers
from api.http.cors import READING, Cors
from api.http.in_flight import RequestsInFlight


def gate(callers: Callers, cors: Cors, keys: ApiKeys, in_flight: RequestsInFlight, bodies: Bodies) -> Middleware:
    """Raises NotAdmitted, HostNotAllowed, Unauthorized, OriginNotAllowed, ShuttingDown, and aiohttp's 413 and 417."""

    @web.middleware
    async def pass_gate(request: web.Request, handler: Handler) -> web.StreamResponse:
        callers.check(request)
        if request.method == hdrs.METH_OPTIONS:  # a browser's preflight cannot carry a key
            return cors.preflight(request)
        key = keys.check(request)
        request[CLIENT] = callers.client(request, key)
        cors.check(request, request.method)
        if request.method in READING:  # reads are served while the node is stopping, too
            return await handler(request)
        with in_flight.request(), bodies.account(request):
            if (size := request.content_length or 0) > bodies.limit:
                raise web.HTTPRequestEntityTooLarge(bodies.limit, size)
            await _ask_for_body(request)
            return await handler(request)

    return pass_gate


async def leave_to_gate(_request: web.Request) -> None:
    """An `expect_handler` that does nothing, in place of aiohttp's: the gate answers `Expect`."""


async def _ask_for_body(request: web.Request) -> None:
    expected = request.headers.get(hdrs.EXPECT)
    if expected is None or request.version < (1, 1):
        return
    if expected.lower() != "100-continue":
        raise web.HTTPExpectationFailed(text=f"This server cannot meet the expectation {expected[:40]!r}.")
    transport = request.transport
    if transport is not None:
        transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
