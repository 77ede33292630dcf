"""What a node holds, with stages that are no more than weights."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.core.types import Fence, LoadState, Placement, Ring, StageSpec
from node.engine.compute import Compute
from node.serving import rings as serving
from node.serving.rings import Rings

ALONE = (StageSpec("a", 0, 4),)
FIRST = (StageSpec("a", 0, 2), StageSpec("b", 2, 4))
SECOND = (StageSpec("b", 0, 2), StageSpec("a", 2, 4))


class Weights:
    pass


class FakeStage:
    weight_bytes = 0
    plan = SimpleNamespace(kv=())

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def sibling(self) -> "FakeStage":
        return FakeStage(self.weights)

    def clear(self) -> None:
        pass


class FakeRunner:
    batchable = pads = trimmable = True
    kv_bytes = 0

    def __init__(self, stage: FakeStage, _directory: Path) -> None:
        self._stage = stage

    def reset(self) -> None:
        pass


class FakeCompute(Compute):
    def submit(self, fn: Callable[..., Any], *args: Any, **_kwargs: Any) -> Any:
        fn(*args)

    async def run(self, fn: Callable[..., Any], *args: Any, **_kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return fn(*args)


class FakeAgent:
    info = SimpleNamespace(id="a")

    def __init__(self) -> None:
        self.placement = Placement()
        self.adopted = asyncio.Event()
        self.touched = asyncio.Event()

    def adopt(self, placement: Placement) -> None:
        self.placement = placement
        self.adopted.set()
        self.adopted = asyncio.Event()

    def touch(self) -> None:
        self.touched.set()


async def fetch(*_: Any) -> Path:
    return Path()


@pytest.mark.parametrize("stages", [ALONE, FIRST, SECOND])
async def test_nobody_holds_on_to_weights_when_memory_is_given_back(
    stages: tuple[StageSpec, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[weakref.ref[Weights]] = []
    held: list[bool] = []
    released = asyncio.Event()

    def load(_directory: Path, _start: int, _end: int) -> Generator[float, None, FakeStage]:
        yield 0.0
        stage = FakeStage(Weights())
        loaded.append(weakref.ref(stage.weights))
        return stage

    def release() -> None:
        gc.collect()
        held.append(loaded[0]() is not None)
        released.set()

    monkeypatch.setattr(serving, "load_stage", load)
    monkeypatch.setattr(serving, "Runner", FakeRunner)
    monkeypatch.setattr(serving, "release_memory", release)
    agent, contacts = FakeAgent(), SimpleNamespace(address_of=lambda _: None)
    options = {"max_queue": 4, "max_batch": 4, "step_timeout_s": 60}
    rings = Rings(agent, contacts, FakeCompute(), None, fetch, **options)
    task = asyncio.create_task(rings.run())
    async with asyncio.timeout(5):
        ring = Ring("m@1.1", "m", stages, 512, 2, fence=Fence(1, 1))
        agent.adopt(Placement(Fence(1, 1), "a", (ring,)))
        while not any(report.state is LoadState.READY for report in rings.reports()):
            agent.touched.clear()
            await agent.touched.wait()
        agent.adopt(Placement(Fence(1, 2), "a"))
        await released.wait()
    assert held == [False]
    task.cancel()
    await asyncio.wait([task])
