"""The page at `/`: chat and status. Its files are read once; whatever it shows cannot run as code."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
"""Media types by suffix: those that the system knows differ from machine to machine."""
FILES = {
    "/" if file.name == "index.html" else f"/page/{file.name}": file
    for file in sorted(Path(__file__).parent.iterdir())
    if file.suffix in TYPES
}
"""Files of the page by path."""
HEADERS = {
    # Answers of models and names of nodes are strangers' texts. If one got into the page as markup, this would keep it
    # from running, from loading anything, and from sending anything elsewhere.
    "Content-Security-Policy": "; ".join(
        (
            *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'"),
            *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
            *("require-trusted-types-for 'script'", "trusted-types 'none'"),
        )
    ),
    hdrs.CACHE_CONTROL: "no-cache",  # a browser asks whether its copy is still right: nodes get new versions
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    media_type: str

    @property
    def etag(self) -> str:
        return sha256(self.body).hexdigest()[:16]


def page_routes() -> Mapping[str, Handler]:
    """Handlers of GET by path: the page, and what it consists of."""
    return {path: partial(_show, _File(file.read_bytes(), TYPES[file.suffix])) for path, file in FILES.items()}


async def _show(file: _File, request: web.Request) -> web.Response:
    known = any(tag.value == file.etag for tag in request.if_none_match or ())
    response = web.Response(status=304) if known else web.Response(body=file.body)
    if not known:
        response.content_type, response.charset = file.media_type, "utf-8"
    response.headers.update(HEADERS)
    response.etag = file.etag
    return response
