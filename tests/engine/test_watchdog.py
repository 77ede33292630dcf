"""When the compute thread counts as stuck: by the time in which this process ran, and later for pieces of a load."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from node.engine import watchdog as module
from node.engine.compute import Compute, Job
from node.engine.watchdog import LOOK_S, MAX_PIECE_S, ComputeStuck, Watchdog


class Clock:
    """A clock for the watchdog's checks: one per second, except for the `late` ones."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, compute: Compute, jobs: list[Job | None], late: dict[int, float]
    ):
        self.time = 0.0
        self.looks = 0
        self._compute, self._jobs, self._late = compute, jobs, late
        monkeypatch.setattr(module, "now", lambda: self.time)
        monkeypatch.setattr(module, "in_step", lambda delay_s: delay_s)
        monkeypatch.setattr(module.asyncio, "sleep", self._sleep)
        monkeypatch.setattr(module.faulthandler, "dump_traceback", lambda: None)

    async def _sleep(self, seconds: float) -> None:
        if self.looks == len(self._jobs):
            raise asyncio.CancelledError
        self._compute.job = self._jobs[self.looks]
        self.looks += 1
        self.time += seconds + self._late.get(self.looks, 0.0)


async def found(monkeypatch, jobs, late=None, limit=10.0) -> tuple[ComputeStuck | None, Clock, Watchdog]:
    compute = Compute()
    clock = Clock(monkeypatch, compute, jobs, late or {})
    watchdog = Watchdog(compute, limit)
    try:
        return await watchdog.lost(), clock, watchdog
    except asyncio.CancelledError:
        return None, clock, watchdog


async def test_one_job_without_end(monkeypatch):
    lost, clock, watchdog = await found(monkeypatch, [None, Job(), *[Job()] * 30])
    assert lost
    assert "10 s" in lost.message
    assert clock.looks == 2 + 11
    assert watchdog.age_s == 10


async def test_many_jobs_and_none(monkeypatch):
    lost, _, watchdog = await found(monkeypatch, [Job() for _ in range(50)] + [None] * 50)
    assert lost is None
    assert watchdog.age_s == 0


async def test_a_machine_that_slept_was_at_nothing(monkeypatch):
    job = Job()
    lost, _, watchdog = await found(monkeypatch, [job] * 6, late={3: 3600.0, 5: 3600.0})
    assert lost is None
    assert watchdog.age_s == 5 + 2 * LOOK_S


async def test_a_piece_of_a_load_may_wait_for_its_disk(monkeypatch):
    piece = Job(piece=True)
    lost, _, watchdog = await found(monkeypatch, [piece] * 300)
    assert lost is None
    assert watchdog.age_s == 299
    lost, clock, _ = await found(monkeypatch, [piece] * 1000)
    assert lost
    assert clock.looks == MAX_PIECE_S + 1


async def test_what_the_thread_is_at(monkeypatch):
    """As the thread itself sees it."""
    compute, seen = Compute(), []

    def pieces() -> Generator[None, None, None]:
        seen.append(compute.job)
        yield
        seen.append(compute.job)

    def fail() -> Any:
        seen.append(compute.job)
        raise KeyError

    compute.start()
    try:
        await compute.run_pieces(pieces())
        await compute.run(lambda: seen.append(compute.job))
        with pytest.raises(KeyError):
            await compute.run(fail)
        await compute.run(int)
    finally:
        compute.stop()
    assert [job.piece for job in seen] == [True, True, False, False]
    assert len({id(job) for job in seen}) == 4
    assert compute.job is None
