"""What a node looks after every few seconds."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from node.core.errors import ModelNotFound
from node.core.models import ModelVersion
from node.core.pool import Pool
from node.core.reports import Issue
from node.core.rings import Placement, Ring, StageSpec
from node.core.signal import Signal
from node.core.warning_codes import Code
from node.daemon.upkeep import Upkeep
from tests.patience import PATIENCE_S


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


class Following:
    """An agent that adopts placements."""

    def __init__(self) -> None:
        self.info = SimpleNamespace(id="me")
        self.placement = Placement()
        self.adopted = Signal()

    def adopt(self, *rings: Ring) -> None:
        self.placement = Placement(rings=rings)
        self.adopted.notify()


def ring(model: str, *nodes: str) -> Ring:
    stages = tuple(StageSpec(node, k, k + 1) for k, node in enumerate(nodes))
    return Ring(f"{model}@1", ModelVersion(model), stages, 2048, 1)


async def test_a_node_without_layers_tries_what_others_serve_once() -> None:
    agent, tried = Following(), asyncio.Queue[str]()
    agent.placement = Placement(rings=(ring("first", "a", "b"),))

    async def describe(version: ModelVersion) -> None:
        tried.put_nowait(version.model)
        if version.model == "first":
            agent.adopt(ring("first", "a", "b"), ring("second", "a"))  # meanwhile
        if version.model == "second":
            raise ModelNotFound("second is not on this node.")

    upkeep: Any = Upkeep(Pool("test", 1, 1), None)  # type: ignore[arg-type]
    task = asyncio.create_task(upkeep.try_served(agent, describe))
    async with asyncio.timeout(PATIENCE_S):
        assert [await tried.get(), await tried.get()] == ["first", "second"]
        agent.adopt(ring("third", "a", "me"), ring("fourth", "b"))
        for _ in range(5):
            await asyncio.sleep(0)
        agent.adopt(ring("fifth", "b"), ring("second", "a"))
        assert await tried.get() == "fifth"
    task.cancel()
    assert tried.empty()
