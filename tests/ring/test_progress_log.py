"""What the log and the terminal tell of loads."""

import asyncio
import contextlib
import logging
import os
import sys

import pytest

from node.core.logs import ERASE_LINE
from node.core.models import ModelVersion, Shard
from node.core.reports import Download, StageReport, StageState
from node.ring.progress_log import bar, line, tell_progress

FETCHING = StageReport(
    "r",
    Shard(ModelVersion("org/model"), 0, 22),
    StageState.FETCHING,
    0.26,
    download=Download(1040 << 20, 4000 << 20, 80 << 20),
)
SHARD = Shard(ModelVersion("org/model"), 0, 22)
MB = 1 << 20


def test_a_download() -> None:
    assert line(FETCHING) == "fetching org/model layers 0-21: 26 %, 1.0 of 3.9 GB, 80.0 MB/s, 37 s left"
    assert (
        bar(FETCHING) == "[####............] 26 %, 1.0 of 3.9 GB, 80.0 MB/s, 37 s left: fetching org/model layers 0-21"
    )


def test_a_download_of_which_nothing_has_come() -> None:
    assert line(StageReport("r", SHARD, StageState.FETCHING)) == "fetching org/model layers 0-21: 0 %"
    fetching = StageReport("r", SHARD, StageState.FETCHING, download=Download(0, 4000 * MB))
    assert line(fetching) == "fetching org/model layers 0-21: 0 %, 0.0 of 3.9 GB"


def test_a_load() -> None:
    loading = StageReport("r", SHARD, StageState.LOADING, 1.0)
    assert line(loading) == "loading org/model layers 0-21: 100 %"
    assert bar(loading) == f"[{'#' * 16}] 100 %: loading org/model layers 0-21"


async def test_a_terminal_has_a_bar_until_the_load_is_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "node")
    monkeypatch.setattr("node.ring.progress_log.BAR_S", 0.01)
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    reports, shown = [FETCHING], ""
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stderr", terminal)
        telling = asyncio.create_task(tell_progress(lambda: reports, bars=True))
        async with asyncio.timeout(10):
            while "80.0 MB/s" not in shown:
                shown += (screen.read() or b"").decode()
                await asyncio.sleep(0.01)
            reports.clear()
            while not shown.endswith(ERASE_LINE):
                shown += (screen.read() or b"").decode()
                await asyncio.sleep(0.01)
        telling.cancel()
        await asyncio.wait([telling])
    first = shown.split(ERASE_LINE)[1]
    assert first == bar(FETCHING)[:79]


async def test_a_terminal_that_is_closed_ends_the_bars_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "node")
    monkeypatch.setattr("node.ring.progress_log.LINE_S", 0.01)
    ours, theirs = os.openpty()
    os.close(ours)
    with os.fdopen(theirs, "w", buffering=1) as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        telling = asyncio.create_task(tell_progress(lambda: [FETCHING], bars=True))
        async with asyncio.timeout(10):
            while not (caplog.messages or telling.done()):  # noqa: ASYNC110 - the log tells nobody
                await asyncio.sleep(0.01)
        assert not telling.done()
        telling.cancel()
        await asyncio.wait([telling])
        with contextlib.suppress(OSError):
            terminal.close()


async def test_a_log_has_lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "node")
    monkeypatch.setattr("node.ring.progress_log.LINE_S", 0.01)
    twice = [FETCHING, StageReport("other", SHARD, StageState.READY)]
    telling = asyncio.create_task(tell_progress(lambda: twice, bars=False))
    async with asyncio.timeout(10):
        while not caplog.messages:  # noqa: ASYNC110 - the log tells nobody
            await asyncio.sleep(0.01)
    telling.cancel()
    await asyncio.wait([telling])
    assert set(caplog.messages) == {line(FETCHING)}
