"""Tokens per second over the last few seconds."""

from collections import deque

WINDOW_S = 5.0
"""Long enough to be read by a person, short enough to show a stall."""


class Rate:
    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def count(self, now: float) -> None:
        self._times.append(now)
        self._prune(now)

    def per_second(self, now: float) -> float:
        self._prune(now)
        return len(self._times) / WINDOW_S

    def _prune(self, now: float) -> None:
        while self._times and self._times[0] < now - WINDOW_S:
            self._times.popleft()
