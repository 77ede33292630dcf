"""API keys, sent as bearer tokens or in `x-api-key`."""

import hmac
from collections.abc import Iterable
from hashlib import sha256

from aiohttp import hdrs, web

from node.core.errors import Unauthorized


class ApiKeys:
    """The accepted API keys. If there are none, every request is accepted, whatever bearer token it has."""

    def __init__(self, keys: Iterable[str], open_paths: Iterable[str]) -> None:
        """`open_paths`: paths that need no key."""
        # Digests have the same length, so the time of a comparison reveals nothing about a key.
        self._digests = tuple(_digest(key) for key in keys)
        self._open_paths = frozenset(open_paths)

    def check(self, request: web.BaseRequest) -> str | None:
        """Return the request's key, or None if none is needed. Raises Unauthorized.

        The given key is compared with all keys, and in full, so that timing reveals no prefix of a key.
        """
        if not self._digests or request.path in self._open_paths:
            return None
        scheme, _, bearer = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        # Anthropic's clients send `x-api-key`.
        key = (bearer if scheme.lower() == "bearer" else "").strip() or request.headers.get("x-api-key", "").strip()
        if not key:
            raise Unauthorized(
                "This server requires an API key.", hint="Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
            )
        given = _digest(key)
        if not any([hmac.compare_digest(given, known) for known in self._digests]):  # noqa: C419 - no short cut
            raise Unauthorized("The API key is not accepted by this server.")
        return key


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
