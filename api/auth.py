"""API keys: who may ask, when the operator named keys."""

import hmac
from collections.abc import Iterable
from hashlib import sha256

from aiohttp import hdrs, web

from node.core.errors import Unauthorized

OPEN_PATHS = frozenset({"/health"})
"""Asked by load balancers and supervisors, which hold no key; it tells nothing that is worth one."""


class ApiKeys:
    """Without keys everybody may ask, whatever bearer they send."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        # Digests are of one length, so the time of a comparison tells nothing of a key.
        self._digests = tuple(_digest(key) for key in keys)

    def check(self, request: web.BaseRequest) -> str | None:
        """The request's key; None where none is needed. Raises Unauthorized.

        All keys are compared, and whole, so that no beginning of one is worth anything.
        """
        if not self._digests or request.path in OPEN_PATHS:
            return None
        scheme, _, key = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthorized("This server asks for an API key.", hint="Send it as 'Authorization: Bearer KEY'.")
        given = _digest(key.strip())
        if not any([hmac.compare_digest(given, known) for known in self._digests]):  # noqa: C419 - no short cut
            raise Unauthorized("The API key is not one of this server's.")
        return key.strip()


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
