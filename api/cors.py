"""Cross-origin access: pages and plug-ins in a browser may use the API, and those that may not can do nothing.

Cookies and the like ("credentials") are never allowed; a key in `Authorization` is none of them.
"""

import logging
import re
from collections.abc import Collection

from aiohttp import hdrs, web

from api.errors import OriginNotAllowed
from node.core.addresses import host_in, is_local_name, is_near

log = logging.getLogger(__name__)

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
READING = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})
WEB = frozenset({"http", "https"})
APPS = frozenset(
    {
        *("app", "file", "capacitor", "ionic", "tauri", "vscode-webview", "vscode-file"),
        *("chrome-extension", "moz-extension", "safari-web-extension"),
    }
)
"""Schemes of programs and extensions that somebody installed. No page of the web has an origin of theirs; `file` is that
of WebViews, as browsers call a file's origin `null`, like that of any page's sandboxed frame."""
MOST_TOLD = 64
"""Refused origins that are logged, once each."""


class Cors:
    """Which origins may use the API: those of this machine and of private networks, of programs, and the `named` ones.

    "*" among the named stands for any, but not where the cluster is changed. `names` are further ones of this node, whose
    pages are its own. `keyed`: a page that has an API key may do what anybody may who has one, and no other can.
    """

    def __init__(self, named: Collection[str], names: Collection[str] = (), *, keyed: bool = False) -> None:
        self._named = frozenset(named)
        self._names = frozenset(name.lower() for name in names)
        self._keyed = keyed
        self._any = keyed or "*" in self._named
        self._told: set[str] = set()

    def check(self, request: web.BaseRequest) -> None:
        """Raises OriginNotAllowed. Browsers name the page's origin with all that is no GET, and with a GET whose answer
        the page could read; nobody else has to.

        That a page may not read the answer does not keep a browser from sending simple requests for it.
        """
        self._check(request, request.method)

    async def on_prepare(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Mark a response just before its headers are sent: answers, streams and errors alike."""
        if self._any:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = "*"
        else:
            response.headers.add(hdrs.VARY, hdrs.ORIGIN)
            origin = request.headers.get(hdrs.ORIGIN)
            if origin is None or not self._may_ask(origin):
                return
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED

    def preflight(self, request: web.BaseRequest) -> web.Response:
        """The answer to OPTIONS, on every path. Raises OriginNotAllowed."""
        self._check(request, request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD, hdrs.METH_GET))
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

    def _check(self, request: web.BaseRequest, method: str) -> None:
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or self._keyed or origin in self._named:
            return
        if request.path.startswith(CLUSTER) and method not in READING:
            raise OriginNotAllowed(
                f"Pages of {origin[:100]!r} may not change the cluster.",
                hint="Only those may that are named with --cors-origin, not with '*'.",
            )
        if not self._may_ask(origin):
            self._tell(origin)
            raise OriginNotAllowed(
                f"Pages of {origin[:100]!r} may not use this API.",
                hint="Start the node with --cors-origin and this origin to allow them.",
            )

    def _may_ask(self, origin: str) -> bool:
        return self._any or origin in self._named or self._is_local(origin)

    def _is_local(self, origin: str) -> bool:
        """As browsers write it: `scheme://host` or `scheme://host:port`, with names of the web in lower case."""
        scheme, mark, rest = origin.partition("://")
        if not mark or scheme not in WEB:
            return bool(mark) and scheme in APPS
        host = host_in(rest)
        if host is None or rest != rest.lower():
            return False
        # 0.0.0.0 in a browser's address line is this machine.
        return host in self._names or host == "0.0.0.0" or is_near(host) or is_local_name(host)

    def _tell(self, origin: str) -> None:
        """In the log: a browser shows its user no more than that the request failed."""
        if origin not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(origin)
            log.warning("a page of %r was refused; --cors-origin would allow it", origin[:100])
