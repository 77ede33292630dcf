"""Cross-origin access: pages and plug-ins in a browser may use the API, and those that may not can do nothing.

Cookies and the like ("credentials") are never allowed; a key in `Authorization` is none of them.
"""

import re
from collections.abc import Collection

from aiohttp import hdrs, web

from api.errors import OriginNotAllowed

METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
EXPOSED = "Retry-After, X-Request-ID"
ALLOWED = (
    *("Authorization", "Content-Type", "OpenAI-Beta", "OpenAI-Organization", "OpenAI-Project"),
    *(f"X-Stainless-{name}" for name in ("Arch", "Async", "Helper-Method", "Lang", "OS", "Package-Version")),
    *(f"X-Stainless-{name}" for name in ("Poll-Helper", "Raw-Response", "Retry-Count", "Runtime", "Runtime-Version")),
    "X-Stainless-Timeout",
)
"""Headers of OpenAI's clients, named because `*` never covers `Authorization`; whatever else is asked for joins them."""
CLUSTER = "/cluster/"
"""What only pages of a named origin may change: no page has to, and whoever visits one would not know."""
PREFLIGHT_SECONDS = "600"
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")


class Cors:
    """`origins` are those that may use the API; "*" stands for any, but not where the cluster is changed."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def check(self, request: web.BaseRequest) -> None:
        """Raises OriginNotAllowed. Browsers name the page's origin with all that is no GET; nobody else has to.

        That a page may not read the answer does not keep a browser from sending simple requests for it.
        """
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or origin in self._origins:
            return
        if "*" in self._origins and not request.path.startswith(CLUSTER):
            return
        raise OriginNotAllowed(
            f"Pages of {origin[:100]!r} may not ask for this.", hint="Start the node with --cors-origin to allow them."
        )

    async def on_prepare(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Mark a response just before its headers are sent: answers, streams and errors alike."""
        if "*" in self._origins:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = "*"
        else:
            response.headers.add(hdrs.VARY, hdrs.ORIGIN)
            origin = request.headers.get(hdrs.ORIGIN)
            if origin not in self._origins:
                return
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED

    def preflight(self, request: web.BaseRequest) -> web.Response:
        """The answer to OPTIONS, on every path."""
        asked = (name.strip() for name in request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "").split(","))
        names = {name.lower(): name for name in (*asked, *ALLOWED) if HEADER_NAME.fullmatch(name)}
        return web.Response(
            status=204,
            headers={
                hdrs.ALLOW: METHODS,
                hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
                hdrs.ACCESS_CONTROL_ALLOW_HEADERS: ", ".join(sorted(names.values())),
                hdrs.ACCESS_CONTROL_MAX_AGE: PREFLIGHT_SECONDS,
            },
        )
