"""A driver of a ring of one node, with a runner that fails where it is told to."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from node.core.errors import Overloaded, RingLost
from node.core.frames import Frame, Held
from node.core.generation import GenerateRequest, TokenEvent
from node.core.types import Fence, Ring, StageSpec
from node.engine.runner import Draw, StepFailed
from node.engine.sampling import Sampled
from node.serving import driver as driving
from node.serving import outage
from node.serving.driver import Driver
from node.serving.limits import Limits
from node.serving.outage import MOST_BREAKS, RESTART_WINDOW_S

RING = Ring("m@1.1", "m", (StageSpec("a", 0, 4),), 4096, 4, fence=Fence(1, 1))
BAD, NAN = 13, 14


class FakeCompute:
    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0)
        return fn(*args)


class FakeRunner:
    """A token counts those that were drawn before it; a step with the token BAD fails, and costs no other lane's KV. Of a
    step with the token NAN only its row fails.
    """

    batchable = pads = trimmable = True
    chunked = False
    vocabulary = 5000

    def __init__(self) -> None:
        self.computed = 0
        """Tokens."""

    def run_alone(self, _frame: Frame, tokens: Sequence[Sequence[int]], draws: Sequence[Draw]) -> list[Any]:
        self.computed += sum(map(len, tokens))
        if any(BAD in row for row in tokens):
            raise StepFailed("The step could not be computed.")
        failed = StepFailed("The numbers of layers 2 to 4 are not finite.")
        rows = zip(tokens, draws, strict=True) if draws else ()
        return [failed if NAN in row else Sampled(100 + draw.position) for row, draw in rows]

    def recall(self, held: tuple[Held, ...]) -> tuple[Held, ...]:
        return held

    def reset(self) -> None:
        pass


@asynccontextmanager
async def driven(runner: FakeRunner | None = None) -> AsyncIterator[Driver]:
    limits = Limits(context=4096, max_sessions=4, max_queue=4, max_rows=4, chunk=128)
    driver = Driver(
        RING,
        limits,
        FakeCompute(),
        runner or FakeRunner(),
        None,
        lambda: False,
        step_timeout_s=60,
        runs=count(),
        grammars=None,
    )
    task = asyncio.create_task(driver.run())
    yield driver
    task.cancel()
    await asyncio.wait([task])


async def answer(driver: Driver, prompt: tuple[int, ...], max_tokens: int) -> list[TokenEvent]:
    return [event async for event in driver.sessions.generate(GenerateRequest("x", "m", prompt, max_tokens))]


async def test_who_has_all_places_of_the_queue_loses_one_to_another_client() -> None:
    def ask(client: str, first: int, max_tokens: int) -> AsyncGenerator[TokenEvent, None]:
        return driver.sessions.generate(GenerateRequest("x", "m", (first, 1, 2), max_tokens, client=client))

    async with driven() as driver:
        running = [ask("a", first, 4000) for first in range(20, 24)]
        for stream in running:
            await anext(stream)
        waiting = [asyncio.ensure_future(anext(ask("a", first, 4000))) for first in range(30, 34)]
        await asyncio.sleep(0)
        assert driver.load().queued == 4
        assert len([event async for event in ask("b", 40, 3)]) == 3
        assert [task.done() for task in waiting] == [False, False, False, True]
        assert isinstance(waiting[-1].exception(), Overloaded)
        assert [(await anext(stream)).position for stream in running] == [1, 1, 1, 1], "also the one that made room"
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_steps_that_fail_far_apart_end_their_own_sessions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr(driving, "now", lambda: clock)
    async with driven() as driver:
        stream = driver.sessions.generate(GenerateRequest("x", "m", (1, 2, 3), 1000))
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


async def test_a_row_that_fails_ends_its_session_alone() -> None:
    """Also of prompts that run in one step: the others' tokens are theirs, and the ring does not break."""
    runner = FakeRunner()
    async with driven(runner) as driver:
        asked = [asyncio.ensure_future(answer(driver, (first, last), 30)) for first, last in ((7, 1), (8, NAN), (9, 1))]
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(done[1], StepFailed)
        for events in (done[0], done[2]):
            assert [event.token for event in events] == [100 + position for position in range(30)]
        assert (driver.load().running, driver.load().queued) == (0, 0)
        assert runner.computed <= 6 + 2 * 30  # nothing was replayed


async def test_a_step_that_fails_costs_no_other_session_its_kv() -> None:
    runner = FakeRunner()
    async with driven(runner) as driver:
        prompt = tuple(range(20, 120))
        stream = driver.sessions.generate(GenerateRequest("x", "m", prompt, 1000))
        tokens = [(await anext(stream)).token]
        with pytest.raises(StepFailed):
            await answer(driver, (7, BAD), 5)
        computed = runner.computed
        while len(tokens) < 50:
            tokens.append((await anext(stream)).token)
        await stream.aclose()
        assert tokens == [100 + position for position in range(50)]
        assert 0 < runner.computed - computed <= 60


async def test_a_request_that_breaks_the_ring_again_and_again_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of which a step never comes back does."""
    monkeypatch.setattr(outage, "RESTART_DELAY_S", 0.0)

    class Breaking(FakeRunner):
        def run_alone(self, _frame: Frame, tokens: Sequence[Sequence[int]], draws: Sequence[Draw]) -> list[Sampled]:
            self.computed += 1
            driver._break(RingLost("A step did not come round in 60 s."))
            return super().run_alone(_frame, tokens, draws) if self.computed < 0 else []

    runner = Breaking()
    async with driven(runner) as driver:
        with pytest.raises(RingLost, match=f"broke {MOST_BREAKS + 1} times"):
            await answer(driver, (7, 8, 9), 5)
        assert runner.computed == MOST_BREAKS + 1
        assert (driver.load().running, driver.load().queued) == (0, 0)
