"""Who may call this node's API: by the address that the caller has, and by the name that it calls the node by.

Headers in which proxies tell for whom they ask (`X-Forwarded-For` and its like) are not looked at: anybody can send them.
"""

from collections.abc import Collection

from aiohttp import hdrs, web

from api.errors import HostNotAllowed
from node.core.addresses import host_in, is_address, is_local_name, is_near, share_link
from node.core.errors import NotAdmitted


class Callers:
    """`anywhere`: also at public addresses. `names` of this node, besides its addresses and those that no public DNS
    server can answer for; None: any.
    """

    def __init__(self, *, anywhere: bool, names: Collection[str] | None) -> None:
        self._anywhere = anywhere
        self._names = None if names is None else frozenset(name.lower() for name in names)

    def check(self, request: web.BaseRequest) -> None:
        """Raises NotAdmitted, HostNotAllowed."""
        if not self._anywhere:
            self._check_address(*ends(request))
        if self._names is not None:
            self._check_host(request.headers.get(hdrs.HOST, ""))

    def _check_address(self, caller: str, own: str) -> None:
        if not is_near(caller) and not share_link(caller, own):
            raise NotAdmitted(
                f"Without API keys, requests are taken from private and link-local addresses only, not from {caller}.",
                hint="Start the node with --api-key-file, or with --open-api if anybody may use it.",
            )

    def _check_host(self, authority: str) -> None:
        """The browser of a page whose own name leads here (DNS rebinding) takes the answer for the page's own.

        A page's name is one of the public DNS, or else was made on this network. Who sends no `Host` is no browser.
        """
        assert self._names is not None
        host = host_in(authority)
        if not authority or (host and (is_address(host) or is_local_name(host) or host in self._names)):
            return
        raise HostNotAllowed(
            f"This node is not called {authority[:100]!r}, as far as it knows.",
            hint="Start it with --allow-host NAME if the name is its own.",
        )


def ends(request: web.BaseRequest) -> tuple[str, str]:
    """The addresses of the caller and of this side of its connection; empty when the connection is gone."""
    names = (request.get_extra_info(end) or ("",) for end in ("peername", "sockname"))
    caller, own = (str(name[0]) for name in names)
    return caller, own
