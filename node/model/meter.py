"""Measures a download: its bytes, and how quickly they come."""

import time
from collections import deque
from collections.abc import Callable

from node.core.types import Download

WINDOW_S = 10.0
"""The rate is that of this time: long enough not to jump, short enough to follow a line that becomes slower."""
_MARK_S = 0.5
"""Interval of the marks from which the rate is computed."""


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
        self._clock = clock
        self._marks = deque([(clock(), 0)])
        """Times, and the bytes that had come by then."""
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
        return Download(self._done + (self._here or 0), self._total, self._rate())

    def _rate(self) -> float:
        now = self._clock()
        if now >= self._marks[-1][0] + _MARK_S:
            self._marks.append((now, self._came))
        while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW_S:
            self._marks.popleft()
        since, before = self._marks[0]
        return (self._came - before) / (now - since) if now >= since + _MARK_S else 0.0
