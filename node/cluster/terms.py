"""The terms of elections on this node's disk. What can't be written is tried again, and told to all nodes meanwhile."""

import logging
from collections.abc import Callable

from node.core.types import LONGEST_NAME

log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""Each try may hold up the event loop, on a disk that fails."""


class Terms:
    def __init__(self, write: Callable[[int], None]) -> None:
        self.error = ""
        """Why the last term is not on disk; empty if it is."""
        self._write = write
        self._unsaved = 0
        self._again_at = 0.0

    def save(self, term: int, present: float) -> bool:
        """Whether the term is on disk; not tried within `AGAIN_S` of a failure."""
        self._unsaved = term
        if not self.error or present >= self._again_at:
            self._try(present)
        return not self.error

    def try_again(self, present: float) -> None:
        """Call a few times a second."""
        if self.error and present >= self._again_at:
            self._try(present)

    def _try(self, present: float) -> None:
        try:
            self._write(self._unsaved)
        except OSError as error:
            self._again_at = present + AGAIN_S
            text = "".join(filter(str.isprintable, error.strerror or str(error)))[:LONGEST_NAME] or "unknown error"
            if text != self.error:
                log.error("term %d can't be saved: %s", self._unsaved, text)
            self.error = text
        else:
            if self.error:
                log.info("term %d is saved: the disk works again", self._unsaved)
            self.error = ""
