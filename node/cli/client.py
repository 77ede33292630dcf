"""HTTP client of one node: its cluster's status, its models, answers of models, and changes to the cluster.

Uses `http.client` instead of `urllib.request`, which would send requests through a proxy set in the environment.
"""

import errno
import hashlib
import http.client
import json
import re
import ssl
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

from node.core.addresses import join_host_port
from node.core.errors import PippinError
from node.host.local_network import local_network_hint

DEFAULT_API = "http://127.0.0.1:52415"
SCHEMA = 1
TIMEOUT_S = 5.0
"""A node answers from memory in milliseconds, even while it computes; one that takes longer is stuck."""

_URL = re.compile(r"(?:(?P<scheme>https?)://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/?#\[\]]+)(?::(?P<port>[0-9]{1,5}))?/?")
_PATHS = re.compile(r"/(?:v1|cluster/status)/?$")

Json = dict[str, Any]


class StatusFailed(PippinError):
    """The answer was not what was asked for."""

    code = "status_failed"


class RequestRefused(StatusFailed):
    """The cluster refuses the request, and says why. `why`: the code of its error."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why


class KeyRefused(StatusFailed):
    """The node asks for an API key, or for another one."""


class Untrusted(StatusFailed):
    """The certificate is not one that is trusted, or there is none."""


class NoNode(StatusFailed):
    """Nothing answers at the address."""


class Api(NamedTuple):
    """Address of a node's API."""

    scheme: str
    host: str
    port: int
    key: str = ""
    """API key; empty: none is sent."""
    fingerprint: str = ""
    """SHA-256 of the node's certificate; empty: it must be of an authority that this machine trusts."""

    def __str__(self) -> str:
        return f"{self.scheme}://{join_host_port(self.host, self.port)}"

    def status(self, timeout: float = TIMEOUT_S) -> Json:
        """The cluster's status. Raises NoNode, StatusFailed, KeyRefused, RequestRefused."""
        status = self.ask("GET", "/cluster/status", timeout=timeout)
        if "schema" not in status:
            raise StatusFailed(f"{self} is no Pippin node: it answered with no status. Name one with --api URL.")
        if status["schema"] != SCHEMA:
            raise StatusFailed(
                f"{self} answers with schema {status['schema']}; this `cluster` knows {SCHEMA}. "
                "Install the same version on both."
            )
        return status

    def ask(self, method: str, path: str, body: Json | None = None, timeout: float = 30.0) -> Json:
        """The object that a node answers with. The default timeout leaves the head time to search another place for
        everything first, and to tell the node. Raises NoNode, StatusFailed, RequestRefused.
        """
        with self._answer(method, path, timeout, body) as answer:
            text = answer.read()
        with suppress(ValueError):
            if isinstance(found := json.loads(text), dict):
                return found
        raise self._refusal(http.HTTPStatus.OK, text)

    def events(self, path: str, body: Json) -> Generator[Json | str, None, None]:
        """Events of a stream as they arrive; a comment as its text. Raises NoNode, StatusFailed, RequestRefused.

        Closing it ends the connection, and with it the request.
        """
        with closing(self.lines("POST", path, body)) as lines:
            for line in lines:
                kind, _, data = line.strip().partition(": ")
                if data == "[DONE]":
                    return
                if not kind and data:
                    yield data
                elif kind == "data":
                    yield _event(data)
        raise StatusFailed(f"{self} broke off its answer.")

    def lines(self, method: str, path: str, body: Json | None = None) -> Generator[str, None, None]:
        """Lines of a text as they arrive; empty ones are left out. Raises NoNode, StatusFailed, RequestRefused."""
        with self._answer(method, path, 60.0, body) as answer:  # a node sends a comment every 10 s
            while line := answer.readline():
                if text := line.decode("utf-8", "replace").rstrip():
                    yield text

    @contextmanager
    def _answer(self, method: str, path: str, timeout: float, body: Json | None) -> Iterator[http.client.HTTPResponse]:
        """The beginning of what was asked for, and not of a refusal; errors while it is read are raised, too."""
        connection = self._connection(timeout)
        try:
            self._connect(connection)
            headers = {"Accept": "application/json"}
            if self.key:
                headers["Authorization"] = f"Bearer {self.key}"
            if body is not None:
                headers["Content-Type"] = "application/json"
            connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise self._refusal(answer.status, answer.read())
            yield answer
        except TimeoutError as error:
            raise StatusFailed(f"{self} took the connection but did not answer within {timeout:g} s.") from error
        except (OSError, http.client.HTTPException) as error:
            hint = "" if self.scheme == "https" else f" If it has a certificate, ask {self._replace(scheme='https')}."
            raise StatusFailed(f"{self} broke off its answer ({error!r}).{hint}") from error
        finally:
            connection.close()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self.scheme != "https":
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        context = ssl.create_default_context()
        if self.fingerprint:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        """Nothing is sent before the certificate is found to be right. Raises NoNode, StatusFailed, Untrusted."""
        try:
            connection.connect()
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:  # it has no room for a connection, or ends
            raise StatusFailed(f"{self} broke off the connection.") from error
        except ssl.SSLCertVerificationError as error:
            raise Untrusted(
                f"The certificate of {self} is not trusted ({error.verify_message}). If it is the node's own, name it with "
                "--tls-fingerprint: the node's log has it. SSL_CERT_FILE names an authority."
            ) from error
        except ssl.SSLError as error:
            raise Untrusted(
                f"{self} has no TLS ({error.reason or error}). Ask {self._replace(scheme='http')}."
            ) from error
        except OSError as error:
            hint = f" {local_network_hint()}".rstrip() if error.errno == errno.EHOSTUNREACH else ""
            raise NoNode(
                f"No node answers at {self} ({error.strerror or error}). Start one with `node`, or name one with "
                f"--api URL.{hint}"
            ) from error
        if not self.fingerprint or not isinstance(connection.sock, ssl.SSLSocket):
            return
        shown = hashlib.sha256(connection.sock.getpeercert(binary_form=True) or b"").hexdigest()
        if shown != self.fingerprint:
            raise Untrusted(
                f"The certificate of {self} has the SHA-256 {shown}, not that of --tls-fingerprint: it was renewed, or "
                "somebody is in between."
            )

    def _refusal(self, code: int, body: bytes) -> StatusFailed:
        """The error that an answer tells of."""
        if code == http.HTTPStatus.UNAUTHORIZED:
            return KeyRefused(
                f"{self} does not know the API key that was sent. Set PIPPIN_API_KEY to one of its keys."
                if self.key
                else f"{self} asks for an API key. Set PIPPIN_API_KEY to one of its keys, or name their --api-key-file."
            )
        try:
            error = json.loads(body)["error"]
            return RequestRefused(error["message"], str(error.get("code")))
        except (ValueError, KeyError, TypeError):
            return StatusFailed(f"{self} is no Pippin node: it answered {code}. Name one with --api URL.")


def _event(data: str) -> Json:
    """Raises RequestRefused for an error that ends a stream."""
    with suppress(ValueError):
        match json.loads(data):
            case {"error": {"message": str(message)}} if message:
                raise RequestRefused(message)
            case dict(event) if not event.get("error"):
                return event
    raise StatusFailed(f"The stream of the answer is damaged: {data:.60}")


def parse_api(text: str) -> Api:
    """Parse "http://home.local:52415/v1", with or without scheme, port, /v1 or /cluster/status. Raises ValueError."""
    match = _URL.fullmatch(_PATHS.sub("", text))
    port = int(match["port"] or 52415) if match else 0
    if match is None or not 0 < port < 65536:
        raise ValueError(f"{text!r} is not a node's address; write it like {DEFAULT_API}")
    return Api(match["scheme"] or "http", match["host"].strip("[]"), port)
