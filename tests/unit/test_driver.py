"""A driver of a ring of one node, with a runner that fails where it is told to."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from node.core.frames import Frame
from node.core.generation import GenerateRequest, TokenEvent
from node.core.types import Fence, Ring, StageSpec
from node.engine.runner import Draw, StepFailed
from node.engine.sampling import Sampled
from node.serving import driver as driving
from node.serving.driver import RESTART_WINDOW_S, Driver
from node.serving.limits import Limits

RING = Ring("m@1.1", "m", (StageSpec("a", 0, 4),), 4096, 4, fence=Fence(1, 1))
BAD = 13


class FakeCompute:
    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0)
        return fn(*args)


class FakeRunner:
    """A token counts those that were drawn before it; a step with the token BAD fails."""

    batchable = pads = trimmable = True
    vocabulary = 5000

    def run_alone(self, _frame: Frame, tokens: Sequence[Sequence[int]], draws: Sequence[Draw]) -> list[Sampled]:
        if any(BAD in row for row in tokens):
            raise StepFailed("The step could not be computed.")
        return [Sampled(100 + draw.position) for draw in draws]

    def reset(self) -> None:
        pass


@asynccontextmanager
async def driven() -> AsyncIterator[Driver]:
    limits = Limits(context=4096, max_sessions=4, max_queue=4, max_rows=4, chunk=128)
    driver = Driver(RING, limits, FakeCompute(), FakeRunner(), None, lambda: False, step_timeout_s=60)
    task = asyncio.create_task(driver.run())
    yield driver
    task.cancel()
    await asyncio.wait([task])


async def answer(driver: Driver, prompt: tuple[int, ...], max_tokens: int) -> list[TokenEvent]:
    return [event async for event in driver.generate(GenerateRequest("x", "m", prompt, max_tokens))]


async def test_steps_that_fail_far_apart_end_their_own_sessions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr(driving, "now", lambda: clock)
    monkeypatch.setattr(driving, "RESTART_DELAY_S", 0.0)
    async with driven() as driver:
        stream = driver.generate(GenerateRequest("x", "m", (1, 2, 3), 1000))
        tokens = [(await anext(stream)).token]
        for _ in range(3):
            with pytest.raises(StepFailed):
                await answer(driver, (7, BAD), 5)
            count = len(tokens)
            while len(tokens) < count + 20:
                tokens.append((await anext(stream)).token)
            clock += RESTART_WINDOW_S * 2
        await stream.aclose()
        assert tokens == [100 + position for position in range(61)]
        assert (driver.load().running, driver.load().queued) == (0, 0)
