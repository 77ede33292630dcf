"""A stage refuses frames with another fence than its ring's, and frames of other rings."""

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

from node.core.errors import PippinError, StaleFence
from node.core.frames import Frame, Open
from node.core.generation import GenerateRequest
from node.core.models import ModelVersion
from node.core.nodes import Caller
from node.core.rings import Fence, Ring, StageSpec
from node.ring.driver import Driver
from node.ring.lifecycle import Rings
from node.ring.limits import RingLimits, RingOptions
from node.ring.scheduler import Scheduler
from node.ring.worker import Worker

RING = Ring("m@3.4", ModelVersion("m"), (StageSpec("a", 0, 4), StageSpec("b", 4, 8)), 512, 2, fence=Fence(3, 4))
FRAME = Frame(RING.id, RING.fence, 0, (Open(1),))
LATER_AND_EARLIER = [Fence(3, 3), Fence(2, 9), Fence(3, 5), Fence(4, 4)]


class Untouched:
    """In place of the compute thread and the runner, which a refused frame must not reach."""

    plan = SimpleNamespace(batchable=True, trimmable=True, pads=True, steps_back=True, chunked=False)
    kv = None

    async def run(self, *_args: object, **_more: object) -> None:
        raise AssertionError("a stale frame was computed")


async def no_more() -> AsyncIterator[Frame]:
    for frame in ():
        yield frame


def driver() -> Driver:
    limits = RingLimits(context=512, max_sessions=2, max_queue=4, max_rows=2, chunk=128, kv=())
    scheduler = Scheduler(limits, Untouched.plan, count(), 2)
    return Driver(RING, scheduler, Untouched(), Untouched(), None, ended, leftover={})


def worker() -> Worker:
    return Worker(RING, Untouched(), Untouched(), None, ended, is_last=True)


def ended(reason: PippinError, _chunk: int = 0) -> None:
    raise AssertionError(f"the ring ended: {reason}")


@pytest.mark.parametrize("fence", LATER_AND_EARLIER, ids=str)
@pytest.mark.parametrize("part", [driver, worker])
async def test_a_frame_of_another_fence_is_refused(part, fence):
    with pytest.raises(StaleFence, match=r"m@3\.4"):
        await part().serve_link(replace(FRAME, fence=fence), no_more())


@pytest.mark.slow
async def test_frames_and_requests_of_an_unknown_ring_are_refused():
    rings = Rings(
        SimpleNamespace(info=SimpleNamespace(id="a", incarnation=1, started_at=0), book=None),
        None,
        None,
        None,
        None,
        RingOptions(usable=0, max_queue=4, max_batch=4, step_timeout_s=60, guesses=True),
    )

    async def frames() -> AsyncIterator[Frame]:
        yield FRAME

    with pytest.raises(StaleFence, match="not part of ring"):
        await rings.serve_link(frames(), Caller("10.0.0.9"))
    with pytest.raises(StaleFence, match="does not drive ring"):
        rings.generate(RING.id, GenerateRequest("r", "m", (1,), 1))
