"""Pictures among the content parts of a message, as OpenAI's and Anthropic's clients send them. Nothing is fetched for a client."""

import binascii
import re
from typing import Any

from api.http.limits import MAX_PICTURE_BYTES
from node.core.errors import BadRequest

KINDS = ("image_url", "input_image", "image")
"""Types of parts: of OpenAI's chat, of its Responses, of Anthropic's API."""
_DATA = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_PIECE = 2**18
"""Characters of base64 that are decoded in one call, which holds the GIL; a multiple of 4."""


def data_url(part: Any) -> str:
    """The data: URL of a content part of one of KINDS. Raises BadRequest, whose text continues "Part 0 "."""
    match part:
        case {"type": "image_url", "image_url": str(url) | {"url": str(url)}}:
            pass
        case {"type": "input_image", "image_url": str(url)}:
            pass
        case {"type": "image", "source": {"type": "base64", "data": str(data)}}:
            url = f"data:;base64,{data}"
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            pass
        case {"file_id": str()} | {"source": {"type": "file"}}:
            raise BadRequest("is the id of a file, but this server keeps no files: send the picture as a data: URL")
        case _:
            raise BadRequest(
                "has no picture: send it in base64, as a data: URL or in Anthropic's API as a source of that type"
            )
    if not _DATA.match(url):
        raise BadRequest(
            "is the address of a picture, but this server fetches nothing: send it as a data: URL in base64"
        )
    return url


def url_part(url: str) -> dict[str, Any]:
    """The content part of chat."""
    return {"type": "image_url", "image_url": {"url": url}}


def picture_bytes(url: str) -> bytes:
    """The file of a data: URL. Raises BadRequest as `data_url` does."""
    url = url.replace("\n", "").replace("\r", "")  # of MIME, and of the shell's base64
    start = url.index(",") + 1
    if len(url) - start > MAX_PICTURE_BYTES * 4 // 3 + 4:
        raise BadRequest(f"has more than {MAX_PICTURE_BYTES:,} bytes")
    try:
        pieces = (url[place : place + _PIECE] for place in range(start, len(url), _PIECE))
        data = b"".join(binascii.a2b_base64(piece, strict_mode=True) for piece in pieces)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"is not base64: {error}") from error
    if not data:
        raise BadRequest("has no bytes")
    return data
