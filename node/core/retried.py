"""What a task does again and again, and survives."""

import logging
from types import TracebackType

from node.core.errors import PippinError

log = logging.getLogger(__name__)


class Retried:
    """One round of a task that goes on for ever, as `with self._listing: ...` at the task's root.

    A failure ends the round alone. It is logged once, until a round succeeds or fails in another way.
    """

    def __init__(self, what: str) -> None:
        """`what` failed, as the log is to say: "The models on disk could not be listed"."""
        self._what = what
        self._told = ""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            self._told = ""
            return False
        if not isinstance(error, Exception):
            return False  # the task is cancelled, or the process ends
        said = f"{type(error).__name__}: {error}"
        if said != self._told:
            self._told = said
            expected = isinstance(error, OSError | PippinError)
            log.warning("%s, and is tried again: %s", self._what, said, exc_info=None if expected else error)
        return True
