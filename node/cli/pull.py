"""`cluster pull`: shows how far a download has come, how quick it is, and when it will end."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable

from node.cli.client import Api
from node.cli.terminal import progress
from node.core.units import format_bytes, format_duration, format_share

LOG_S = 10.0
"""Interval of the lines in a log; a terminal gets one line that changes with each event."""
WINDOW_S = 10.0
"""The rate is that of the last seconds."""


class Rate:
    """Bytes per second of the last WINDOW_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, done: int) -> float:
        at = self._clock()
        self._samples.append((at, done))
        while at - self._samples[0][0] > WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()
        since, before = self._samples[0]
        return (done - before) / (at - since) if at > since else 0.0


def pull(api: Api, model: str) -> str:
    """Returns the model's id and size when all its files are here. Raises NoNode, StatusFailed, Refused."""
    tell, rate, told_at = progress(), Rate(), float("-inf")
    name, size = model, 0
    with contextlib.closing(api.pull(model)) as events:
        for event in events:
            if isinstance(event, str):
                continue
            name, size = event["model"], event["bytes"]
            line = f"{name}   {describe(event['done'], size, rate.add(event['done']))}"
            if sys.stderr.isatty() or time.monotonic() - told_at >= LOG_S:
                tell(line)
                told_at = time.monotonic()
    tell("")
    return f"{name}   {format_bytes(size)}"


def describe(done: int, size: int, rate: float) -> str:
    """Format like "4.2 of 18.4 GB   87.1 MB/s   2 min left"."""
    parts = [format_share(done, size)]
    if rate > 0:
        parts += [f"{format_bytes(round(rate))}/s", f"{format_duration((size - done) / rate)} left"]
    return "   ".join(parts)
