"""A driver of a ring of one node, whose stage begins steps ahead: each request gets the events that it got without."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from node.core.generation import GenerateRequest, PromptProgress, Sampling, TokenEvent
from node.core.models import ModelVersion
from node.core.rings import Fence, Ring, StageSpec
from node.engine.compute import Compute
from node.engine.faults import Faults
from node.engine.runner import Runner
from node.ring.driver import Driver
from node.ring.limits import RingLimits
from node.ring.requests import generate
from node.ring.scheduler import Scheduler
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import load, prompt, write_model

RING = Ring("m@1.1", ModelVersion("m"), (StageSpec("a", 0, 4),), 4096, 4, fence=Fence(1, 1))
NO_GRAMMARS: Any = None
GREEDY = Sampling(temperature=0, logprobs=3)
SEEDED = Sampling(temperature=1.2, top_k=40, seed=11, logprobs=1)
PENALIZED = Sampling(temperature=0, repetition_penalty=1.3, presence_penalty=0.5)


class Served:
    """Answers of one driver. `begun` counts the steps that began before the tokens of the last ones were read."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.begun = 0
        lanes = driver.runner._stage.lanes
        begin_step = lanes.begin_step

        def counted(number: int, unverified: int, length: int) -> None:
            self.begun += unverified
            begin_step(number, unverified, length)

        lanes.begin_step = counted  # type: ignore[method-assign]

    async def answer(
        self, request: GenerateRequest, until: int = 1000, third: asyncio.Event | None = None
    ) -> list[TokenEvent]:
        """Hang up after `until` events. `third`: set with the third one."""
        events: list[TokenEvent] = []
        stream = generate(self.driver, NO_GRAMMARS, request)
        async for event in stream:
            if isinstance(event, PromptProgress):
                continue
            events.append(event)
            if third and len(events) == 3:
                third.set()
            if len(events) == until:
                await stream.aclose()
        return events


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), CONFIGURATIONS["llama"])


@asynccontextmanager
async def served(directory: Path, *, ahead: bool, weights: int = 1 << 20) -> AsyncIterator[Served]:
    compute = Compute()
    compute.start()
    try:
        stage = await compute.run(load, directory, 0, 4)
        runner = Runner(stage, directory, Faults())
        runner.plan = replace(stage.plan, steps_back=ahead)
        limits = RingLimits(context=4096, max_sessions=4, max_queue=100, max_rows=4, chunk=16, weights=weights)
        scheduler = Scheduler(limits, runner.plan, count(1 << 16), 1)
        driver = Driver(RING, scheduler, compute, runner, None, print, leftover={})
        task = asyncio.create_task(driver.run())
        yield Served(driver)
        task.cancel()
        await asyncio.wait([task])
    finally:
        compute.stop()


def request(length: int, sampling: Sampling, tokens: int = 40, **given: Any) -> GenerateRequest:
    ids: Any = prompt(length, seed=length)[0].tolist()
    return GenerateRequest(f"r{length}", "m", tuple(ids), tokens, sampling=sampling, **given)


async def one_by_one(directory: Path, requests: Sequence[GenerateRequest], *, ahead: bool) -> list[list[TokenEvent]]:
    async with served(directory, ahead=ahead) as side:
        events = [await side.answer(each) for each in requests]
        assert (side.begun > 0) == ahead
        return events


async def test_alone_each_event_is_the_same_bit_by_bit(directory: Path) -> None:
    plain = request(12, GREEDY)
    (events,) = await one_by_one(directory, [plain], ahead=False)
    tokens = tuple(event.token for event in events)
    requests = [
        plain,
        request(30, SEEDED),
        request(9, PENALIZED),
        replace(plain, stop_tokens=frozenset({tokens[11]})),
        replace(plain, resume=tokens[:17]),
        request(21, GREEDY, 1),
        request(22, SEEDED, 2),
        request(250, GREEDY, 20),
    ]
    assert await one_by_one(directory, requests, ahead=True) == await one_by_one(directory, requests, ahead=False)


async def test_side_by_side_each_request_gets_its_own_tokens(directory: Path) -> None:
    """They join, end, hang up and wait for room while steps are begun ahead: each comes with the third token of another
    one.
    """
    requests = [request(length, SEEDED if length % 2 else GREEDY, 10 + length) for length in range(5, 45, 5)]
    requests[2] = replace(requests[2], sampling=PENALIZED)
    expected = await one_by_one(directory, requests, ahead=False)
    async with served(directory, ahead=True) as side:
        turns = [asyncio.Event() for _ in range(len(requests) + 1)]
        turns[0].set()

        async def late(number: int, each: GenerateRequest) -> list[TokenEvent]:
            await turns[number].wait()
            return await side.answer(each, 9 if number == 3 else 1000, turns[number + 1])

        found = await asyncio.gather(*(late(number, each) for number, each in enumerate(requests)))
        assert side.begun > 20
        assert side.driver.traffic().running == 0
    for number, (events, alone) in enumerate(zip(found, expected, strict=True)):
        assert [event.token for event in events] == [event.token for event in alone][: 9 if number == 3 else None]
        assert [event.position for event in events] == list(range(len(events)))


async def test_a_beginning_that_requests_share_is_computed_once(directory: Path) -> None:
    """The others copy it from the first one, while its prompt is being computed and while its answer is."""
    system = request(300, GREEDY).prompt
    requests = [
        replace(request(length, GREEDY if length % 2 else SEEDED), prompt=(*system, *request(length, GREEDY).prompt))
        for length in (5, 20, 7, 34)
    ]
    expected = [(await one_by_one(directory, [each], ahead=True))[0] for each in requests]
    async with served(directory, ahead=True, weights=0) as side:
        streaming = asyncio.Event()
        *early, last = requests
        answers = [asyncio.create_task(side.answer(each, third=streaming)) for each in early]
        await streaming.wait()
        found = [await side.answer(last), *(await asyncio.gather(*answers))]
    for events, alone in zip(found, [expected[-1], *expected[:-1]], strict=True):
        assert [event.token for event in events] == [event.token for event in alone]
    assert sorted(events[0].cached_tokens for events in found) == [0, 300, 300, 300]


async def test_a_chat_reuses_what_its_last_turn_left(directory: Path) -> None:
    """The KV of the token that was computed in vain is not part of it."""
    async with served(directory, ahead=True) as side:
        first = request(40, GREEDY, 200)
        events = await side.answer(first, 30)
        tokens = tuple(event.token for event in events)
        again = replace(first, prompt=(*first.prompt, *tokens), max_tokens=10)
        rest = await side.answer(again)
        assert 40 + 29 - 1 <= rest[0].cached_tokens <= 40 + 30
    async with served(directory, ahead=False) as side:
        assert [event.token for event in await side.answer(replace(first, max_tokens=40))] == [
            *tokens,
            *(event.token for event in rest),
        ]
