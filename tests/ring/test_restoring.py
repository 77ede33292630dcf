"""A session whose KV may be on disks waits until all stages have said what they have."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from node.core.errors import RingLost
from node.core.frames import CacheOp, Forget, Frame, Restore, Reuse, Take
from node.core.generation import GenerateRequest, TokenEvent
from node.core.models import ModelVersion
from node.core.rings import StageSpec
from node.kv.blocks import BLOCK, chain_of
from node.ring.driver import Driver
from node.ring.limits import RingLimits
from node.ring.requests import generate
from node.ring.restoring import MIN_STORED, UNKNOWN_S
from node.ring.scheduler import Scheduler
from node.ring.session import Session
from node.ring.taking import Restoration
from node.ring.worker import Worker
from tests.ring import test_driver, test_worker
from tests.ring.test_driver import NO_GRAMMARS, RING, FakeCompute, FirstRunner, NextHop, on_ended

PROMPT = tuple(range(MIN_STORED + 100))
VERSION = ModelVersion("m")
LIMITS = RingLimits(context=4096, max_sessions=2, max_queue=4, max_rows=4, chunk=4096, stored=VERSION)


class Stored:
    """In place of StoredKv: this stage has so many tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.asked: list[Restore] = []

    async def restore(self, _kv: Any, part: Restoration) -> int:
        self.asked.append(part.asked)
        return min(part.reach, self.tokens)

    def keep(self, *_: Any) -> None:
        pass


async def answered(here: int, there: int | None) -> tuple[list[TokenEvent], list[CacheOp], Stored]:
    """The answer of a ring of two stages that have so many tokens on their disks, and the operations that the second one got.
    `there`: None if it is of an earlier version.
    """
    ring, next_hop, stored = replace(RING, stages=(StageSpec("a", 0, 2), StageSpec("b", 2, 4))), NextHop(), Stored(here)
    ops: list[CacheOp] = []
    runner: Any = FirstRunner()
    runner.kv.blocks_of = range(2)
    fakes: tuple[Any, Any, Any, Any] = FakeCompute(), runner, next_hop.open, stored
    scheduler = Scheduler(LIMITS, runner.plan, count(1 << 16), 2)
    driver = Driver(ring, scheduler, *fakes[:3], on_ended, leftover={}, stored=fakes[3])

    async def frames() -> AsyncIterator[Frame]:
        while True:
            frame = await next_hop.sent.get()
            ops.extend(frame.ops)
            if frame.restore:
                longest = max(frame.restore.longest, there or 0)
                lowered = replace(frame.restore, tokens=min(frame.restore.tokens, there or 0), longest=longest)
                frame = replace(frame, restore=None if there is None else lowered)
            yield frame

    async def serve() -> None:
        coming = frames()
        await driver.serve_link(await anext(coming), coming)

    tasks = [asyncio.create_task(driver.run()), asyncio.create_task(serve())]
    stream = generate(driver, NO_GRAMMARS, GenerateRequest("x", "m", PROMPT, 3))
    events = [event async for event in stream if isinstance(event, TokenEvent)]
    driver.give_up(RingLost("the end"))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return events, ops, stored


@pytest.fixture(autouse=True)
def _fresh() -> None:
    test_driver.ended.clear()


async def test_it_begins_with_what_all_stages_have() -> None:
    events, ops, stored = await answered(here=1024, there=768)
    assert [event.token for event in events] == [100, 101, 102]
    assert events[0].cached_tokens == 768
    (asked,) = stored.asked
    assert (asked.tokens, asked.least, asked.seconds) == (1024, BLOCK, UNKNOWN_S)
    assert asked.chain == chain_of(VERSION, PROMPT[:1024])
    assert [(op.prefix, op.tokens) for op in ops if isinstance(op, Reuse)] == [(asked.number, 768)]


async def test_a_stage_of_an_earlier_version_has_nothing_and_the_others_free_what_they_took() -> None:
    events, ops, stored = await answered(here=1024, there=None)
    assert [event.token for event in events] == [100, 101, 102]
    assert events[0].cached_tokens == 0
    assert Forget(stored.asked[0].number) in ops
    assert not [op for op in ops if isinstance(op, Reuse | Take)]


async def test_the_driver_has_nothing() -> None:
    events, ops, _ = await answered(here=0, there=1024)
    assert events[0].cached_tokens == 0
    assert Forget in map(type, ops)


async def test_a_worker_that_keeps_no_kv_says_so() -> None:
    next_hop, compute = test_worker.NextHop(), test_worker.Compute()
    worker = Worker(test_worker.RING, compute, test_worker.Runner(), next_hop.open, test_worker.Ended(), is_last=True)  # type: ignore[arg-type]
    asked = Restore(7, 1024, 256, b"x" * 64, 5.0)
    frames = test_worker.one_and_no_more(test_worker.frame(1))
    serving = asyncio.create_task(worker.serve_link(test_worker.frame(0, restore=asked), frames))
    sent = [await asyncio.wait_for(next_hop.sent.get(), 5) for _ in range(2)]
    assert [(each.seq, each.restore) for each in sent] == [(0, replace(asked, tokens=0)), (1, None)]
    serving.cancel()
    await asyncio.wait([serving])


def test_short_sessions_and_those_in_memory_are_not_looked_for() -> None:
    def wanted(prompt: Sequence[int], **more: Any) -> Restore | None:
        scheduler = Scheduler(replace(LIMITS, **more), FirstRunner.plan, count(1 << 16), 2)
        scheduler.admission.prefixes.add(5, PROMPT[:300])
        scheduler.admission.submit(Session(GenerateRequest("x", "m", tuple(prompt), 3)))
        scheduler.next()
        return next(iter(scheduler.admission.restoring.pop_asked()), None)

    assert wanted(PROMPT) is None, "300 of its tokens are in memory"
    assert wanted(PROMPT[:MIN_STORED]) is None, "its last token must be computed"
    assert wanted([9, *PROMPT]) is not None
    assert wanted([9, *PROMPT], stored=None) is None
