"""Fetching and deleting models for users."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from node.core.errors import ModelBusy, ModelNotFetched, ModelNotFound, PippinError
from node.core.models import KvCost, ModelSpec, ModelVersion
from node.core.pool import Pools
from node.core.reports import Download
from node.gateway.disk import Disk, Pulled
from node.kv.store import KvStore

SPEC = ModelSpec(ModelVersion("org/m"), (40, 40), 20, (KvCost(1), KvCost(1)), (1,), 1000)


class Parts:
    """The catalogue, the descriptions and the files of one model. Its download is half done until `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.removed = 0
        self.catalogue = self
        self.fetching: list[str] = []
        """Models that are being fetched, in the order in which their fetches began."""
        self.forgotten: list[str] = []

    async def id_of(self, name: str) -> str:
        return name

    def check(self, model: str) -> None:
        """All models are allowed."""

    async def find(self, model: str) -> ModelSpec:
        return replace(SPEC, version=ModelVersion(model))

    async def of_shard(self, shard: Any, *, ends: bool, progress: Any, downloads: Any) -> None:
        assert (shard.start, shard.end, ends) == (0, 2, True)
        progress(Download(1, 2))
        self.fetching.append(shard.model)
        try:
            await self.go_on.wait()
        finally:
            self.fetching.remove(shard.model)

    def remove(self, _: str, *, not_fetched: bool) -> int:
        self.removed += 1
        return 100

    def refresh(self) -> None:
        pass

    async def forget(self, model: str) -> None:
        self.forgotten.append(model)


class Kv(KvStore):
    """Of the model there are 7 bytes of KV."""

    def __init__(self) -> None:
        self.left = 7

    def remove(self, model: str) -> int:
        freed, self.left = self.left, 0
        return freed


async def test_kv_goes_also_if_the_files_are_a_users_but_not_if_the_files_may_go() -> None:
    def refuse(_: str, *, not_fetched: bool) -> int:
        raise refusal

    refusal: PippinError = ModelNotFetched("Another program fetched it.")
    parts: Any = Parts()
    parts.remove = refuse
    disk = Disk(parts, parts, Kv(), parts, parts, Pools(), tuple, lambda: None, parts.forget)
    with pytest.raises(ModelNotFetched):
        await disk.remove("org/m")
    refusal = ModelNotFound("Its folder is a user's.")
    assert await disk.remove("org/m") == ("org/m", 7)
    with pytest.raises(ModelNotFound):
        await disk.remove("org/m")
    assert not parts.forgotten


async def test_a_model_that_is_being_fetched_or_used_is_not_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.gateway.disk.TELL_S", 0.01)
    parts: Any = Parts()
    used: set[str] = set()
    disk = Disk(parts, parts, Kv(), parts, parts, Pools(), lambda: used, lambda: None, parts.forget)
    first, second = disk.pull("org/m", "a"), disk.pull("org/m", "b")
    assert (await anext(first), await anext(second)) == (Pulled("org/m", 50, 100), Pulled("org/m", 50, 100))
    await second.aclose()
    with pytest.raises(ModelBusy, match="is fetching org/m"):
        await disk.remove("org/m")
    parts.go_on.set()
    assert [each async for each in first][-1] == Pulled("org/m", 100, 100)
    used.add("org/m")
    with pytest.raises(ModelBusy, match="in memory"):
        await disk.remove("org/m")
    assert not parts.removed
    assert not parts.forgotten
    used.clear()
    assert await disk.remove("org/m") == ("org/m", 107)
    assert parts.forgotten == ["org/m"], "no process goes on with files that are gone"


async def test_two_models_are_fetched_at_once_and_each_client_has_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.gateway.disk.TELL_S", 0.01)
    monkeypatch.setattr("node.gateway.disk.TURN_S", 0.05)
    parts: Any = Parts()
    disk = Disk(parts, parts, Kv(), parts, parts, Pools(), tuple, lambda: None, parts.forget)
    ended: list[str] = []

    async def pull(model: str, client: str) -> None:
        async for _ in disk.pull(model, client):
            pass
        ended.append(model)

    async def until(*clients: str) -> None:
        async with asyncio.timeout(30):
            while sorted(model[0] for model in parts.fetching) != sorted(clients):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)

    pulls = {model: asyncio.create_task(pull(model, model[0])) for model in ("a1", "a2", "a3", "a4")}
    await until("a", "a")
    pulls["b1"] = asyncio.create_task(pull("b1", "b"))
    await until("a", "b")
    pulls["c1"] = asyncio.create_task(pull("c1", "c"))
    for clients in (("b", "c"), ("a", "c"), ("a", "b")):
        await until(*clients)
    pulls["b1"].cancel()
    pulls["c1"].cancel()
    await until("a", "a")
    parts.go_on.set()
    await asyncio.wait(pulls.values())
    assert sorted(ended) == ["a1", "a2", "a3", "a4"]
    assert not parts.fetching
