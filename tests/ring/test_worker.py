"""How a worker begins and ends its links and its ring."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from node.core.errors import BadRequest, PeerUnavailable, PippinError, RingLost, StaleFence
from node.core.frames import Frame, Held, Open
from node.core.models import ModelVersion
from node.core.rings import Fence, Ring, StageSpec
from node.ring.worker import MAX_JOBS, Worker

RING = Ring("m@3.4", ModelVersion("m"), (StageSpec("a", 0, 4), StageSpec("b", 4, 8)), 512, 2, fence=Fence(3, 4))


class Kv:
    leaves = 0

    def inherit(self, held: tuple[Held, ...]) -> tuple[Held, ...]:
        return held[:1]

    def leave(self) -> None:
        self.leaves += 1


class Runner:
    def __init__(self, kv: Kv | None = None) -> None:
        self.kv = kv or Kv()

    def relay(self, frame: Frame, *, last: bool) -> Frame:
        return frame


class Compute:
    """The compute thread; it waits while `free` is not set."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.asked: asyncio.Queue[Callable[..., Any]] = asyncio.Queue()

    def queue(self, job: Callable[..., Any], *args: Any, **more: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self.run(job, *args, **more))

    async def run(self, job: Callable[..., Any], *args: Any, **more: Any) -> Any:
        self.asked.put_nowait(job)
        await self.free.wait()
        return job(*args, **more)


class NextHop:
    """The next stage, and the link to it."""

    node = "a"

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Frame] = asyncio.Queue()
        self.closed = False

    def open(self, on_broken: Callable[[PippinError], None]) -> "NextHop":
        self.broke = on_broken
        return self

    async def send(self, frame: Frame) -> None:
        self.sent.put_nowait(frame)

    def close(self) -> None:
        self.closed = True


async def one_and_no_more(frame: Frame) -> AsyncIterator[Frame]:
    yield frame
    await asyncio.Event().wait()


class Ended:
    """Records the calls of `on_ended`."""

    def __init__(self) -> None:
        self.reasons: list[PippinError] = []

    def __call__(self, reason: PippinError, _chunk: int) -> None:
        self.reasons.append(reason)


def frame(seq: int, **more: Any) -> Frame:
    return Frame(RING.id, RING.fence, seq, **more)


async def test_the_stage_before_gets_the_reason_although_the_node_leaves_the_ring_meanwhile():
    compute, next_hop, ended = Compute(), NextHop(), Ended()
    worker = Worker(RING, compute, Runner(), next_hop.open, ended, is_last=True)
    serving = asyncio.create_task(worker.serve_link(frame(0, ops=(Open(1),)), one_and_no_more(frame(1))))
    for _ in range(2):
        await asyncio.wait_for(next_hop.sent.get(), 5)
    gone = PeerUnavailable("the next stage is gone")
    next_hop.broke(gone)
    closing = asyncio.create_task(worker.close(RingLost("replaced"), keep=True))
    with pytest.raises(PeerUnavailable, match="the next stage is gone"):
        await asyncio.wait_for(serving, 5)
    await asyncio.wait_for(closing, 5)
    assert ended.reasons == [gone]


async def test_jobs_of_later_frames_are_queued_while_one_is_computed():
    """As many as MAX_JOBS in all; the frames go on in their order."""
    compute, next_hop = Compute(), NextHop()

    async def frames() -> AsyncIterator[Frame]:
        compute.free.clear()
        for seq in range(1, 8):
            yield frame(seq)
        await asyncio.Event().wait()

    serving = asyncio.create_task(
        Worker(RING, compute, Runner(), next_hop.open, Ended(), is_last=True).serve_link(frame(0), frames())
    )
    for _ in range(1 + MAX_JOBS):  # one to inherit KV
        await asyncio.wait_for(compute.asked.get(), 60)
    for _ in range(50):
        await asyncio.sleep(0)
    assert compute.asked.empty()
    assert next_hop.sent.empty()
    compute.free.set()
    assert [(await asyncio.wait_for(next_hop.sent.get(), 5)).seq for _ in range(8)] == list(range(8))
    serving.cancel()
    await asyncio.wait([serving])


async def test_a_ring_inherits_kv_and_leaves_its_own():
    """The first frame asks for sequences, and goes on with those that are there."""
    runner, next_hop = Runner(), NextHop()
    worker = Worker(RING, Compute(), runner, next_hop.open, Ended(), is_last=True)
    asked = (Held(1, 5), Held(2, 6))
    serving = asyncio.create_task(worker.serve_link(frame(0, held=asked), one_and_no_more(frame(1))))
    sent = [await asyncio.wait_for(next_hop.sent.get(), 5) for _ in range(2)]
    assert [(each.seq, each.held) for each in sent] == [(0, asked[:1]), (1, ())]
    assert await worker.close(RingLost("replaced"), keep=True) == {}
    with pytest.raises(RingLost, match="replaced"):
        await asyncio.wait_for(serving, 5)
    assert runner.kv.leaves == 1


async def test_a_ring_ends_with_the_link_from_the_stage_before():
    """It takes no second link: the caches of this stage would not fit its frames."""
    runner, next_hop, ended = Runner(), NextHop(), Ended()
    worker = Worker(RING, Compute(), runner, next_hop.open, ended, is_last=True)
    serving = asyncio.create_task(worker.serve_link(frame(0), one_and_no_more(frame(1))))
    await asyncio.wait_for(next_hop.sent.get(), 5)
    serving.cancel()
    await asyncio.wait([serving])
    assert next_hop.closed
    assert [each.code for each in ended.reasons] == ["ring_lost"]
    with pytest.raises(RingLost, match="link from the stage before ended"):
        await worker.serve_link(frame(0), one_and_no_more(frame(1)))
    assert not runner.kv.leaves, "the KV is kept until the ring is left"


async def test_a_second_link_is_refused_and_the_first_goes_on():
    next_hop, ended = NextHop(), Ended()
    worker = Worker(RING, Compute(), Runner(), next_hop.open, ended, is_last=True)
    serving = asyncio.create_task(worker.serve_link(frame(0), one_and_no_more(frame(1))))
    await asyncio.wait_for(next_hop.sent.get(), 5)
    with pytest.raises(StaleFence, match="already has a link"):
        await worker.serve_link(frame(0), one_and_no_more(frame(1)))
    assert not serving.done()
    assert not ended.reasons
    serving.cancel()
    await asyncio.wait([serving])


@pytest.mark.parametrize(
    "second", [frame(2), frame(0), Frame(RING.id, Fence(9, 9), 1)], ids=["lost", "doubled", "stale"]
)
async def test_a_frame_that_is_not_due_ends_the_ring(second: Frame):
    next_hop, ended = NextHop(), Ended()
    worker = Worker(RING, Compute(), Runner(), next_hop.open, ended, is_last=True)
    with pytest.raises(BadRequest, match="was due"):
        await asyncio.wait_for(worker.serve_link(frame(0), one_and_no_more(second)), 5)
    assert [each.code for each in ended.reasons] == ["invalid_value"]
