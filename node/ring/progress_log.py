"""Tells how far loads are: in a log a line every 10 s, in a terminal a bar."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

from node.core.clock import in_step
from node.core.logs import ERASE_LINE
from node.core.reports import StageReport, StageState

LINE_S = 10.0
BAR_S = 1.0
_BAR_CHARS = 16
_COLUMNS = 80
"""Of a terminal that does not know."""

log = logging.getLogger(__name__)


async def tell_progress(reports: Callable[[], Sequence[StageReport]], *, bars: bool) -> None:
    """Tell of the stages that are being fetched or loaded, for ever. `bars`: the log goes to a terminal."""
    if not log.isEnabledFor(logging.INFO):
        return
    if bars:
        with contextlib.suppress(OSError):  # the terminal is gone, and the node about to stop in good order
            await _draw_bars(reports)
    while True:
        await asyncio.sleep(in_step(LINE_S))
        for load in _loads(reports()):
            log.info("%s", line(load))


async def _draw_bars(reports: Callable[[], Sequence[StageReport]]) -> None:
    shown = False
    while True:
        loads = _loads(reports())
        if loads or shown:
            more = f" (and {len(loads) - 1} more)" if len(loads) > 1 else ""
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
            text = (bar(loads[0]) + more)[: columns - 1] if loads else ""
            sys.stderr.write(ERASE_LINE + text)
            sys.stderr.flush()
        shown = bool(loads)
        await asyncio.sleep(in_step(BAR_S))


def _loads(reports: Sequence[StageReport]) -> list[StageReport]:
    """Each shard once, though several rings may wait for it."""
    return list({report.shard: report for report in reports if report.loads}.values())


def line(load: StageReport) -> str:
    """Like "fetching org/model layers 0-21: 26 %, 1.2 of 4.6 GB, 80.0 MB/s, 43 s left"."""
    return f"{_what(load)}: {_figures(load)}"


def bar(load: StageReport) -> str:
    """Like a line, with the figures first: a narrow terminal cuts the end."""
    filled = round(_BAR_CHARS * min(load.progress, 1.0))
    return f"[{'#' * filled}{'.' * (_BAR_CHARS - filled)}] {_figures(load)}: {_what(load)}"


def _what(load: StageReport) -> str:
    verb = "fetching" if load.state is StageState.FETCHING else "loading"
    return f"{verb} {load.shard.model} layers {load.shard.start}-{load.shard.end - 1}"


def _figures(load: StageReport) -> str:
    return ", ".join([f"{100 * load.progress:.0f} %", *([str(load.download)] if load.download else [])])
