"""Access control by the caller's address and by the host name that the caller uses for this node.

Headers set by proxies (`X-Forwarded-For` and similar) are ignored: anybody can send them.
"""

import secrets
from collections.abc import Collection
from hashlib import blake2b
from ipaddress import ip_address, ip_network

from aiohttp import hdrs, web

from api.http.errors import HostNotAllowed
from node.core.addresses import are_in_one_network, is_address, is_local_address, is_local_name, parse_host
from node.core.errors import NotAdmitted

CLIENT = web.RequestKey("client", str)
"""Name of an accepted request's client, used to share a ring fairly among clients."""


class Callers:
    """Checks callers. `anywhere`: accept public addresses, too.

    `names`: host names of this node, besides its addresses and the names that no public DNS server can answer for;
    None: accept any name.
    """

    def __init__(self, *, anywhere: bool, names: Collection[str] | None) -> None:
        self._anywhere = anywhere
        self._names = None if names is None else frozenset(name.lower() for name in names)
        self._salt = secrets.token_bytes(16)

    def check(self, request: web.BaseRequest) -> None:
        """Raises NotAdmitted, HostNotAllowed."""
        caller, own = connection_ends(request)
        if not self._anywhere and not is_local_address(caller) and not are_in_one_network(caller, own):
            raise NotAdmitted(
                f"Without API keys, requests are accepted from private and link-local addresses only, not from {caller}.",
                hint="Start the node with --api-key-file, or with --open-api to let anybody use it.",
            )
        if self._names is not None:
            check_host(request, self._names)

    def client(self, request: web.BaseRequest, key: str | None) -> str:
        """Name of the caller: a hash of the API key if there is one, else of the address, or of the network of a distant IPv6 one.

        Other nodes see this name. The hash is salted per process, so that keys cannot be found by trying candidates.
        """
        known = key
        if not known:
            known, own = connection_ends(request)
            # Within the /64 of a distant IPv6 address, a caller can choose among 2**64 addresses.
            if ":" in known and is_address(known) and not (is_local_address(known) or are_in_one_network(known, own)):
                known = str(ip_network((ip_address(known), 64), strict=False))
        return blake2b(known.encode("utf-8", "surrogateescape"), key=self._salt, digest_size=8).hexdigest()


def check_host(request: web.BaseRequest, names: Collection[str]) -> None:
    """Reject foreign host names, to prevent DNS rebinding: if a page's own host name resolves to this node, its browser
    treats the answer as the page's own. A client that sends no `Host` is not a browser.

    `names`: of this node, in lower case. Raises HostNotAllowed.
    """
    authority = request.headers.get(hdrs.HOST, "")
    host = parse_host(authority)
    if not authority or (host and (is_address(host) or is_local_name(host) or host in names)):
        return
    raise HostNotAllowed(
        f"{authority[:100]!r} is not a known name of this node.",
        hint="If it is one, start the node with --allow-host NAME.",
    )


def connection_ends(request: web.BaseRequest) -> tuple[str, str]:
    """Remote and local address of the request's connection; empty when the connection is gone."""
    names = (request.get_extra_info(end) or ("",) for end in ("peername", "sockname"))
    # A socket for both kinds of IP shows IPv4 addresses as IPv6 ones, which are all in one /64.
    caller, own = (str(name[0]).removeprefix("::ffff:") for name in names)
    return caller, own
