"""What the head does about a model that it cannot find."""

import asyncio
import itertools
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from node.cluster.wanted import MOST_RETRY_S, RETRY_S, WantedModels
from node.core.errors import HubUnavailable
from node.core.types import Memory, NodeInfo, NodeReport, Placement

NODE = NodeReport(NodeInfo("me", 1, "me", "home", "1", 1, (), 1, 2), Memory(1, 1), preload=("org/m",))


async def test_a_hub_that_is_missing_is_told_once_and_asked_ever_less(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    time, asked = 100.0, []
    monkeypatch.setattr("node.cluster.wanted.now", lambda: time)

    async def find(_: str) -> Any:
        asked.append(time)
        raise HubUnavailable("The hub cannot be reached.")

    agent: Any = SimpleNamespace(
        alive=lambda: [NODE],
        placement=Placement(),
        last_joined_at=0.0,
        head_due=SimpleNamespace(notify=lambda: None),
    )
    specs: Any = SimpleNamespace(find=find)
    wanted = WantedModels(agent, specs)
    async with wanted.group:
        while time < 100.0 + 6 * MOST_RETRY_S:
            wanted.update([NODE], Placement())
            if asked[1:]:
                assert wanted.refusals(), "the reason stays in sight"
            await asyncio.gather(*wanted.describing.values())
            time += 1.0
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert pauses[:5] == [RETRY_S + 1, 2 * RETRY_S + 1, 4 * RETRY_S + 1, 8 * RETRY_S + 1, MOST_RETRY_S + 1]
    assert pauses[4:] == [MOST_RETRY_S + 1] * len(pauses[4:])
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
