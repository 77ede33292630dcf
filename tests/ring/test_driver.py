"""A driver of a ring of one node, with a runner that fails at chosen tokens; and of two, with one that breaks."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from node.core.errors import DeviceFailed, DeviceTimeout, Overloaded, PippinError, RingLost
from node.core.evaluation import ChunkRequest
from node.core.frames import CacheOp, Failure, Frame, Held
from node.core.generation import GenerateRequest, PromptProgress, TokenEvent
from node.core.models import ModelVersion
from node.core.rings import Fence, Ring, StageSpec
from node.core.row_family import RowFamily
from node.engine.sampling import Draw, Sampled
from node.engine.verdict import Following, StepFailed, Verdict
from node.ring import driver as driver_module
from node.ring import pipeline as pipeline_module
from node.ring.driver import Driver
from node.ring.flight import Step
from node.ring.guessing import Guessing
from node.ring.limits import RingLimits
from node.ring.pipeline import Pipeline
from node.ring.requests import generate
from node.ring.scheduler import Scheduler
from tests.patience import PATIENCE_S

RING = Ring("m@1.1", ModelVersion("m"), (StageSpec("a", 0, 4),), 4096, 4, fence=Fence(1, 1))
BAD, NAN, BROKEN = 13, 14, 15
NO_GRAMMARS: Any = None
numbers = count(1 << 16)
ended: list[PippinError] = []
"""Reasons with which the last driver called `on_ended`."""
chunks: list[int] = []
"""What it said of the prompts that it was computing."""


def on_ended(reason: PippinError, chunk: int) -> None:
    ended.append(reason)
    chunks.append(chunk)


class FakeCompute:
    def queue(self, fn: Callable[..., Any], *args: Any, **more: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self.run(fn, *args, **more))

    async def run(self, fn: Callable[..., Any], *args: Any, **more: Any) -> Any:
        await asyncio.sleep(0)
        return fn(*args, **more)

    async def iterate(self, values: Generator[Any, None, None]) -> AsyncIterator[Any]:
        for value in values:
            await asyncio.sleep(0)
            yield value

    waiting = False


class FakeKv:
    nbytes = 0
    blocks_of = range(0)
    trimmable = True

    def inherit(self, held: tuple[Held, ...]) -> tuple[Held, ...]:
        return held

    def leave(self) -> None:
        pass


class FakeRunner:
    """Each token counts the sampled ones before it. The token BAD fails its step, the token NAN only its row. At the token
    BROKEN the device fails.
    """

    plan = SimpleNamespace(batchable=True, pads=True, trimmable=True, steps_back=True, chunked=False, vocabulary=5000)

    def __init__(self) -> None:
        self.kv = FakeKv()
        self.computed = 0
        """Tokens."""

    def run(
        self,
        _frame: Frame,
        tokens: Sequence[Sequence[int]],
        draws: Sequence[Draw],
        _chunks: Sequence[ChunkRequest],
        _ahead: int,
        _go_on: Callable[[], bool],
        *,
        told: bool,
        seen: object = None,
    ) -> Generator[Verdict, None, None]:
        self.computed += sum(map(len, tokens))
        if any(BROKEN in row for row in tokens):
            raise DeviceFailed("The GPU failed: it hangs.")
        if any(BAD in row for row in tokens):
            raise StepFailed("The step could not be computed.")
        failed = StepFailed("The output of layers 2 to 4 is not finite.")
        rows = zip(tokens, draws, strict=True) if draws else ()
        yield Verdict([failed if NAN in row else Sampled(100 + draw.position) for row, draw in rows])

    def apply(self, ops: Sequence[CacheOp]) -> None:
        pass


@asynccontextmanager
async def driven(
    runner: FakeRunner | None = None, left: Mapping[int, tuple[int, ...]] | None = None
) -> AsyncIterator[Driver]:
    limits = RingLimits(context=4096, max_sessions=4, max_queue=4, max_rows=4, chunk=128)
    ended.clear()
    chunks.clear()
    scheduler = Scheduler(limits, FakeRunner.plan, numbers, 1)
    driver = Driver(RING, scheduler, FakeCompute(), runner or FakeRunner(), None, on_ended, leftover=left or {})
    task = asyncio.create_task(driver.run())
    yield driver
    task.cancel()
    await asyncio.wait([task])


async def answer(driver: Driver, prompt: tuple[int, ...], max_tokens: int) -> list[TokenEvent]:
    return [event async for event in generate(driver, NO_GRAMMARS, GenerateRequest("x", "m", prompt, max_tokens))]


async def test_in_a_full_queue_of_one_client_another_client_replaces_the_last_session() -> None:
    def ask(client: str, first: int, max_tokens: int) -> AsyncGenerator[TokenEvent, None]:
        return generate(driver, NO_GRAMMARS, GenerateRequest("x", "m", (first, 1, 2), max_tokens, client=client))

    async with driven() as driver:
        running = [ask("a", first, 4000) for first in range(20, 24)]
        for stream in running:
            await anext(stream)
        waiting = [asyncio.ensure_future(anext(ask("a", first, 4000))) for first in range(30, 34)]
        await asyncio.sleep(0)
        assert driver.traffic().queued == 4
        assert len([event async for event in ask("b", 40, 3)]) == 3
        assert [task.done() for task in waiting] == [False, False, False, True]
        assert isinstance(waiting[-1].exception(), Overloaded)
        assert [(await anext(stream)).position for stream in running] == [1, 1, 1, 1], (
            "also the session that was preempted"
        )
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_its_report_says_how_far_a_long_prompt_is() -> None:
    async with driven() as driver:
        stream = generate(driver, NO_GRAMMARS, GenerateRequest("x", "m", tuple(range(20, 1020)), 2))
        told = []
        async for event in stream:
            traffic = driver.traffic()
            told.append((traffic.prompt_done, traffic.prompt_tokens))
            if isinstance(event, TokenEvent):
                break
            assert isinstance(event, PromptProgress)
            assert traffic.prompt_done >= event.done
        await stream.aclose()
        assert told == [*sorted(told[:-1]), (0, 0)], "nothing once it is computed"
        assert len(told) > 2
        assert told[0][1] == 1000


async def test_a_failed_row_ends_only_its_session() -> None:
    """Also when prompts run in one step: the other sessions get their tokens, and the ring goes on."""
    runner = FakeRunner()
    async with driven(runner) as driver:
        asked = [asyncio.ensure_future(answer(driver, (first, last), 30)) for first, last in ((7, 1), (8, NAN), (9, 1))]
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(done[1], StepFailed)
        for events in (done[0], done[2]):
            assert [event.token for event in events] == [100 + position for position in range(30)]
        assert (driver.traffic().running, driver.traffic().queued) == (0, 0)
        assert runner.computed <= 6 + 2 * 30  # no token was replayed


async def test_a_device_that_fails_is_a_lost_ring_for_all_sessions() -> None:
    """Also for those of the step in which it surfaced: no request is to blame, so a gateway sends all of them again."""
    async with driven(FakeRunner()) as driver:
        asked = [asyncio.ensure_future(answer(driver, (first, last), 3000)) for first, last in ((8, 1), (7, BROKEN))]
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in done] == [RingLost, RingLost], "the code that nodes of earlier versions know"
        assert "it hangs" in str(done[1])
        assert [reason.code for reason in ended] == ["device_failed"]


async def test_a_failed_step_ends_the_ring_and_the_next_ring_has_the_kv_of_other_sessions() -> None:
    """Its own session gets the error. The others get `ring_lost` and continue on the next ring of the same layers."""
    runner, prompt = FakeRunner(), tuple(range(20, 120))
    async with driven(runner) as driver:
        stream = generate(driver, NO_GRAMMARS, GenerateRequest("x", "m", prompt, 60))
        tokens = [(await anext(stream)).token]
        with pytest.raises(StepFailed):
            await answer(driver, (7, BAD), 5)
        with pytest.raises(RingLost, match="The ring ended: The step could not be computed"):  # noqa: PT012
            while True:
                tokens.append((await anext(stream)).token)
        with pytest.raises(RingLost):
            await answer(driver, (7, 8), 5)
        assert [type(error) for error in ended] == [StepFailed]
        left = await driver.close(RingLost("Ring m@1.1 was replaced."), keep=True)
    assert len(ended) == 1
    computed = runner.computed
    async with driven(runner, left) as driver:
        resumed = GenerateRequest("x", "m", prompt, 60, resume=tuple(tokens))
        events = [event async for event in generate(driver, NO_GRAMMARS, resumed)]
    assert tokens + [event.token for event in events] == [100 + position for position in range(60)]
    assert events[0].cached_tokens == 0, "its own KV does not count as that of another session"
    assert 0 < runner.computed - computed <= 60 - len(tokens) + 2


async def test_a_driver_that_guesses_nothing_tells_what_was_predicted() -> None:
    """Also after a break: tokens that another driver delivered count."""
    predicted = (100, 101, 7, 103, 104, 105)
    async with driven() as driver:
        asked = GenerateRequest("x", "m", (7, 8), 5, prediction=predicted)
        events = [event async for event in generate(driver, NO_GRAMMARS, asked)]
        assert [event.accepted_prediction_tokens for event in events] == [1, 2, 2, 3, 4]
        resumed = replace(asked, resume=(100, 101, 102))
        events = [event async for event in generate(driver, NO_GRAMMARS, resumed)]
        assert [event.accepted_prediction_tokens for event in events] == [3, 4]
        assert driver.traffic().guesses == 0


async def test_kv_that_no_request_used_is_left_for_the_next_ring() -> None:
    left = {70_000: tuple(range(50))}
    async with driven(left=left) as driver:
        await asyncio.sleep(0)
        assert await driver.close(RingLost("replaced"), keep=True) == left
    assert not ended


class NextHop:
    """The other stage of a ring of two. Frames wait in `sent` until the test gives them back."""

    node = "b"

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Frame] = asyncio.Queue()

    def open(self, on_broken: Callable[[PippinError], None]) -> Any:
        self.broken = on_broken
        return self

    async def send(self, frame: Frame) -> None:
        self.sent.put_nowait(frame)

    def close(self) -> None:
        pass


class FirstRunner(FakeRunner):
    """Of the first of two stages. Every guess is right."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.finished = self.most = 0
        """Steps, and how many of them at most were begun and not finished."""

    def begin(self, frame: Frame, _tokens: Sequence[Sequence[int]], _seen: object = None) -> Frame:
        self.begun += 1
        self.most = max(self.most, self.begun - self.finished)
        return frame

    def finish(self, frame: Frame, draws: Sequence[Draw], following: Following) -> Verdict:
        self.finished += 1
        results = [Sampled(100 + draw.position) for draw in draws]
        count, further = len(following.guesses), following.next_guesses
        if draws[0].ends(results[0].token) or not (further if count else following.chain):
            return Verdict(results, right=min(1, count))
        begun = self.begin(replace(frame, ops=(), unverified=count + 1 if count else 0), ())
        return Verdict(results, min(1, count), begun, further)


@asynccontextmanager
async def first_of_two(
    runner: FirstRunner,
    frames: Callable[[NextHop], AsyncIterator[Frame]],
    guessing: Guessing | None = None,
    step_timeout_s: float = 60.0,
) -> AsyncIterator[Driver]:
    """The driver of a ring of two stages, which gets `frames` back."""
    ended.clear()
    chunks.clear()
    ring = replace(RING, stages=(StageSpec("a", 0, 2), StageSpec("b", 2, 4)))
    limits = RingLimits(4096, max_sessions=4, max_queue=4, max_rows=4, chunk=128, step_timeout_s=step_timeout_s)
    next_hop = NextHop()
    scheduler = Scheduler(limits, runner.plan, numbers, 2)
    fakes: tuple[Any, Any, Any] = FakeCompute(), runner, next_hop.open
    driver = Driver(ring, scheduler, *fakes, on_ended, leftover={}, guessing=guessing or Guessing())

    async def serve() -> None:
        coming = frames(next_hop)
        await driver.serve_link(await anext(coming), coming)

    tasks = [asyncio.create_task(driver.run()), asyncio.create_task(serve())]
    yield driver
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_tokens_time_is_that_of_both_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a step that begins in the job that finishes the one before it."""
    clock = 100.0
    for module in (driver_module, pipeline_module):
        monkeypatch.setattr(module, "now", lambda: clock)

    class Slow(FirstRunner):
        def finish(self, frame: Frame, draws: Sequence[Draw], following: Following) -> Verdict:
            nonlocal clock
            clock += 0.04
            return super().finish(frame, draws, following)

    async def after_60_ms(next_hop: NextHop) -> AsyncIterator[Frame]:
        nonlocal clock
        while True:
            frame = await next_hop.sent.get()
            clock += 0.06
            yield frame

    async with first_of_two(Slow(), after_60_ms) as driver:
        await asyncio.wait_for(answer(driver, (7, 8), 200), 5)
        assert driver.traffic().token_ms == pytest.approx(100, rel=0.05)


async def test_an_unexpected_error_while_a_step_is_finished_ends_the_ring() -> None:
    """Else its sessions would wait for ever, as no step would be in flight."""

    class Broken(FirstRunner):
        def finish(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

    async def one(next_hop: NextHop) -> AsyncIterator[Frame]:
        yield await next_hop.sent.get()
        await asyncio.Event().wait()

    async with first_of_two(Broken(), one) as driver:
        with pytest.raises(RingLost):
            await asyncio.wait_for(answer(driver, (7, 8), 5), 5)
        assert len(ended) == 1


@pytest.mark.parametrize("by_link", [False, True])
@pytest.mark.parametrize(("steps", "chunk"), [(0, 128), (2, 0)])
async def test_a_time_out_of_the_next_stages_device_is_known_with_what_was_computed(
    by_link: bool, steps: int, chunk: int
) -> None:
    """The stage tells it in the step's frame, or with the end of the link. A prompt was computed, or only an answer."""

    async def some(next_hop: NextHop) -> AsyncIterator[Frame]:
        for _ in range(steps):
            yield await next_hop.sent.get()
        frame = await next_hop.sent.get()
        if by_link:
            next_hop.broken(DeviceTimeout("The GPU failed: Impacting Interactivity."))
        else:
            yield replace(frame, failure=Failure("device_timeout", "The GPU failed: Impacting Interactivity.", ""))
        await asyncio.Event().wait()

    async with first_of_two(FirstRunner(), some) as driver:
        with pytest.raises(RingLost, match="Impacting"):
            await asyncio.wait_for(answer(driver, (7, 8), 50), 30)
    assert ([type(reason) for reason in ended], chunks) == ([DeviceTimeout], [chunk])


async def at_once(next_hop: NextHop) -> AsyncIterator[Frame]:
    while True:
        yield await next_hop.sent.get()


async def test_guesses_come_from_what_the_same_client_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (driver_module, pipeline_module):  # whether they pay depends on no machine
        monkeypatch.setattr(module, "now", lambda: 0.0)
    async with first_of_two(FirstRunner(), at_once) as driver:
        guessed = [driver.traffic().right_guesses]
        for client in ("she", "he", "she", "he"):
            asked = GenerateRequest("x", "m", (7, 8), 200, client=client)
            assert len([event async for event in generate(driver, NO_GRAMMARS, asked)]) == 200
            guessed.append(driver.traffic().right_guesses)
    assert guessed[:3] == [0, 0, 0]
    assert 0 < guessed[3] < guessed[4]


async def test_a_guess_waits_for_the_step_that_came_back_before_it() -> None:
    """A frame that comes back while the lane's last one is finished leaves no room: a guess would delay what it told."""
    runner = FirstRunner()
    async with first_of_two(runner, at_once) as driver:
        asked = GenerateRequest("x", "m", (7, 8), 200, prediction=tuple(100 + position for position in range(200)))
        events = [event async for event in generate(driver, NO_GRAMMARS, asked)]
    assert [event.token for event in events] == [100 + position for position in range(200)]
    assert [event.accepted_prediction_tokens for event in events] == list(range(1, 201))
    assert driver.traffic().right_guesses > 150
    assert runner.most == 2, "one for each stage"


async def test_nothing_is_done_with_the_caches_of_a_ring_that_ends_while_its_source_guesses() -> None:
    """They have been freed, or left to the next ring."""
    late: list[str] = []

    class Watched(FirstRunner):
        def begin(self, frame: Frame, tokens: Sequence[Sequence[int]], _seen: object = None) -> Frame:
            late.extend(["begin"] if driver._ended else [])
            return super().begin(frame, tokens)

        def finish(self, _frame: Frame, draws: Sequence[Draw], _following: Following) -> Verdict:
            """It begins no step, so none is in flight while the source guesses."""
            self.finished += 1
            return Verdict([Sampled(100 + draw.position) for draw in draws])

        def apply(self, ops: Sequence[CacheOp]) -> None:
            late.append(f"apply {ops}")

    class Slow(Guessing):
        async def fill(self, *_: Any) -> bool:
            if driver.traffic().running and runner.finished > 3:
                driver.give_up(RingLost("The ring was replaced."))
                await asyncio.sleep(0)
            return False

    runner = Watched()
    async with first_of_two(runner, at_once, Slow()) as driver:
        with pytest.raises(RingLost):
            await answer(driver, (7, 8), 50)
        assert driver._running
        await asyncio.wait_for(driver._running, PATIENCE_S)
    assert not late


async def test_each_request_asks_what_the_steps_of_the_rings_family_cost_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = [RowFamily(((1, 1.0), (2, cost))) for cost in (1.0, 1.3, 1.4)]
    asked, kept = [], []
    monkeypatch.setattr(Scheduler, "keep_to", lambda _, family: kept.append(family))

    def family(before: RowFamily | None) -> RowFamily:
        asked.append(before)
        return told[len(asked) - 1]

    async with first_of_two(FirstRunner(), at_once, Guessing(family=family)) as driver:
        for _ in told:
            await answer(driver, (7, 8), 3)
    assert (asked, kept) == ([None, *told[:2]], told)


async def test_a_step_that_never_comes_back_ends_the_ring_and_says_what_was_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def none(_: NextHop) -> AsyncIterator[Frame]:
        await asyncio.Event().wait()
        yield  # type: ignore[misc]

    monkeypatch.setattr(driver_module, "WATCH_S", 0.001)
    async with first_of_two(FirstRunner(), none, step_timeout_s=0.01) as driver:
        with pytest.raises(RingLost) as told:
            await asyncio.wait_for(answer(driver, (7,) * 300, 5), PATIENCE_S)
    assert re.fullmatch(
        r"The ring ended: Nothing came back from the other stages for \d+ s, --step-timeout being 0.01: "
        r"a step of 128 tokens, the oldest of 3 frames in flight\. Look at `cluster status` .*--step-timeout on each\.",
        str(told.value),
    )


async def test_stages_that_give_back_one_step_after_the_other_do_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the queue of steps is before the slowest of them."""
    next_hop = NextHop()
    clock = iter((10.0, 11.0, 100.0, 145.0, 150.0, 160.0))
    monkeypatch.setattr(pipeline_module, "now", lambda: next(clock))
    pipeline = Pipeline(RING, next_hop.open, ended.append)
    pipeline.open()
    step = Step(1, (), (), ((7,),), samples=False)
    for begun_at in (2.0, 3.0):  # what the driver's own stage takes does not count
        await pipeline.send(pipeline.frame(step=step), step, begun_at)
    assert pipeline.waited_s == 90.0
    pipeline.receive(await next_hop.sent.get())
    assert pipeline.waited_s == 5.0
    pipeline.receive(await next_hop.sent.get())
    assert pipeline.waited_s == 0.0
