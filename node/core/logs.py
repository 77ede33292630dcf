"""Formats the log: one line per record, also if it quotes control characters of peers or clients."""

import logging


class LineFormatter(logging.Formatter):
    """Escapes control characters, and indents tracebacks, in messages as in exceptions."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        line, *more = super().format(record).splitlines() or [""]
        return "\n".join([_escaped(line), *("    " + _escaped(each) for each in more)])

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = _escaped(record.message)
        return super().formatMessage(record)


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
