"""What the terminal shows: texts of other machines, which must not control it, and a line of progress."""

import re
import sys
import time
from collections.abc import Callable
from typing import TextIO

CLEAR_LINE = "\r\x1b[2K"
REPEAT_S = 10.0
"""Interval at which a log is told of progress."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NUMBERS = re.compile(r"[\d.]+( [KMGTP]?B)?| (min|s|h)\b")


def printable(line: str) -> str:
    """A line with names of other machines, without what is not printable."""
    return "".join(char if char.isprintable() else "?" for char in line)


def without_controls(text: str) -> str:
    """An answer's text: its line ends and tabs, emoji and combined characters stay, control characters do not."""
    return _CONTROL.sub("", text)


def complain(text: str) -> None:
    print(f"cluster: {without_controls(text)}", file=sys.stderr)


def dim(text: str, to: TextIO) -> str:
    return f"\x1b[2m{text}\x1b[0m" if text and to.isatty() else text


class LogPace:
    """Chooses the texts for a log: all that differ in more than numbers, and every `REPEAT_S` one that differs in these."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told = ""
        self._told_at = 0.0

    def takes(self, text: str) -> bool:
        if text == self._told:
            return False
        if _NUMBERS.sub("", text) == _NUMBERS.sub("", self._told) and self._clock() < self._told_at + REPEAT_S:
            return False
        self._told, self._told_at = text, self._clock()
        return True


def progress() -> Callable[[str], None]:
    """Progress callback: a terminal gets one line, rewritten; a log gets lines. An empty text ends it."""
    if not sys.stderr.isatty():
        pace = LogPace()
        return lambda text: print(printable(text), file=sys.stderr, flush=True) if text and pace.takes(text) else None
    return lambda text: print(f"{CLEAR_LINE}{printable(text)}", end="", file=sys.stderr, flush=True)
