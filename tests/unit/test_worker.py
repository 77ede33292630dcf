"""How a stage ends its links."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from node.core.errors import PeerUnavailable, PippinError
from node.core.frames import Frame, Open
from node.core.types import Fence, Ring, StageSpec
from node.serving.worker import Worker

RING = Ring("m@3.4", "m", (StageSpec("a", 0, 4), StageSpec("b", 4, 8)), 512, 2, fence=Fence(3, 4))


class Runner:
    def relay(self, frame: Frame, *, last: bool) -> Frame:
        return frame

    def reset(self) -> None:
        pass


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
    compute.free.clear()
    compute.asked = asyncio.Queue()
    onward.broke(PeerUnavailable("the next stage is gone"))
    await asyncio.wait_for(compute.asked.get(), 5)  # the run's KV is being freed
    closing = asyncio.create_task(worker.close())
    await asyncio.wait_for(compute.asked.get(), 5)
    compute.free.set()
    with pytest.raises(PeerUnavailable, match="the next stage is gone"):
        await asyncio.wait_for(serving, 5)
    await asyncio.wait_for(closing, 5)
