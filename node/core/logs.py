"""Formats the log, one line per record also if it quotes control characters of peers or clients, and keeps its last lines."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator

RECENT = 2000
"""Lines that are kept for `cluster logs`."""
MAX_LINE_CHARS = 8192
MAX_PART_LINES = 100
"""Maximum lines that are read at once."""
LOOK_S = 0.5
"""Interval at which new lines are looked for."""
QUIET_LOOKS = 20
"""A part without lines comes after so many looks that found none, so that a reader that is gone is noticed."""
WARN_INTERVAL_S = 60.0
"""Minimum interval of a warning that any caller can bring about."""

ERASE_LINE = "\r\x1b[K"
"""Of a terminal: erases the line with the cursor, which may hold a bar of progress."""


class LineFormatter(logging.Formatter):
    """Escapes control characters, and indents tracebacks, in messages as in exceptions."""

    def __init__(self, before: str = "", *, with_date: bool = False) -> None:
        """`before`: characters to write before each record, such as ERASE_LINE."""
        time = "%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S"
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s", time)
        self._before = before

    def format(self, record: logging.LogRecord) -> str:
        line, *more = super().format(record).splitlines() or [""]
        return self._before + "\n".join([_escaped(line), *("    " + _escaped(each) for each in more)])

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = _escaped(record.message)
        return super().formatMessage(record)


class RecentLines:
    """The last lines of the log, in memory, each with its number from 0: the stream of a handler, which threads share."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=RECENT)
        self._count = 0
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        with self._lock:
            for line in text.splitlines():
                self._lines.append(line[:MAX_LINE_CHARS])
                self._count += 1

    def since(self, number: int) -> tuple[list[str], int]:
        """The lines that are kept, from this number on, and the number of the next one."""
        with self._lock:
            kept = min(len(self._lines), max(0, self._count - number))
            return list(self._lines)[len(self._lines) - kept :], self._count

    async def read(self, count: int, *, follow: bool) -> AsyncGenerator[list[str], None]:
        """The last `count` lines, in parts, and with `follow` those that come; empty parts while none comes."""
        lines, number = self.since(self._count - count)
        quiet = 0
        while True:
            for begin in range(0, len(lines), MAX_PART_LINES):
                yield lines[begin : begin + MAX_PART_LINES]
            if not follow:
                return
            if not lines and quiet % QUIET_LOOKS == 0:
                yield []
            await asyncio.sleep(LOOK_S)
            lines, number = self.since(number)
            quiet = 0 if lines else quiet + 1


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
