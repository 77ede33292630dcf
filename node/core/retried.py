"""Keeps an endless task alive when one of its rounds fails."""

import logging
from contextlib import AbstractContextManager

from node.core.errors import PippinError

log = logging.getLogger(__name__)


class Retried(AbstractContextManager[object]):
    """Context of one round of an endless task, entered at the task's root again and again.

    An exception ends the round only. It is logged once, until a round succeeds or fails with another error.
    """

    def __init__(self, what: str) -> None:
        """`what`: log message for a failure, such as "The models on disk could not be listed"."""
        self._what = what
        self._told = ""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
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
