"""Cross-origin access (CORS): which pages and plug-ins in a browser may use the API. All requests of others are
refused.

CORS "credentials" (cookies and the like) are never allowed; a key in `Authorization` is not one of them.
"""

import logging
import re
from collections.abc import Collection

from aiohttp import hdrs, web

from api.http.callers import check_host
from api.http.errors import OriginNotAllowed
from node.core.addresses import is_address, is_local_address, is_local_name, parse_host

log = logging.getLogger(__name__)

METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
ALLOWED = (
    *("Authorization", "Content-Type", "OpenAI-Beta", "OpenAI-Organization", "OpenAI-Project"),
    *(f"X-Stainless-{name}" for name in ("Arch", "Async", "Helper-Method", "Lang", "OS", "Package-Version")),
    *(f"X-Stainless-{name}" for name in ("Poll-Helper", "Raw-Response", "Retry-Count", "Runtime", "Runtime-Version")),
    "X-Stainless-Timeout",
    *("X-Api-Key", "Anthropic-Version", "Anthropic-Beta", "Anthropic-Dangerous-Direct-Browser-Access"),
)
"""Headers of OpenAI's and Anthropic's clients, listed because `*` never covers `Authorization`. Headers a preflight asks for are added.
"""
CHANGES = ("/cluster/", "/api/pull", "/api/delete")
"""Beginnings of the paths where only the node's own page, and those of explicitly named origins, may change anything: other pages have no need to, and a user who
visits such a page would not notice.
"""
OWN = ("/cluster/", "/metrics")
"""Beginnings of the paths that no page of another site needs without reading the answer, and so without saying its origin."""
SITE, DESTINATION = "Sec-Fetch-Site", "Sec-Fetch-Dest"
LOG = "/cluster/logs"
"""Where only these may read, too: a log has more than other pages need."""
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
READING = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})
WEB = frozenset({"http", "https"})
APPS = frozenset(
    {
        *("app", "file", "capacitor", "ionic", "tauri", "vscode-webview", "vscode-file"),
        *("chrome-extension", "moz-extension", "safari-web-extension"),
    }
)
"""URL schemes of installed programs and extensions, which no web page has as its origin. `file` is the origin of
WebViews; browsers call a file's origin `null`, like that of a sandboxed frame in any page.
"""
MAX_LOGGED_ORIGINS = 64
"""Maximum number of refused origins that are logged, once each."""


class Cors:
    """Checks origins. Allowed are those of this machine, of private networks and of programs, and the `named` ones.

    "*" in `named` allows any origin, except for changes to the cluster and for its logs. `names`: further host names of this node, whose
    pages are local. `keyed`: requests need an API key, which replaces the check of origins.
    """

    def __init__(self, named: Collection[str], names: Collection[str] = (), *, keyed: bool = False) -> None:
        self._named = frozenset(named)
        self._names = frozenset(name.lower() for name in names)
        self._keyed = keyed
        self._any = keyed or "*" in self._named
        self._logged: set[str] = set()

    def check_named(self, request: web.BaseRequest, what: str = "change the cluster") -> None:
        """Check who may do `what`: the node's own page, and those of named origins. Raises OriginNotAllowed, HostNotAllowed."""
        if self._keyed:
            return
        check_host(request, self._names)  # a page under a name that was made to lead here reads without an origin
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or origin in self._named:
            return
        # By an address or a name of this node: other names of the local network may be made to lead here.
        host = parse_host(origin.partition("://")[2])
        if _is_own(request, origin) and host and (is_address(host) or host == "localhost" or host in self._names):
            return
        raise OriginNotAllowed(
            f"Pages of {origin[:100]!r} may not {what}.",
            hint="Only pages of origins named with --cors-origin may, not those allowed by '*'.",
        )

    async def on_prepare(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Add CORS headers to a response just before its headers are sent: to answers, streams and errors alike."""
        if self._any:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = "*"
        else:
            response.headers.add(hdrs.VARY, hdrs.ORIGIN)
            origin = request.headers.get(hdrs.ORIGIN)
            if origin is None or not self._may_ask(origin):
                return
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = "Retry-After, X-Request-ID, Request-Id"

    def preflight(self, request: web.BaseRequest) -> web.Response:
        """Answer a preflight (OPTIONS), on any path. Raises OriginNotAllowed."""
        self.check(request, request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD, hdrs.METH_GET))
        asked = (name.strip() for name in request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "").split(","))
        names = {name.lower(): name for name in (*asked, *ALLOWED) if HEADER_NAME.fullmatch(name)}
        return web.Response(
            status=204,
            headers={
                hdrs.ALLOW: METHODS,
                hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
                hdrs.ACCESS_CONTROL_ALLOW_HEADERS: ", ".join(sorted(names.values())),
                hdrs.ACCESS_CONTROL_MAX_AGE: "600",
            },
        )

    def check(self, request: web.BaseRequest, method: str) -> None:
        """Raises OriginNotAllowed. `method`: the request's, or that which its preflight announces.

        Any method is checked. Browsers send `Origin` with all but GET and HEAD, and with those whose answer the page
        could read; other clients need not send it. CORS response headers alone would not do: they keep a page from
        reading the answer, but do not keep a browser from sending simple requests.
        """
        if request.path.startswith(CHANGES) and method not in READING:
            self.check_named(request)
        if request.path == LOG:
            self.check_named(request, "read the log")
        origin = request.headers.get(hdrs.ORIGIN)
        if self._keyed or origin in self._named:
            return
        if origin is None:
            _check_site(request)
        elif not self._may_ask(origin) and not _is_own(request, origin):
            if origin not in self._logged and len(self._logged) < MAX_LOGGED_ORIGINS:
                self._logged.add(origin)  # a browser shows its user only that the request failed
                log.warning("a page of %r was refused; start the node with --cors-origin to allow it", origin[:100])
            raise OriginNotAllowed(
                f"Pages of {origin[:100]!r} may not use this API.",
                hint="Start the node with --cors-origin and this origin to allow them.",
            )

    def _may_ask(self, origin: str) -> bool:
        """Whether the origin is allowed. Browsers write `scheme://host[:port]`, host names in lower case."""
        if self._any or origin in self._named:
            return True
        scheme, mark, rest = origin.partition("://")
        if not mark or scheme not in WEB:
            return bool(mark) and scheme in APPS
        host = parse_host(rest)
        if host is None or rest != rest.lower():
            return False
        # Browsers take 0.0.0.0 for this machine.
        return host in self._names or host == "0.0.0.0" or is_local_address(host) or is_local_name(host)


def _check_site(request: web.BaseRequest) -> None:
    """Check a request without an origin: a browser tells then at least whether a page of another site sends it.

    A link that somebody follows is no harm: the page that has it can't read the answer, nor have many of them followed.
    """
    site, destination = request.headers.get(SITE, "none"), request.headers.get(DESTINATION)
    if request.path.startswith(OWN) and site not in ("same-origin", "none") and destination != "document":
        raise OriginNotAllowed(
            f"Pages of other sites may not use {request.path} without saying their origin.",
            hint="A page that may use this API asks with CORS.",
        )


def _is_own(request: web.BaseRequest, origin: str) -> bool:
    """Whether the request is of this node's own page, maybe at a public address. The `Host` was checked before."""
    scheme, _, rest = origin.partition("://")
    return scheme in WEB and bool(rest) and rest == request.headers.get(hdrs.HOST)
