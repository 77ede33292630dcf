"""Errors across gRPC: the code, message and hint of a PippinError are sent as trailing metadata of a gRPC status."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote, unquote

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from node.core.errors import (
    Incompatible,
    PeerTimeout,
    PeerUnavailable,
    PippinError,
    SecretMismatch,
    as_pippin_error,
    error_from,
)
from node.host.local_network import NO_ROUTE, local_network_hint

log = logging.getLogger(__name__)

_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}

_TLS_SIGNS = {
    "CERTIFICATE_VERIFY_FAILED": "has another secret or another cluster name, or is not the expected node",
    "WRONG_VERSION_NUMBER": "has no secret, and this node has one",
    "Socket closed": "closes the connection during the handshake: it may have a secret, and this node none",
}
"""Substrings of gRPC's messages for a failed TLS handshake -> likely cause."""
_NO_CONNECTION = "Failed to connect to remote host: "
"""In gRPC's messages, between all that it tried and the system's own words."""
_MAX_CHARS = 2000
"""Maximum characters of a message or hint: gRPC refuses more than 8 KB of metadata, and with it the whole answer."""


def quiet_tracebacks() -> None:
    """Suppress the tracebacks that gRPC logs for what others do: a caller hangs up just as the status of its answer is
    sent, or the text of a peer's error is no UTF-8.
    """
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_worth_logging)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    raised = record.exc_info[1] if record.exc_info else None
    if isinstance(raised, cygrpc.ExecuteBatchError):
        log.debug("a caller closed the connection before its answer ended")
        return False
    return not isinstance(raised, UnicodeDecodeError)


@asynccontextmanager
async def answering(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Inside, exceptions are answered as a gRPC status."""
    try:
        yield
    except grpc.aio.BaseError:  # gRPC's own: the call is aborted, or the server stops while a caller still sends
        raise
    except Exception as error:  # the RPC boundary
        if not isinstance(error, PippinError):
            log.error("an RPC failed", exc_info=error)
        said = as_pippin_error(error)
        metadata = (
            ("pippin-code", said.code),
            ("pippin-message", quote(said.message)[:_MAX_CHARS]),
            ("pippin-hint", quote(said.hint)[:_MAX_CHARS]),
        )
        status = _STATUS.get(said.status, grpc.StatusCode.INTERNAL)
        await context.abort(status, said.message[: _MAX_CHARS // 10], metadata)


@contextmanager
def calling(peer: str) -> Iterator[None]:
    """Inside, exceptions of a call to a peer are raised as PippinErrors."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise to_error(error, peer) from error
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise PeerUnavailable(f"The connection to {peer} was closed.") from error


def is_cancelled() -> bool:
    """Whether this task itself is cancelled: gRPC also cancels tasks that wait for a call of a closed channel."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def to_error(error: grpc.aio.AioRpcError, peer: str) -> PippinError:
    """The peer's own error if it sent one, else PeerTimeout, Incompatible, SecretMismatch or PeerUnavailable."""
    said: dict[str, str] = {key: str(value) for key, value in error.trailing_metadata() or ()}
    if code := said.get("pippin-code"):
        message = unquote(said.get("pippin-message", ""))
        return error_from(code, message, hint=unquote(said.get("pippin-hint", "")))
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PeerTimeout(f"{peer} did not answer in time.")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Incompatible(f"The node at {peer} is too old for this.", hint="Update it, and start it again.")
    details = error.details() or ""
    for sign, what in _TLS_SIGNS.items():
        if sign in details and "failed to connect" in details:
            hint = "Give all nodes of a cluster the same --cluster and --secret-file."
            return SecretMismatch(f"{peer} {what}.", hint=hint)
    hint = local_network_hint() if NO_ROUTE in details else ""
    what = details.rpartition(_NO_CONNECTION)[2] or error.code().name.lower()
    return PeerUnavailable(f"{peer} did not answer: {what.rstrip('.')}.", hint=hint)
