"""Event loops on one fake clock: nothing waits; the next event is always the one that is due first.

Each simulated process has a loop of its own. So it can be stopped as by SIGSTOP (its timers are overdue when it
continues) and killed as by SIGKILL (nothing of it ever runs again, not even a `finally`).
"""

import asyncio
import contextvars
import heapq
import itertools
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Violation(AssertionError):
    """An invariant does not hold."""


class Timeline:
    """The clock and the future events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.violations: list[str] = []
        self.over = False
        """The run has ended; violations do not count any more."""
        self._heap: list[tuple[float, int, ProcessLoop | None, Any]] = []
        self._order = itertools.count()
        self._generators: dict[int, ProcessLoop] = {}
        self._running: ProcessLoop | None = None

    @property
    def running(self) -> str:
        """The name of the process that runs now; empty if none does."""
        return self._running.name if self._running else ""

    def push(self, when: float, loop: "ProcessLoop | None", handle: Any) -> None:
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), loop, handle))

    def after(self, delay: float, act: Callable[[], None]) -> None:
        """Schedule an event outside of any process."""
        self.push(self.now + delay, None, act)

    def violated(self, what: str) -> None:
        self.violations.append(f"at {self.now:.3f}: {what}")

    def run(self, until: float) -> None:
        """Raises Violation at once when an invariant does not hold."""
        heap = self._heap
        try:
            while heap and heap[0][0] <= until:
                when, order, loop, handle = heapq.heappop(heap)
                if loop is None:
                    self.now = when
                    self._enter(None)
                    handle()
                elif loop.dead:
                    loop.missed.append(handle)
                elif not handle._cancelled:
                    if loop.stopped_until > when:
                        heapq.heappush(heap, (loop.stopped_until, order, loop, handle))
                        continue
                    self.now = when
                    self.steps += 1
                    if loop is not self._running:
                        self._enter(loop)
                    handle._run()
                if self.violations and not self.over:
                    raise Violation("; ".join(self.violations))
        finally:
            self._enter(None)
        self.now = until

    def _enter(self, loop: "ProcessLoop | None") -> None:
        self._running = loop
        asyncio._set_running_loop(loop)

    def began(self, generator: Any) -> None:
        if self._running:
            self._generators[id(generator)] = self._running

    def dropped(self, generator: Any) -> None:
        """A garbage-collected async generator is closed by its loop."""
        loop = self._generators.pop(id(generator), None)
        if loop and not loop.dead:
            loop.call_soon(lambda: loop.create_task(generator.aclose()))


class ProcessLoop(asyncio.AbstractEventLoop):
    """The parts of a loop that asyncio needs for processes without I/O of their own."""

    def __init__(self, timeline: Timeline, name: str) -> None:
        self.timeline = timeline
        self.name = name
        self.dead = False
        self.stopped_until = 0.0
        self.missed: list[asyncio.Handle] = []
        """Handles that would have run if the process had not been killed."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._made = 0

    def tasks(self) -> list[asyncio.Task[Any]]:
        self._tasks = {task: None for task in self._tasks if not task.done()}
        return list(self._tasks)

    # --- called by asyncio ------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.timeline.now

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.timeline.push(self.timeline.now, self, handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.timeline.push(when, self, handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.timeline.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, **options)
        self._made += 1
        if self._made % 256 == 0:
            self.tasks()
        self._tasks[task] = None  # kept to the end, because coroutines of a killed process must not be closed half way
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """`asyncio.to_thread` ends a moment later, without a thread."""
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - told to whoever waits, as an executor does
                future.set_exception(error)

        self.call_later(0.0005, work)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        """All hosts are given by address."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port or 0))]

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.dead or self.timeline.over:
            return
        error = context.get("exception")
        log.error("%s: %s", self.name, context.get("message"), exc_info=error)
        self.timeline.violated(f"{self.name}: {context.get('message')}: {error!r}")
