"""HTTP client of one node: gets its cluster's status, drains and undrains nodes.

Uses `http.client` instead of `urllib.request`, which would send requests through a proxy set in the environment.
"""

import errno
import http.client
import json
import re
from typing import Any, NamedTuple
from urllib.parse import quote

from node.core.addresses import join_host_port
from node.host.local_network import local_network_hint

DEFAULT_API = "http://127.0.0.1:52415"
SCHEMA = 1
TIMEOUT_S = 5.0
"""A node answers from memory in milliseconds, even while it computes; one that takes longer is stuck."""
DECIDE_TIMEOUT_S = 30.0
"""Longer, as the head first searches another place for everything, and tells the node."""

_URL = re.compile(r"(?:(?P<scheme>https?)://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/?#\[\]]+)(?::(?P<port>[0-9]{1,5}))?/?")
_PATHS = re.compile(r"/(?:v1|cluster/status)/?$")

Json = dict[str, Any]


class StatusFailed(Exception):
    """The answer was not a status."""


class Refused(StatusFailed):
    """The cluster refuses the request, and says why."""


class NoNode(StatusFailed):
    """Nothing answers at the address."""


class Api(NamedTuple):
    """Address of a node's API."""

    scheme: str
    host: str
    port: int
    key: str = ""
    """API key; empty: none is sent."""

    def __str__(self) -> str:
        return f"{self.scheme}://{join_host_port(self.host, self.port)}"

    def status(self, timeout: float = TIMEOUT_S) -> Json:
        """The cluster's status. Raises NoNode or StatusFailed."""
        code, body = self._ask("GET", "/cluster/status", timeout)
        if code == http.HTTPStatus.UNAUTHORIZED:
            raise StatusFailed(
                f"{self} does not know the API key that was sent. Set PIPPIN_API_KEY to one of its keys."
                if self.key
                else f"{self} asks for an API key. Set PIPPIN_API_KEY to one of its keys, or name their --api-key-file."
            )
        try:
            status = json.loads(body) if code == http.HTTPStatus.OK else None
        except ValueError:
            status = None
        if not isinstance(status, dict) or "schema" not in status:
            raise StatusFailed(f"{self} is no Pippin node: it answered {code} and no status. Name one with --api URL.")
        if status["schema"] != SCHEMA:
            raise StatusFailed(
                f"{self} answers with schema {status['schema']}; this `cluster` knows {SCHEMA}. "
                "Install the same version on both."
            )
        return status

    def set_draining(self, node: str, *, draining: bool) -> None:
        """Drain a node (move its work away), or take it into use again. Raises NoNode, StatusFailed, Refused."""
        path = f"/cluster/nodes/{quote(node, safe='')}/{'drain' if draining else 'undrain'}"
        code, body = self._ask("POST", path, DECIDE_TIMEOUT_S)
        if code == http.HTTPStatus.OK:
            return
        try:
            raise Refused(json.loads(body)["error"]["message"])
        except (ValueError, KeyError, TypeError) as error:
            raise StatusFailed(f"{self} is no Pippin node: it answered {code}. Name one with --api URL.") from error

    def _ask(self, method: str, path: str, timeout: float) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=timeout)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            hint = f" {local_network_hint()}".rstrip() if error.errno == errno.EHOSTUNREACH else ""
            raise NoNode(
                f"No node answers at {self} ({error.strerror or error}). Start one with `node`, or name one with "
                f"--api URL.{hint}"
            ) from error
        try:
            headers = {"Accept": "application/json"}
            if self.key:
                headers["Authorization"] = f"Bearer {self.key}"
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except TimeoutError as error:
            raise StatusFailed(f"{self} took the connection but did not answer within {timeout:g} s.") from error
        except (OSError, http.client.HTTPException) as error:
            raise StatusFailed(f"{self} broke off its answer ({error!r}).") from error
        finally:
            connection.close()


def parse_api(text: str) -> Api:
    """Parse "http://home.local:52415/v1", with or without scheme, port, /v1 or /cluster/status. Raises ValueError."""
    match = _URL.fullmatch(_PATHS.sub("", text))
    port = int(match["port"] or 52415) if match else 0
    if match is None or not 0 < port < 65536:
        raise ValueError(f"{text!r} is not a node's address; write it like {DEFAULT_API}")
    return Api(match["scheme"] or "http", match["host"].strip("[]"), port)
