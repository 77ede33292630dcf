"""The compute thread, the only one that uses MLX.

MLX's streams are thread-local: an array that is not evaluated yet can only be used in the thread that made it. So one
thread loads, runs, samples and converts arrays to bytes. Long jobs are divided into pieces, so that a ring waits for
at most one piece of another ring's job.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

import mlx.core as mx

from node.core.errors import DeviceFailed, NotReady
from node.core.pool import as_exception
from node.engine.device import is_metal, limit_memory
from node.engine.faults import Faults
from node.engine.wiring import Wiring

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A job of the thread. Each job, and each piece of a long one, has its own object."""

    piece: bool = False
    """Whether it is a piece of a long job such as a load, which may wait for a slow disk."""


class Compute:
    """Runs functions in a thread, one after the other, in order of submission."""

    def __init__(self, *, wire: bool = False, unproven: bool = False) -> None:
        """`wire`: keep weights in wired memory, where the device is Metal's. `unproven`: see `make_plan`."""
        self.unproven = unproven
        self.wiring = Wiring() if wire and is_metal() else None
        self._executor: ThreadPoolExecutor | None = None
        self._waiting: set[Job] = set()
        self.job: Job | None = None
        """The job that runs; None if the thread is idle."""
        self.faults = Faults()
        """Of the device. The job in which one surfaces raises DeviceFailed instead of its own exception."""
        self._on_failure: Callable[[DeviceFailed], object] = lambda _: None

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="compute", initializer=limit_memory)
            self._executor.submit(int)  # starts the worker now instead of with the first token

    def stop(self) -> None:
        """Finish the queued jobs and end the thread. Blocks until it has ended."""
        if self._executor is not None:
            # A stream that outlives its thread aborts the process at exit.
            self._executor.submit(mx.clear_streams)
            self._executor.shutdown(wait=True)
            self._executor = None

    def submit(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a job, from any thread. Raises NotReady if the thread is not running."""
        executor, job = self._executor, Job()
        if executor is None:
            raise NotReady("The compute thread is not running.")
        self._waiting.add(job)
        try:
            future = executor.submit(self._run_job, job, partial(fn, *args, **kwargs))
        except RuntimeError as error:  # stopped between the two lines above
            self._waiting.discard(job)
            raise NotReady("The compute thread is stopping.") from error
        future.add_done_callback(lambda _: self._waiting.discard(job))  # also if it was cancelled
        return future

    @property
    def waiting(self) -> bool:
        """Whether a job waits for the one that runs. May be asked in any thread."""
        return bool(self._waiting)

    def _run_job(self, job: Job, fn: Callable[[], T]) -> T:
        self._waiting.discard(job)
        self.job = job
        try:
            return fn()
        except BaseException as error:
            if not (failed := self.faults.note(error)):
                if (told := as_exception(error)) is error:
                    raise
                raise told from error
        finally:
            self.job = None
        self._on_failure(failed)
        # Another one, and not from the job's: it would keep the job's frames, and with them KV, for as long as it is known.
        raise type(failed)(failed.message)

    async def failures(self) -> AsyncIterator[DeviceFailed]:
        """Each failure of the device, as it happens, for one listener: that of a job which nobody awaits, too."""
        loop, found = asyncio.get_running_loop(), asyncio.Queue[DeviceFailed]()
        self._on_failure = lambda failed: loop.call_soon_threadsafe(found.put_nowait, failed)
        try:
            while True:
                yield await found.get()
        finally:
            self._on_failure = lambda _: None

    def queue(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Queue a job for the running event loop. Cancelling it drops a job that has not begun; one that has begun
        completes, and its result is discarded.
        """
        return asyncio.wrap_future(self.submit(fn, *args, **kwargs))

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a job and return its result, or raise its exception. Cancelling it is as with `queue`."""
        return await self.queue(fn, *args, **kwargs)

    async def iterate(self, values: Generator[V, None, None]) -> AsyncIterator[V]:
        """Run a generator as one job, and yield each value here while the job goes on. Raises its exception. A job that has
        begun completes also if nobody takes its values any more.
        """
        loop, found = asyncio.get_running_loop(), asyncio.Queue[V | None]()

        def job() -> None:
            for value in values:
                loop.call_soon_threadsafe(found.put_nowait, value)

        running = self.queue(job)
        running.add_done_callback(lambda _: found.put_nowait(None))
        try:
            while (value := await found.get()) is not None:
                yield value
            await running
        finally:
            running.cancel()

    async def run_pieces(self, pieces: Generator[V, None, T], on_yield: Callable[[V], object] = lambda _: None) -> T:
        """Run a generator in pieces, each of which ends at a `yield`, so that other jobs can run in between; `on_yield` gets
        each value in this task. Returns the generator's result, or raises its exception. Cancelling it closes the
        generator, in the thread, after the current piece.
        """

        def piece() -> V | StopIteration:
            self.job = Job(piece=True)
            try:
                return next(pieces)
            except StopIteration as end:  # a future cannot raise it
                return end.with_traceback(None)  # which has frames that have it: a cycle would keep the result for long

        try:
            while not isinstance(found := await self.run(piece), StopIteration):
                on_yield(found)
            result: T = found.value
            return result
        finally:
            self.submit(pieces.close)
