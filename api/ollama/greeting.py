"""What Ollama's clients find at `/`, where browsers find the page."""

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler


def greeting(page: Handler, port: int | None) -> Handler:
    """A handler of `/` that answers Ollama's clients, and whoever is no browser at the Ollama port, as Ollama does.

    `page`: the handler for all others. `port`: None if there is no Ollama port.
    """

    async def greet(request: web.Request) -> web.StreamResponse:
        is_theirs = request.headers.get(hdrs.USER_AGENT, "").startswith("ollama") or _port(request) == port
        if is_theirs and "text/html" not in request.headers.get(hdrs.ACCEPT, ""):
            return web.Response(text="Ollama is running")
        return await page(request)

    return greet


def _port(request: web.BaseRequest) -> int:
    """The port that the request came to; -1 if its connection is gone."""
    own = request.get_extra_info("sockname")
    return own[1] if own else -1
