"""Error objects as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}`."""

from typing import Any

from api.http.limits import MAX_MESSAGE_CHARS, MAX_PARAM_CHARS
from node.core.errors import BadRequest, PippinError


class Unsupported(BadRequest):
    """A feature of OpenAI's API that this server lacks, refused where ignoring it would change the answer."""

    code = "unsupported"


class EndpointUnsupported(PippinError):
    """An endpoint of other servers that this one lacks."""

    code = "unsupported"
    status = 404


class WrongMediaType(BadRequest):
    """The body is not JSON, and its headers say so."""

    code = "unsupported_media_type"
    status = 415


class BodyTimeout(PippinError):
    """The body arrives too slowly."""

    code = "request_timeout"
    status = 408


class OriginNotAllowed(PippinError):
    """A page sent a request that its origin is not allowed to send."""

    code = "origin_not_allowed"
    status = 403


class HostNotAllowed(PippinError):
    """The request's `Host` header is none of this node's names."""

    code = "host_not_allowed"
    status = 403


class NotFound(PippinError):
    """No node keeps the response."""

    code = "not_found"
    status = 404


class PreviousNotFound(BadRequest):
    code = "previous_response_not_found"


def error_object(status: int, message: str, *, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """Error object for JSON. `message` and `param` may quote the request; they are shortened."""
    kind = {403: "permission_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")
    return {
        "error": {
            "message": shorten(message),
            "type": kind if status < 500 else "server_error",
            "param": param and shorten(param, MAX_PARAM_CHARS),
            "code": code,
        }
    }


def shorten(text: str, most: int = MAX_MESSAGE_CHARS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def describe(error: PippinError) -> dict[str, Any]:
    return error_object(error.status, str(error), code=error.code, param=error.param)
