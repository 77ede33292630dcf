"""Measures a download: its bytes, and how quickly they come."""

import time
from collections.abc import Callable

from node.core.rate import Rate
from node.core.reports import Download


class Meter:
    """Counts the bytes of a load's files. They may be counted in another thread than that which asks for them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = Rate(clock)
        self._came = 0
        self.begin(0, 0)

    def begin(self, done: int, total: int) -> None:
        """Bytes of the files that are here, and of all. What is counted from now on is added to the former."""
        self._done = done
        self._total = total
        self._here: int | None = None
        """Bytes on the disk of the files under way; None until the first are counted."""

    def count(self, here: int) -> None:
        """Note the bytes on the disk of the files under way. The first ones are what an earlier try left."""
        if self._here is not None:
            self._came += max(0, here - self._here)
        self._here = here

    def download(self) -> Download:
        return Download(self._done + (self._here or 0), self._total, self._rate.at(self._came))
