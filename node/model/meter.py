"""Measures a download: its bytes, and how quickly they come."""

import time
from collections.abc import Callable

from node.core.rate import Rate
from node.core.reports import Download


class Meter:
    """Counts the bytes of several files, one after the other, and tells of them. Used by one thread at a time."""

    def __init__(
        self, total: int, done: int, tell: Callable[[Download], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`total`: bytes of all files. `done`: of those that are on the disk."""
        self._total = total
        self._done = done
        self._here: int | None = None
        """Bytes on the disk of the file under way; None until the first are told."""
        self._came = 0
        self._tell = tell
        self._rate = Rate(clock)
        tell(self.download())

    def of_file(self, here: int) -> None:
        """Note the bytes on the disk of the file under way. The first of a file are what an earlier try left."""
        if self._here is not None:
            self._came += max(0, here - self._here)
        self._here = here
        self._tell(self.download())

    def finish_file(self, size: int) -> None:
        self._done += size
        self._here = None
        self._tell(self.download())

    def download(self) -> Download:
        return Download(self._done + (self._here or 0), self._total, self._rate.at(self._came))
