"""Thread pools by purpose: a purpose that blocks or is flooded delays no other, and each queue is bounded."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ParamSpec, TypeVar

from node.core.errors import Overloaded

FULL_S = 30.0
"""Seconds for which a job has to wait for a thread before its pool counts as full."""
PULLS = 2
"""Models that are fetched for users at once: more would only share the line."""

P = ParamSpec("P")
T = TypeVar("T")


class Pool(Executor):
    """Thread pool in which at most `threads` jobs run and `max_waiting` wait. Jobs cancelled before they begin never run.

    The threads are daemons, so a job that never returns does not keep the process from exiting.
    """

    def __init__(self, name: str, threads: int, max_waiting: int, stuck_after_s: float | None = None) -> None:
        """`stuck_after_s`: a job that takes longer, waiting included, means that the pool is stuck; None: jobs may take hours."""
        self.name = name
        self._max_threads = threads
        self._max_waiting = max_waiting
        self._stuck_after_s = stuck_after_s
        self._threads = 0
        self._idle = 0
        self._changed = threading.Condition()
        self._waiting: dict[Future[Any], Callable[[], Any]] = {}
        self._asked_at: dict[Future[Any], float] = {}
        """Submission times of all unfinished jobs, oldest first."""

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the function in a thread. Raises Overloaded if too many jobs wait, and the exceptions of the function."""
        return await asyncio.get_running_loop().run_in_executor(self, partial(function, *args, **kwargs))

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Raises Overloaded if too many jobs wait."""
        future: Future[T] = Future()
        with self._changed:
            if len(self._waiting) >= self._max_waiting:
                raise Overloaded(
                    f"{len(self._waiting)} jobs already wait for the {self._max_threads} {self.name} threads."
                )
            if self._idle <= len(self._waiting) and self._threads < self._max_threads:
                name = f"{self.name}-{self._threads + 1}"
                # Starting it may raise, so it comes before the job is queued.
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._threads += 1
            self._waiting[future] = partial(function, *args, **kwargs)
            self._asked_at[future] = time.monotonic()
            self._changed.notify()
        future.add_done_callback(self._forget)
        return future

    def oldest_s(self) -> float:
        """Seconds since the oldest unfinished job was submitted; 0 if there is none."""
        with self._changed:
            return time.monotonic() - min(self._asked_at.values()) if self._asked_at else 0.0

    def waiting_s(self) -> float:
        """Seconds since the oldest job that waits for a thread was submitted; 0 if none waits."""
        with self._changed:
            oldest = next(iter(self._waiting), None)
            return time.monotonic() - self._asked_at[oldest] if oldest else 0.0

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
            except BaseException as error:  # noqa: BLE001 - passed on to the caller, as in every executor
                future.set_exception(as_exception(error))
            del future, job  # else their objects would live until the next job

    def _next(self) -> tuple[Future[Any], Callable[[], Any]]:
        with self._changed:
            self._idle += 1
            while not self._waiting:
                self._changed.wait()
            self._idle -= 1
            future = next(iter(self._waiting))
            return future, self._waiting.pop(future)


def as_exception(error: BaseException) -> Exception:
    """The exception of a job as its caller can receive it: itself, or a RuntimeError.

    An asyncio future refuses StopIteration, so its caller would wait forever. No handler catches exceptions that are not
    an Exception, such as panics of Rust code.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


@dataclass(frozen=True, slots=True)
class Pools:
    texts: Pool = field(default_factory=lambda: Pool("text", 4, 256, 30))
    """Loads tokenizers and detokenizes prompts."""
    files: Pool = field(default_factory=lambda: Pool("file", 4, 1024, 60))
    """Reads this node's disk for requests and loads; a disk that has to wake up takes some 10 s."""
    upkeep: Pool = field(default_factory=lambda: Pool("upkeep", 2, 16, 60))
    """Periodic tasks of the node."""
    offers: Pool = field(default_factory=lambda: Pool("offer", 4, 256, 60))
    """Reads files for peers."""
    hub: Pool = field(default_factory=lambda: Pool("hub", 4, 64, 120))
    """Look-ups at the hub, each with a timeout."""
    downloads: Pool = field(default_factory=lambda: Pool("download", 64, 256))
    """Downloads from the hub for loads: as many as the head looks for at once. Each keeps its thread until the load ends."""
    pulls: Pool = field(default_factory=lambda: Pool("pull", PULLS, 256))
    """Downloads from the hub for users. One that was ended keeps its thread until bytes come, or 10 s have passed."""
    writes: Pool = field(default_factory=lambda: Pool("write", 4, 1024, 60))
    """Writes what peers send."""

    kv: Pool = field(default_factory=lambda: Pool("kv", 2, 256, 60))
    """Reads and writes KV on the disk."""

    def stuck(self) -> list[str]:
        """Names of the pools whose jobs do not end."""
        return [pool.name for pool in self._all() if pool.is_stuck()]

    def full(self) -> list[tuple[str, float]]:
        """Names of the pools in which a job has waited for a thread for long, and for how many seconds."""
        waits = [(pool.name, pool.waiting_s()) for pool in self._all()]
        return [(name, seconds) for name, seconds in waits if seconds >= FULL_S]

    def _all(self) -> list[Pool]:
        return [getattr(self, each.name) for each in fields(self)]
