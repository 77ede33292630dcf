"""Threads by purpose: what blocks or floods one purpose keeps no other waiting, and no queue is without bound."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

from node.core.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")


class Pool(Executor):
    """At most `threads` jobs run and `most_waiting` wait. A job whose caller has gone before it began is dropped.

    The threads are daemons: a job that never returns does not keep the process from ending.
    """

    def __init__(self, name: str, threads: int, most_waiting: int, stuck_after_s: float | None = None) -> None:
        """`stuck_after_s`: a job that has run or waited for longer shows that the pool is stuck; None: jobs may take hours."""
        self.name = name
        self._most_threads = threads
        self._most_waiting = most_waiting
        self._stuck_after_s = stuck_after_s
        self._threads = 0
        self._idle = 0
        self._changed = threading.Condition()
        self._waiting: dict[Future[Any], Callable[[], Any]] = {}
        self._asked_at: dict[Future[Any], float] = {}
        """Of all jobs that have not ended, oldest first."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result, from a thread. Raises Overloaded when too many jobs wait, and what the function raises."""
        return await asyncio.get_running_loop().run_in_executor(self, partial(function, *args, **kwargs))

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Raises Overloaded when too many jobs wait."""
        future: Future[T] = Future()
        with self._changed:
            if len(self._waiting) >= self._most_waiting:
                raise Overloaded(
                    f"{len(self._waiting)} jobs already wait for the {self._most_threads} {self.name} threads."
                )
            if self._idle <= len(self._waiting) and self._threads < self._most_threads:
                name = f"{self.name}-{self._threads + 1}"
                threading.Thread(target=self._work, name=name, daemon=True).start()  # or raises, before anything waits
                self._threads += 1
            self._waiting[future] = partial(function, *args, **kwargs)
            self._asked_at[future] = time.monotonic()
            self._changed.notify()
        future.add_done_callback(self._forget)
        return future

    def oldest_s(self) -> float:
        """Seconds since the oldest job that has not ended was asked for; 0 when there is none."""
        with self._changed:
            return time.monotonic() - min(self._asked_at.values()) if self._asked_at else 0.0

    def is_stuck(self) -> bool:
        return self._stuck_after_s is not None and self.oldest_s() > self._stuck_after_s

    def _forget(self, future: Future[Any]) -> None:
        with self._changed:
            self._waiting.pop(future, None)
            self._asked_at.pop(future, None)

    def _work(self) -> None:
        while True:
            future, job = self._next()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - told to the caller, as every executor does
                future.set_exception(as_exception(error))
            del future, job  # or what they hold would live until the next job

    def _next(self) -> tuple[Future[Any], Callable[[], Any]]:
        with self._changed:
            self._idle += 1
            while not self._waiting:
                self._changed.wait()
            self._idle -= 1
            future = next(iter(self._waiting))
            return future, self._waiting.pop(future)


def as_exception(error: BaseException) -> Exception:
    """The error of a job as whoever waits for the job can be told it.

    That is another one for StopIteration, which a future of asyncio refuses, so that the waiting would never end, and for
    what is no Exception, such as a panic in Rust code, which would pass by all handlers.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    told = RuntimeError(f"{type(error).__name__}: {error}")
    told.__cause__ = error
    return told


@dataclass(frozen=True, slots=True)
class Pools:
    """A node's, by purpose."""

    texts: Pool = field(default_factory=lambda: Pool("text", 4, 256, 30))
    """Tokenizers are loaded, and texts spelled."""
    files: Pool = field(default_factory=lambda: Pool("file", 4, 1024, 60))
    """Requests and loads look at this node's disk; one that sleeps takes some 10 s to answer."""
    upkeep: Pool = field(default_factory=lambda: Pool("upkeep", 2, 16, 60))
    """What the node looks at every few seconds, whatever is asked of it."""
    offers: Pool = field(default_factory=lambda: Pool("offer", 4, 256, 60))
    """Peers read this node's files."""
    hub: Pool = field(default_factory=lambda: Pool("hub", 4, 64, 120))
    """Look-ups, each of which ends by a time-out of its own."""
    downloads: Pool = field(default_factory=lambda: Pool("download", 16, 256))
    """Files come from the hub, one thread for as long as a load takes, or from peers."""

    def stuck(self) -> list[str]:
        """The names of those whose jobs do not end."""
        pools = (self.texts, self.files, self.upkeep, self.offers, self.hub, self.downloads)
        return [pool.name for pool in pools if pool.is_stuck()]
