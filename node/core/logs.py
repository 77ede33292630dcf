"""Formats the log: one line per record, also if it quotes control characters of peers or clients."""

import logging
from collections import deque
from contextlib import nullcontext

RECENT = 2000
"""Lines that are kept for `cluster logs`."""
MAX_LINE_CHARS = 8192

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


class RecentLines(logging.Handler):
    """Keeps the last lines of the log in memory, each with its number from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(LineFormatter())
        self.count = 0
        """Number of lines so far."""
        self._lines: deque[str] = deque(maxlen=RECENT)

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).split("\n"):
            self._lines.append(line[:MAX_LINE_CHARS])
            self.count += 1

    def since(self, number: int) -> list[str]:
        """The lines that are kept, from this number on."""
        with self.lock or nullcontext():
            kept = min(len(self._lines), max(0, self.count - number))
            return list(self._lines)[len(self._lines) - kept :]


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
