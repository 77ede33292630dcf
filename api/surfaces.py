"""The surfaces of the server, which are the APIs that it speaks: OpenAI's, Anthropic's and Ollama's.

Each writes errors in its own way. Requests that are refused before any handler runs have a surface, too.
"""

from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler

from api.anthropic import errors as anthropic_errors
from api.http import errors
from api.ollama import answer as ollama


class ErrorWriter(Protocol):
    def __call__(
        self, status: int, message: str, /, *, code: str | None = None, param: str | None = None
    ) -> dict[str, Any]:
        """An error object, ready for JSON."""


def error_writer(request: web.BaseRequest) -> ErrorWriter:
    """How the surface that the request is for writes errors."""
    if request.path.startswith("/api/"):
        return ollama.error_object
    if _is_of_anthropic(request):
        return anthropic_errors.error_object
    return errors.error_object


def by_client(others: Handler, anthropics: Handler) -> Handler:
    """The handler of a path that is on OpenAI's surface and on Anthropic's."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (anthropics if _is_of_anthropic(request) else others)(request)

    return answer


def _is_of_anthropic(request: web.BaseRequest) -> bool:
    """Whether the request is for Anthropic's API, or one of its clients sent it."""
    return request.path.startswith(("/v1/messages", "/messages")) or "anthropic-version" in request.headers
