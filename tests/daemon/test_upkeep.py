"""How a node tells of issues of its own machine."""

import asyncio
from dataclasses import replace

import pytest

from node.core.pool import Pool
from node.core.reports import Issue
from node.core.warning_codes import Code
from node.daemon.upkeep import Upkeep


class Agent:
    touched = 0

    def touch(self) -> None:
        self.touched += 1


async def test_issues_are_logged_and_told_when_they_come_and_go(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Numbers that change are no news."""
    monkeypatch.setattr("node.daemon.upkeep.in_step", lambda _: 0.0)
    full = Code.DISK_LOW.issue(node="mini", folder="/models", free="1.0 GB")
    looks: list[tuple[Issue, ...]] = [
        (),
        (full,),
        (replace(full, text="mini has 0.9 GB left"),),
        (Code.OPEN_API.issue(node="mini"),),
    ]
    told: list[int] = []
    pool, agent, done = Pool("test", 1, 1), Agent(), asyncio.Event()
    upkeep = Upkeep(pool, None)  # type: ignore[arg-type]

    async def find() -> tuple[Issue, ...]:
        told.append(agent.touched)
        if len(told) > len(looks):
            done.set()
        await asyncio.sleep(0)
        return looks[min(len(told), len(looks)) - 1]

    with caplog.at_level("INFO"):
        task = asyncio.create_task(upkeep.keep_issues(find, agent))  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            await done.wait()
        task.cancel()
    assert told[:5] == [0, 0, 1, 1, 2]
    assert upkeep.issues == looks[-1]
    said = [record.getMessage() for record in caplog.records]
    assert [line[:25] for line in said] == [
        "mini has 1.0 GB left on t",
        "mini answers requests fro",
        "disk-low: no longer so",
    ]
