"""How quickly bytes come, or tokens."""

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 10.0
"""Long enough not to jump, short enough to follow a line that becomes slower."""
_MARKS = 20
"""Marks of a window, from which the rate is computed."""


class Rate:
    """Bytes or tokens per second of the last WINDOW_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque()
        """Times, and what had come by then."""

    def at(self, count: int) -> float:
        """The rate, now that so many have come; 0 while it is not known, or while nothing comes."""
        now = self._clock()
        if not self._marks or now >= self._marks[-1][0] + WINDOW_S / _MARKS:
            self._marks.append((now, count))
        while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW_S:
            self._marks.popleft()
        since, before = self._marks[0]
        return (count - before) / (now - since) if now >= since + WINDOW_S / _MARKS else 0.0
