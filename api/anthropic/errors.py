"""Error objects as Anthropic's clients expect them: `{"type": "error", "error": {"type", "message"}}`."""

import re
from typing import Any

from api.http.errors import shorten
from node.core.errors import ContextExceeded

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
NUMBERS = re.compile(r"maximum context length is (\d+) tokens, but the \w+ has (\d+) tokens")
"""What ContextExceeded says where the tokens were counted."""


def error_object(status: int, message: str, *, code: str | None = None, **_: str | None) -> dict[str, Any]:
    """Error object for JSON. The message names what is wrong; Anthropic has no field for the code and the parameter."""
    if code == ContextExceeded.code:
        # Anthropic's words, by which agents know that they must shorten the conversation, and by how much.
        numbers = NUMBERS.search(message)
        message = f"prompt is too long: {f'{numbers[2]} tokens > {numbers[1]} maximum. ' if numbers else ''}{message}"
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": shorten(message)}}
