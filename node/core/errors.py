"""The one error tree. Every error has a code, an HTTP status, a message with numbers, and a hint that says what to do."""

from typing import ClassVar


class PippinError(Exception):
    """Base of all errors that a user may see.

    `code` is stable and machine-readable; `status` is the HTTP status the gateway answers with; `retry_after` is in
    seconds and set on errors that pass by themselves; `param` names the request's field at fault.
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
    """The hub asks for a licence to be accepted or a token to be given."""

    code = "model_gated"
    status = 403


class ModelNotAllowed(PippinError):
    """Requests may have only some models loaded, and this is none of them."""

    code = "model_not_allowed"
    status = 403


class ModelNotFound(PippinError):
    code = "model_not_found"
    status = 404


class NodeNotFound(PippinError):
    """No node of the cluster has that name or id, or several have."""

    code = "node_not_found"
    status = 404


class ModelUnsupported(PippinError):
    """The model's architecture cannot be cut or run here."""

    code = "model_unsupported"
    status = 400


class ModelBroken(PippinError):
    """The model's files are damaged or incomplete."""

    code = "model_broken"
    status = 500


class Overloaded(PippinError):
    code = "rate_limit_exceeded"
    status = 429
    retry_after = 2


class NotReady(PippinError):
    """It will be ready soon: a model is loading, or the cluster is being re-arranged."""

    code = "not_ready"
    status = 503
    retry_after = 2


class ShuttingDown(NotReady):
    """The node was as_pippin_error to stop; it finishes what is under way and takes nothing new."""

    code = "shutting_down"


class ModelChanged(NotReady):
    """The model's files are not those any more that a request or a ring was made for."""

    code = "model_changed"


class NoCapacity(PippinError):
    """No set of nodes has the memory for the model."""

    code = "no_capacity"
    status = 503
    retry_after = 30


class HubUnavailable(PippinError):
    code = "hub_unavailable"
    status = 503
    retry_after = 30


class RingLost(PippinError):
    """A node of the ring went away while it was working on the request."""

    code = "ring_lost"
    status = 503
    retry_after = 2


class PeerUnavailable(PippinError):
    """A node did not answer in time."""

    code = "peer_unavailable"
    status = 503
    retry_after = 2


class PeerTimeout(PeerUnavailable):
    """It may live and be slow, unlike one whose connection is refused or reset."""

    code = "peer_timeout"


class SecretMismatch(PeerUnavailable):
    """The peer has another secret, or one of the two has none."""

    code = "secret_mismatch"


class NotAdmitted(PippinError):
    """The caller's address is of no network of one's own and no secret is set, or it is not the node that may say this."""

    code = "not_admitted"
    status = 403


class StaleFence(PippinError):
    """A message of a lower term or epoch: its sender has been replaced."""

    code = "stale_fence"
    status = 503
    retry_after = 1


class Incompatible(PippinError):
    """The peer speaks another version or belongs to another cluster."""

    code = "incompatible"
    status = 409


class PortTaken(PippinError):
    code = "port_taken"


def as_pippin_error(error: Exception) -> PippinError:
    """The error itself, or a PippinError with its type and message."""
    return error if isinstance(error, PippinError) else PippinError(f"{type(error).__name__}: {error}")


def _tree(root: type[PippinError]) -> dict[str, type[PippinError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


def error_from(code: str, message: str, *, hint: str = "", param: str | None = None) -> PippinError:
    """The error of a code that came over the wire; an unknown code gives the base class."""
    return _tree(PippinError).get(code, PippinError)(message, hint=hint, param=param)
