"""The page at `/`: chat and status. Its files are read once; whatever it shows cannot run as code."""

from collections.abc import Iterator
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
            *(
                "default-src 'none'",
                "script-src 'self'",
                "style-src 'self'",
                "img-src 'self' data:",
                "connect-src 'self'",
            ),
            *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
            *("require-trusted-types-for 'script'", "trusted-types 'none'"),
        )
    ),
    hdrs.CACHE_CONTROL: "no-cache",  # a browser asks whether its copy is still right: nodes get new versions
    "Referrer-Policy": "no-referrer",
}


def page_routes() -> Iterator[tuple[str, Handler]]:
    """Paths and handlers of GET: the page, and what it consists of."""
    for path, file in FILES.items():
        body = file.read_bytes()
        yield path, partial(_show, body, TYPES[file.suffix], sha256(body).hexdigest()[:16])


async def _show(body: bytes, media_type: str, etag: str, request: web.Request) -> web.Response:
    known = any(tag.value == etag for tag in request.if_none_match or ())
    response = web.Response(status=304) if known else web.Response(body=body)
    if not known:
        response.content_type, response.charset = media_type, "utf-8"
    response.headers.update(HEADERS)
    response.etag = etag
    return response
