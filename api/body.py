"""A request's body to a JSON object. Whatever is wrong with it is the sender's to know: a 400 that says what."""

import json
from typing import Any, Never

from aiohttp import hdrs, web

from api.errors import WrongMediaType
from node.core.errors import BadRequest

MAX_DEPTH = 128
"""Levels of nesting; JSON schemas of real tools reach about 30."""

ENCODINGS = ("identity", "gzip", "deflate")


async def read_object(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object, whatever content type it claims to be: curl calls all of them forms."""
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower()
    if encoding not in ENCODINGS:
        raise WrongMediaType(f"The body is encoded as {encoding[:40]}; it may be {' or '.join(ENCODINGS)}.")
    if request.content_type.startswith("multipart/"):
        raise WrongMediaType("The body is a form.", hint="Send a JSON object.")
    try:
        body = await request.read()
    except web.RequestPayloadError as error:
        raise BadRequest("The body is cut off, or not compressed as its Content-Encoding says.") from error
    try:
        return parse_object(body)
    except BadRequest as error:
        if request.content_type == "application/x-www-form-urlencoded" and body[:1] not in (b"", b"{"):
            raise WrongMediaType("The body is a form.", hint="Send a JSON object.") from error
        raise


def parse_object(body: bytes) -> dict[str, Any]:
    if not body.strip():
        raise BadRequest("The body is empty.", hint="Send a JSON object.")
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: {error.reason} at byte {error.start}.") from error
    except RecursionError as error:
        raise BadRequest(f"The JSON is nested deeper than {MAX_DEPTH} levels.") from error
    except ValueError as error:  # also Python's refusal of integers with more than 4,300 digits
        raise BadRequest(f"The body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object.")
    _check_depth(value)
    _check_unicode(value)
    return value


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise BadRequest(f"The JSON is nested deeper than {MAX_DEPTH} levels.")


def _check_unicode(value: Any) -> None:
    r"""Refuse half a surrogate pair ("\ud83d"): it is no character, and no tokenizer takes it."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadRequest("The JSON has an escape for half a character (a lone surrogate).") from error
