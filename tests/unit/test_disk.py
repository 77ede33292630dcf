"""Fetching and deleting models for users."""

import asyncio
from typing import Any

import pytest

from node.core.errors import ModelBusy
from node.core.models import KvCost, ModelSpec
from node.core.pool import Pools
from node.core.types import Download
from node.gateway.disk import Disk

SPEC = ModelSpec("org/m", (40, 40), 20, (KvCost(1), KvCost(1)), (1,), 1000)


class Parts:
    """The catalogue, the descriptions and the files of one model. Its download is half done until `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.removed = 0

    async def find(self, _: str) -> ModelSpec:
        return SPEC

    async def of_shard(self, shard: Any, *, ends: bool, progress: Any) -> None:
        assert (shard.start, shard.end, ends) == (0, 2, True)
        progress(Download(1, 2))
        await self.go_on.wait()

    def remove(self, _: str) -> int:
        self.removed += 1
        return 100

    def refresh(self) -> None:
        pass


async def test_a_model_that_is_being_fetched_or_used_is_not_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.gateway.disk.TELL_S", 0.01)
    parts: Any = Parts()
    used: set[str] = set()
    disk = Disk(parts, parts, parts, Pools(), lambda: used, lambda: None)
    first, second = disk.pull("org/m"), disk.pull("org/m")
    assert (await anext(first), await anext(second)) == ((50, 100), (50, 100))
    await second.aclose()
    with pytest.raises(ModelBusy, match="is fetching org/m"):
        await disk.remove("org/m")
    parts.go_on.set()
    assert [each async for each in first][-1] == (100, 100)
    used.add("org/m")
    with pytest.raises(ModelBusy, match="in memory"):
        await disk.remove("org/m")
    assert not parts.removed
    used.clear()
    assert await disk.remove("org/m") == 100
