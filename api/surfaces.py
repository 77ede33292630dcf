"""The surfaces of the server, which are the APIs that it speaks: OpenAI's, Anthropic's and Ollama's.

Each writes errors in its own way. Requests that are refused before any handler runs have a surface, too.
"""

from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from api.anthropic import errors as anthropic
from api.http import errors
from api.http.json_object import Json
from api.ollama import answer as ollama


def error_writer(request: web.BaseRequest) -> Callable[..., Json]:
    """How the surface that the request is for writes errors, as in `api.http.errors.error_object`."""
    if request.path.startswith("/api/"):
        return ollama.error_object
    return anthropic.error_object if _is_of_anthropic(request) else errors.error_object


def by_client(others: Handler, anthropics: Handler) -> Handler:
    """The handler of a path that is on OpenAI's surface and on Anthropic's."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (anthropics if _is_of_anthropic(request) else others)(request)

    return answer


def _is_of_anthropic(request: web.BaseRequest) -> bool:
    """Whether the request is for Anthropic's API, or one of its clients sent it."""
    return request.path.startswith(("/v1/messages", "/messages")) or "anthropic-version" in request.headers
