"""The error tree. Each error has a code, an HTTP status, a message with numbers, and a hint what to do."""

from pathlib import Path
from typing import ClassVar


class PippinError(Exception):
    """Base of all errors that are shown to users.

    `code` is stable and machine-readable. `status` is the HTTP status. `retry_after`, in seconds, is set for temporary
    errors. `param` names the invalid parameter of the request.
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    retry_after: ClassVar[int | None] = None

    def __init__(self, message: str, *, hint: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class BadRequest(PippinError):
    code = "invalid_value"
    status = 400


class ContextExceeded(BadRequest):
    code = "context_length_exceeded"


class Unauthorized(PippinError):
    code = "invalid_api_key"
    status = 401


class ModelGated(PippinError):
    """The hub requires a token, or that the model's licence is accepted."""

    code = "model_gated"
    status = 403


class ModelNotAllowed(PippinError):
    """No pattern of --allow-model matches the model."""

    code = "model_not_allowed"
    status = 403


class ModelNotFound(PippinError):
    code = "model_not_found"
    status = 404


class ModelNotFetched(PippinError):
    """Files of the model that Pippin did not fetch are deleted only if the request says so."""

    code = "model_not_fetched"
    status = 409


class NodeNotFound(PippinError):
    """No node of the cluster has this name or id, or several have this name."""

    code = "node_not_found"
    status = 404


class ModelUnsupported(PippinError):
    """The model's architecture cannot be cut or run by this version."""

    code = "model_unsupported"
    status = 400


class ModelBroken(PippinError):
    """The model's files are damaged or incomplete."""

    code = "model_broken"
    status = 500


class ModelCrashes(ModelBroken):
    """The process that ran the model ended: its config.json makes MLX fail beyond repair."""

    code = "model_crashes"


class Overloaded(PippinError):
    code = "rate_limit_exceeded"
    status = 429
    retry_after = 2


class NotReady(PippinError):
    """Temporary: a model is loading, or its layers are moving."""

    code = "not_ready"
    status = 503
    retry_after = 2


class ShuttingDown(NotReady):
    """The node is stopping: it finishes requests in flight and refuses new ones."""

    code = "shutting_down"


class ModelChanged(NotReady):
    """The model's files have another revision than the request or the ring."""

    code = "model_changed"


class NoCapacity(PippinError):
    """No set of nodes has enough memory for the model."""

    code = "no_capacity"
    status = 503
    retry_after = 30


class HubUnavailable(PippinError):
    code = "hub_unavailable"
    status = 503
    retry_after = 30


class RingLost(PippinError):
    """The ring ended while it was working on the request."""

    code = "ring_lost"
    status = 503
    retry_after = 2


class DeviceFailed(RingLost):
    """A node's device failed at some work, maybe of another ring: no KV on it is trusted any more."""

    code = "device_failed"


class DeviceTimeout(DeviceFailed):
    """The system stopped work of a node's device that took too long."""

    code = "device_timeout"


class ModelBusy(PippinError):
    """The model can't be unloaded, as it answers requests."""

    code = "model_busy"
    status = 409


def replaced(ring: str) -> RingLost:
    """The error of requests whose ring was left because the placement has another one, as planned."""
    return RingLost(f"Ring {ring} {_REPLACED}")


def is_replacement(error: PippinError) -> bool:
    """Whether the error is one of `replaced`, of this node or of a peer. It has no code: older nodes would not know it."""
    return isinstance(error, RingLost) and error.message.endswith(_REPLACED)


_REPLACED = "was replaced."


class PeerUnavailable(PippinError):
    """A node did not answer."""

    code = "peer_unavailable"
    status = 503
    retry_after = 2


class PeerTimeout(PeerUnavailable):
    """A node did not answer in time. It may be slow, unlike one that refuses or resets connections."""

    code = "peer_timeout"


class SecretMismatch(PeerUnavailable):
    """The peer has another secret, or one of the two has none."""

    code = "secret_mismatch"


class NotAdmitted(PippinError):
    """The caller's address is public and no secret or key is set, or the caller is not the node allowed to send this."""

    code = "not_admitted"
    status = 403


class StaleFence(PippinError):
    """The message is of a ring, or with a fence, that this node does not have: its sender has been replaced, or this node."""

    code = "stale_fence"
    status = 503
    retry_after = 1


class Incompatible(PippinError):
    """The peer has another protocol version or another cluster name, or its message is invalid."""

    code = "incompatible"
    status = 409


class PortTaken(PippinError):
    code = "port_taken"


def as_pippin_error(error: Exception) -> PippinError:
    """The error itself, or a PippinError with its type and message; without the path of a file, which the log has."""
    if isinstance(error, PippinError):
        return error
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return PippinError(f"{type(error).__name__}: {text}")


def naming(error: object, directory: Path) -> str:
    """The text of an error of others about a model, with its directory's name in place of the path, which tells whose Mac
    it is.
    """
    return str(error).replace(str(directory), directory.name)


def _tree(root: type[PippinError]) -> dict[str, type[PippinError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


def error_from(code: str, message: str, *, hint: str = "", param: str | None = None) -> PippinError:
    """Create the error with a code received from a peer; an unknown code gives PippinError."""
    return _tree(PippinError).get(code, PippinError)(message, hint=hint, param=param)
