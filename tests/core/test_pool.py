"""Pools of threads: bounded, separate by purpose, and they report jobs that do not end."""

import asyncio
import threading
from dataclasses import replace

import pytest

from node.core.errors import Overloaded
from node.core.pool import Pool, Pools


class Blocked:
    """Jobs that wait until they are released, at the latest at the end of the test."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self._begun = threading.Semaphore(0)
        self.ran: list[object] = []

    def __call__(self, value: object = None) -> object:
        self._begun.release()
        assert self.go_on.wait(60)
        self.ran.append(value)
        return value

    async def running(self, jobs: int) -> None:
        """Wait until this many more jobs have begun."""
        for _ in range(jobs):
            assert await asyncio.to_thread(self._begun.acquire, timeout=60)


@pytest.fixture
def blocked():
    blocked = Blocked()
    yield blocked
    blocked.go_on.set()


async def test_results_and_errors_are_the_functions():
    pool = Pool("test", 2, 100)
    assert await asyncio.gather(*(pool.run(pow, 2, power) for power in range(50))) == [2**power for power in range(50)]
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)
    assert await pool.run(int, "ff", base=16) == 255


async def test_a_thread_that_does_not_start_leaves_nothing_behind(monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    pool = Pool("test", 1, 1, stuck_after_s=0)
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", start)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="can't start"):
                await pool.run(int)
    assert not pool.is_stuck()
    assert await pool.run(int, "7") == 7


async def test_no_more_jobs_run_or_wait_than_is_said(blocked):
    pool = Pool("test", 2, 3)
    jobs = [asyncio.ensure_future(pool.run(blocked, number)) for number in range(2)]
    await blocked.running(2)
    jobs += [asyncio.ensure_future(pool.run(blocked, number)) for number in range(2, 5)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="3 jobs already wait for the 2 test threads"):
        await pool.run(blocked, 5)
    blocked.go_on.set()
    assert await asyncio.gather(*jobs) == [0, 1, 2, 3, 4]
    assert await pool.run(blocked, 6) == 6


async def test_a_job_whose_caller_has_gone_is_dropped_and_makes_room(blocked):
    pool = Pool("test", 1, 1)
    running = asyncio.ensure_future(pool.run(blocked, "running"))
    await blocked.running(1)
    for _ in range(100):
        waiting = asyncio.ensure_future(pool.run(blocked, "waiting"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    last = asyncio.ensure_future(pool.run(blocked, "last"))
    await asyncio.sleep(0)
    blocked.go_on.set()
    assert await asyncio.gather(running, last) == ["running", "last"]
    assert blocked.ran == ["running", "last"]


async def test_a_job_that_does_not_end_shows_also_when_its_caller_has_gone(blocked):
    pool = Pool("test", 1, 1, stuck_after_s=0)
    pools = replace(Pools(), texts=pool)
    assert pools.stuck() == []
    job = asyncio.ensure_future(pool.run(blocked))
    await blocked.running(1)
    job.cancel()
    await asyncio.wait([job])
    assert pools.stuck() == ["test"]
    assert not Pool("test", 1, 1, stuck_after_s=3600).is_stuck()
    blocked.go_on.set()
    await pool.run(int)
    assert pools.stuck() == []


async def test_jobs_of_hours_do_not_make_a_pool_stuck(blocked):
    pool = Pool("download", 1, 1)
    job = asyncio.ensure_future(pool.run(blocked))
    await blocked.running(1)
    assert pool.oldest_s() > 0
    assert not pool.is_stuck()
    blocked.go_on.set()
    await job


async def test_a_pool_is_full_once_a_job_has_waited_for_long(blocked, monkeypatch):
    pools = replace(Pools(), downloads=Pool("download", 1, 10))
    running = asyncio.ensure_future(pools.downloads.run(blocked))
    await blocked.running(1)
    monkeypatch.setattr("node.core.pool.FULL_S", 1e-9)
    assert pools.full() == [], "its thread is busy, but nothing waits"
    waiting = asyncio.ensure_future(pools.downloads.run(blocked))
    await asyncio.sleep(0.01)
    ((name, seconds),) = pools.full()
    assert name == "download"
    monkeypatch.setattr("node.core.pool.FULL_S", seconds + 3600)
    assert pools.full() == []
    waiting.cancel()
    await asyncio.wait([waiting])
    assert pools.downloads.waiting_s() == 0
    blocked.go_on.set()
    await running


async def test_no_pool_of_the_node_is_forgotten():
    pools = Pools()
    assert {pool.name for pool in pools._all()} == {
        *("text", "file", "upkeep", "offer", "hub", "download", "pull", "write", "kv")
    }


@pytest.mark.parametrize("error", [StopIteration(3), GeneratorExit(), SystemExit(1)])
async def test_no_exception_leaves_who_waits_for_a_job_waiting(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__):
        await asyncio.wait_for(Pool("test", 1, 1).run(fail), 60)
