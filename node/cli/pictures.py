"""Pictures of this machine's disk, as the API takes them."""

import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path

from node.cli.client import Json, StatusFailed

_MOST = 20 * 2**20
"""Bytes of a picture that the API takes."""


def picture_part(path: Path) -> Json:
    """The content part of a file. Raises StatusFailed."""
    try:
        with path.expanduser().open("rb") as file:
            data = file.read(_MOST + 1)  # of a device there is no end
    except OSError as error:
        raise StatusFailed(f"{path} can't be read: {error.strerror}.") from error
    except RuntimeError as error:
        raise StatusFailed(f"{path} can't be read: there is no such user.") from error
    if len(data) > _MOST:
        raise StatusFailed(f"{path} is no picture that a node takes: it has more than {_MOST:,} bytes.")
    kind = mimetypes.guess_type(path.name)[0] or "image/png"  # the node looks at the content
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}}


def with_pictures(text: str, parts: Sequence[Json]) -> str | list[Json]:
    """The content of a message."""
    return [*parts, {"type": "text", "text": text}] if parts else text
