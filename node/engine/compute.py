"""The one thread that owns MLX.

MLX's streams are thread-local: an array that is not evaluated yet can only be used in the thread that made it. So one
thread loads, runs, samples and turns arrays into bytes, and everything else asks it to. What takes long is cut into
pieces, so that a ring never waits for more than one of another's.
"""

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

import mlx.core as mx

from node.core.errors import NotReady
from node.core.pool import as_exception
from node.engine.device import wire_memory

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What the thread is at: one for each time that it begins something."""

    piece: bool = False
    """Of something long, as a load: it may wait for a slow disk."""


class Compute:
    """Runs functions one after the other, in the order given, in one thread of its own.

    An executor of one worker is just that: a queue, a thread, futures that can be cancelled before their job begins,
    and one `call_soon_threadsafe` for the way back.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self.job: Job | None = None
        """The one that runs; those that were queued after it wait for its end."""

    def start(self) -> None:
        """Start the thread. Does nothing when it runs already."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="compute", initializer=wire_memory)
            self._executor.submit(int)  # the worker starts now and not with the first token

    def stop(self) -> None:
        """Finish the jobs that were queued and end the thread. Blocks until it has ended."""
        if self._executor is not None:
            # A stream that outlives its thread aborts the process at exit.
            self._executor.submit(mx.clear_streams)
            self._executor.shutdown(wait=True)
            self._executor = None

    def submit(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a job from any thread.

        Raises NotReady when the thread does not run.
        """
        executor = self._executor
        if executor is None:
            raise NotReady("The compute thread is not running.")
        try:
            return executor.submit(self._run_job, partial(fn, *args, **kwargs))
        except RuntimeError as error:  # stopped between the two lines above
            raise NotReady("The compute thread is stopping.") from error

    def _run_job(self, fn: Callable[[], T]) -> T:
        self.job = Job()
        try:
            return fn()
        except BaseException as error:
            if (told := as_exception(error)) is error:
                raise
            raise told from error
        finally:
            self.job = None

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a job and wait for its result; its exception is raised here.

        Cancelling the waiting task skips a job that has not begun; one that has begun runs to its end unheard.
        """
        return await asyncio.wrap_future(self.submit(fn, *args, **kwargs))

    async def run_pieces(self, pieces: Generator[V, None, T], on_yield: Callable[[V], object] = lambda _: None) -> T:
        """Run a long job that pauses wherever it yields: each piece is a job, so that others get their turn in between.

        `on_yield` is called, here, with all that it yields; what it returns is the result, and its exception is raised here.
        Cancelling the waiting task closes the generator, in the thread, as soon as the piece that runs has ended.
        """

        def piece() -> V | StopIteration:
            self.job = Job(piece=True)
            try:
                return next(pieces)
            except StopIteration as end:  # which no future may have as its exception
                return end

        try:
            while not isinstance(found := await self.run(piece), StopIteration):
                on_yield(found)
            result: T = found.value
            return result
        finally:
            self.submit(pieces.close)
