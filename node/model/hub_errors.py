"""Translates exceptions of huggingface_hub into errors of node.core.errors."""

import errno

from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    SafetensorsParsingError,
)
from huggingface_hub.errors import HTTPError as TransportError  # type: ignore[attr-defined]  # httpx's or httpx2's

from node.core.errors import (
    HubUnavailable,
    ModelBroken,
    ModelGated,
    ModelNotFound,
    ModelUnsupported,
    NoCapacity,
    PippinError,
)
from node.model.formats import TAKE_ANOTHER

HUB_ERRORS = (
    TransportError,
    OSError,
    EntryNotFoundError,
    HFValidationError,
    SafetensorsParsingError,
    RuntimeError,  # hf_xet's, for all that is neither access nor connection
)


_PASSING = {408, 425, 429, 500, 502, 503, 504}
"""HTTP statuses that indicate a temporary failure."""


def is_temporary(error: Exception) -> bool:
    """Whether a retry may succeed: the connection broke, or the hub has a temporary failure."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in _PASSING
    return isinstance(error, TransportError)


def translated(error: Exception, model_id: str) -> PippinError:
    if isinstance(error, HfHubHTTPError):
        return _refused(error, model_id)
    if isinstance(error, HFValidationError):
        return _unknown(model_id)
    if isinstance(error, SafetensorsParsingError):
        return ModelBroken(f"The weights of {model_id} on the hub are damaged: {first_line(error)}")
    # Only OSErrors of the system have an errno; huggingface_hub derives exceptions of its own from OSError, too.
    if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError):
        return _disk(error, model_id)
    return _unreachable(error, model_id)


def _unknown(model_id: str) -> ModelNotFound:
    return ModelNotFound(
        f"There is no model {model_id!r} on the hub.",
        hint="Check the spelling; a private model needs HF_TOKEN.",
        param="model",
    )


def _refused(error: HfHubHTTPError, model_id: str) -> PippinError:
    """Translate an error status of the hub.

    Subclasses come first: GatedRepoError is a RepositoryNotFoundError for backward compatibility.
    """
    status = error.response.status_code
    match error:
        case GatedRepoError():
            return ModelGated(
                f"{model_id} is gated on the hub.",
                hint=f"Accept its licence at https://huggingface.co/{model_id} and set HF_TOKEN on each node.",
            )
        case RemoteEntryNotFoundError():
            return ModelUnsupported(
                f"{model_id} lacks a file that every model must have ({error.response.url.path.rpartition('/')[2]}).",
                hint=TAKE_ANOTHER,
            )
        case RepositoryNotFoundError() | RevisionNotFoundError():
            return _unknown(model_id)
    if status == 404:
        return _unknown(model_id)
    if status in (401, 403):
        return ModelGated(
            f"The hub refuses {model_id} with status {status}.",
            hint="Check that HF_TOKEN is valid and may read this model.",
        )
    return HubUnavailable(f"The hub answers {status} for {model_id}.", hint="Try again in a while.")


def _unreachable(error: Exception, model_id: str) -> HubUnavailable:
    cause = error.__cause__ or error
    if isinstance(cause, OfflineModeIsEnabled):
        return HubUnavailable(
            f"{model_id} is not on this node, and HF_HUB_OFFLINE forbids to fetch it.",
            hint="Unset HF_HUB_OFFLINE, or copy the model into a directory given with --models-dir.",
        )
    return HubUnavailable(
        f"The hub cannot be reached for {model_id} ({first_line(cause)}).",
        hint="Check the network, or copy the model into a directory given with --models-dir.",
    )


def _disk(error: OSError, model_id: str) -> PippinError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoCapacity(
            f"The disk became full while {model_id} was fetched.",
            hint="Free some space, or set HF_HOME to a larger disk.",
        )
    return PippinError(
        f"{model_id} cannot be stored: {error.strerror or type(error).__name__}.",
        hint="Check the rights of the hub's cache directory.",
    )


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
