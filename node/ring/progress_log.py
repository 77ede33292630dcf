"""Tells how far stages are that are being fetched or loaded: in a log a line every 10 s, in a terminal a bar."""

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

log = logging.getLogger(__name__)


async def tell_progress(reports: Callable[[], Sequence[StageReport]], *, bars: bool) -> None:
    """For ever. `bars`: the log goes to a terminal."""
    if not log.isEnabledFor(logging.INFO):
        return
    if bars:
        with contextlib.suppress(OSError):  # the terminal is gone, and the node about to stop in good order
            await _draw_bars(reports)
    while True:
        await asyncio.sleep(in_step(LINE_S))
        for stage in _loading(reports()):
            log.info("%s", line(stage))


async def _draw_bars(reports: Callable[[], Sequence[StageReport]]) -> None:
    shown = False
    while True:
        stages = _loading(reports())
        if stages or shown:
            more = f" (and {len(stages) - 1} more)" if len(stages) > 1 else ""
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            text = (bar(stages[0]) + more)[: columns - 1] if stages else ""
            sys.stderr.write(ERASE_LINE + text)
            sys.stderr.flush()
        shown = bool(stages)
        await asyncio.sleep(in_step(BAR_S))


def _loading(reports: Sequence[StageReport]) -> list[StageReport]:
    """Each shard once, though several rings may wait for it."""
    return list({report.shard: report for report in reports if report.loads}.values())


def line(stage: StageReport) -> str:
    """Like "fetching org/model layers 0-21: 26 %, 1.2 of 4.6 GB, 80.0 MB/s, 43 s left"."""
    return "{}: {}".format(*_what_and_figures(stage))


def bar(stage: StageReport) -> str:
    """Like a line, with the figures first: a narrow terminal cuts the end."""
    filled = round(_BAR_CHARS * min(stage.progress, 1.0))
    what, figures = _what_and_figures(stage)
    return f"[{'#' * filled}{'.' * (_BAR_CHARS - filled)}] {figures}: {what}"


def _what_and_figures(stage: StageReport) -> tuple[str, str]:
    verb = "fetching" if stage.state is StageState.FETCHING else "loading"
    download = f", {stage.download}" if stage.download else ""
    what = f"{verb} {stage.shard.model} layers {stage.shard.start}-{stage.shard.end - 1}"
    return what, f"{100 * stage.progress:.0f} %{download}"
