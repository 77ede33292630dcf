"""How a stage ends its links."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from node.core.errors import PeerUnavailable, PippinError, RingLost, StaleFence
from node.core.frames import Frame, Held, Open
from node.core.types import Fence, Ring, StageSpec
from node.serving.worker import Worker

RING = Ring("m@3.4", "m", (StageSpec("a", 0, 4), StageSpec("b", 4, 8)), 512, 2, fence=Fence(3, 4))


class Runner:
    resets = 0

    def relay(self, frame: Frame, *, last: bool) -> Frame:
        return frame

    def recall(self, held: tuple[Held, ...]) -> tuple[Held, ...]:
        return held[:1]

    def reset(self) -> None:
        self.resets += 1


class Compute:
    """Does nothing while it is held up."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.asked: asyncio.Queue[Callable[..., Any]] = asyncio.Queue()

    async def run(self, job: Callable[..., Any], *args: Any, **more: Any) -> Any:
        self.asked.put_nowait(job)
        await self.free.wait()
        return job(*args, **more)


class Onward:
    """The next stage, and the link to it."""

    node = "a"

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Frame] = asyncio.Queue()

    def open(self, on_broken: Callable[[PippinError], None]) -> "Onward":
        self.broke = on_broken
        return self

    async def send(self, frame: Frame) -> None:
        self.sent.put_nowait(frame)

    def close(self) -> None:
        pass


async def one_and_no_more(frame: Frame) -> AsyncIterator[Frame]:
    yield frame
    await asyncio.Event().wait()


async def test_the_stage_before_hears_why_although_the_ring_is_left_meanwhile():
    compute, onward = Compute(), Onward()
    worker = Worker(RING, compute, Runner(), onward)
    first = Frame(RING.id, RING.fence, 1, 0, (Open(1),))
    serving = asyncio.create_task(worker.frames(first, one_and_no_more(Frame(RING.id, RING.fence, 1, 1))))
    await asyncio.wait_for(onward.sent.get(), 5)
    await asyncio.wait_for(onward.sent.get(), 5)
    onward.broke(PeerUnavailable("the next stage is gone"))
    closing = asyncio.create_task(worker.close(RingLost("replaced")))
    with pytest.raises(PeerUnavailable, match="the next stage is gone"):
        await asyncio.wait_for(serving, 5)
    await asyncio.wait_for(closing, 5)


ASKED = (Held(1, 5), Held(2, 6))


async def first_two(worker: Worker, onward: Onward, frame: Frame) -> list[Frame]:
    """What becomes of a link's first frame and of one more; then the link ends."""
    serving = asyncio.create_task(worker.frames(frame, one_and_no_more(Frame(RING.id, RING.fence, frame.run, 1))))
    sent = [await asyncio.wait_for(onward.sent.get(), 5) for _ in range(2)]
    serving.cancel()
    await asyncio.wait([serving])
    return sent


async def test_a_new_run_begins_with_the_kv_that_is_left():
    """The link's end frees nothing; the first frame of the next run tells what is wanted, and hears what is there."""
    runner, onward = Runner(), Onward()
    worker = Worker(RING, Compute(), runner, onward)
    for run, held in ((1, ()), (2, (Held(1, 5),)), (4, (Held(1, 5),))):
        sent = await first_two(worker, onward, Frame(RING.id, RING.fence, run, 0, held=ASKED, since=1))
        assert [(each.run, each.seq, each.held) for each in sent] == [(run, 0, held), (run, 1, ())]
    assert not runner.resets
    await worker.close(RingLost("replaced"))
    assert runner.resets == 1


async def test_who_sends_frames_of_an_earlier_run_hears_it():
    """A stranger's frame of a high run must not make the stage mute: its driver would wait for each step's time-out."""
    onward = Onward()
    worker = Worker(RING, Compute(), Runner(), onward)
    await first_two(worker, onward, Frame(RING.id, RING.fence, 2**63, 0))
    with pytest.raises(StaleFence, match=f"run 7 came to ring {RING.id}, which is at run {2**63}"):
        await worker.frames(Frame(RING.id, RING.fence, 7, 0), one_and_no_more(Frame(RING.id, RING.fence, 7, 1)))


async def test_what_a_driver_before_its_restart_left_is_not_taken_for_this_ones():
    """Both number their sequences alike. The first run of the second one never came here."""
    runner, onward, compute = Runner(), Onward(), Compute()
    worker = Worker(RING, compute, runner, onward)
    await first_two(worker, onward, Frame(RING.id, RING.fence, 1, 0))
    while not compute.asked.empty():
        compute.asked.get_nowait()
    compute.free.clear()
    question = Frame(RING.id, RING.fence, 101, 0, held=ASKED, since=100)
    serving = asyncio.create_task(worker.frames(question, one_and_no_more(question)))
    assert await asyncio.wait_for(compute.asked.get(), 5) == runner.recall
    serving.cancel()  # before anything is freed
    await asyncio.wait([serving])
    compute.free.set()
    for run, held in ((102, ()), (103, (Held(1, 5),))):
        frame, _ = await first_two(worker, onward, Frame(RING.id, RING.fence, run, 0, held=ASKED, since=100))
        assert frame.held == held
