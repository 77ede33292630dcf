"""Translates exceptions of huggingface_hub into errors of node.core.errors."""

import errno
import re

from huggingface_hub import errors
from huggingface_hub.errors import HTTPError as TransportError  # type: ignore[attr-defined]  # httpx's or httpx2's

from node.core.errors import HubUnavailable, ModelGated, ModelNotFound, ModelUnsupported, NoCapacity, PippinError
from node.model.formats import TAKE_ANOTHER

HUB_ERRORS = (
    TransportError,
    OSError,
    errors.EntryNotFoundError,
    errors.HFValidationError,
    RuntimeError,  # hf_xet's, for all that is neither access nor connection
)
_UNKNOWN = (errors.HFValidationError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError)

_PASSING = {408, 425, 429, 500, 502, 503, 504}
"""HTTP statuses that indicate a temporary failure."""


def is_temporary(error: Exception) -> bool:
    """Whether a retry may succeed: the connection broke, or the hub has a temporary failure."""
    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code in _PASSING
    return isinstance(error, TransportError)


def translated(error: Exception, model_id: str) -> PippinError:
    if isinstance(error, errors.HfHubHTTPError | errors.HFValidationError):
        return _refused(error, model_id)
    # Only OSErrors of the system have an errno; huggingface_hub derives exceptions of its own from OSError, too.
    if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NoCapacity(
                f"The disk became full while {model_id} was fetched.",
                hint="Free some space, or set HF_HOME to a larger disk.",
            )
        return PippinError(
            f"{model_id} cannot be stored: {error.strerror or type(error).__name__}.",
            hint="Check the rights of the hub's cache directory.",
        )
    cause = error.__cause__ or error
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return HubUnavailable(
            f"{model_id} is not on this node, and HF_HUB_OFFLINE forbids to fetch it.",
            hint="Unset HF_HUB_OFFLINE, or copy the model into a directory given with --models-dir.",
        )
    return HubUnavailable(
        f"The hub cannot be reached for {model_id} ({first_line(cause)}).",
        hint="Check the network, or copy the model into a directory given with --models-dir.",
    )


def _refused(error: errors.HfHubHTTPError | errors.HFValidationError, model_id: str) -> PippinError:
    """Subclasses come first: GatedRepoError is a RepositoryNotFoundError for backward compatibility."""
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else 0
    if isinstance(error, errors.GatedRepoError):
        hint = f"Accept its licence at https://huggingface.co/{model_id} and set HF_TOKEN on each node."
        return ModelGated(f"{model_id} is gated on the hub.", hint=hint)
    if isinstance(error, errors.RemoteEntryNotFoundError):
        file = error.response.url.path.rpartition("/")[2]
        return ModelUnsupported(f"{model_id} lacks a file that every model must have ({file}).", hint=TAKE_ANOTHER)
    if isinstance(error, _UNKNOWN) or status == 404:
        hint = "Check the spelling; a private model needs HF_TOKEN."
        return ModelNotFound(f"There is no model {model_id!r} on the hub.", hint=hint, param="model")
    if status in (401, 403):
        hint = "Check that HF_TOKEN is valid and may read this model."
        return ModelGated(f"The hub refuses {model_id} with status {status}.", hint=hint)
    return HubUnavailable(f"The hub answers {status} for {model_id}.", hint="Try again in a while.")


def first_line(error: BaseException) -> str:
    """Without the number of an error of the system, which tells a user nothing."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.sub(r"^\[Errno -?\d+\] ", "", line)
