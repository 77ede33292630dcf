"""Stores the term of the last election on this node's disk, and retries what could not be written."""

import logging
from collections.abc import Callable

from node.core.limits import MAX_NAME_CHARS

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Interval of retries: each may block the event loop if the disk is failing."""


class TermStore:
    def __init__(self, write: Callable[[int], None]) -> None:
        """`write` may raise OSError."""
        self.error = ""
        """Why the last term is not on disk; empty if it is."""
        self._write = write
        self._unsaved = 0
        self._retry_at = 0.0

    def save(self, term: int, present: float) -> bool:
        """Whether the term is on disk; not tried within RETRY_S of a failure."""
        self._unsaved = term
        if not self.error or present >= self._retry_at:
            self._try(present)
        return not self.error

    def retry(self, present: float) -> None:
        """Retry what could not be written, when it is due. Call a few times a second."""
        if self.error and present >= self._retry_at:
            self._try(present)

    def _try(self, present: float) -> None:
        try:
            self._write(self._unsaved)
        except OSError as error:
            self._retry_at = present + RETRY_S
            text = "".join(filter(str.isprintable, error.strerror or str(error)))[:MAX_NAME_CHARS] or "unknown error"
            if text != self.error:
                log.error("term %d can't be saved: %s", self._unsaved, text)
            self.error = text
        else:
            if self.error:
                log.info("term %d is saved: the disk works again", self._unsaved)
            self.error = ""
