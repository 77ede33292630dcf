"""A node that records what its compute thread and its links do, for timeline.py.

Arguments: the file to write at the end, then the node's own. It is the product unchanged: its functions are wrapped from
outside, which costs some µs a token. Times are those of the machine's monotonic clock, the same for all processes.
"""

import atexit
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns as now
from typing import Any, ParamSpec, TypeVar
from unittest import mock

from node.__main__ import main as node_main
from node.core.frames import Frame
from node.engine.compute import Compute
from node.rpc.frame_codec import decode
from node.rpc.link import FrameLink

P = ParamSpec("P")
T = TypeVar("T")
Event = tuple[str, int, int]
"""What was done, and when it began and ended, in ns."""


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def timed(self, what: str, fn: Callable[P, T]) -> Callable[P, T]:
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            begin = now()
            try:
                return fn(*args, **kwargs)
            finally:
                self.events.append((what, begin, now()))

        return call

    def job(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap Compute._run_job, whose job is a partial of a function."""

        def call(compute: Compute, job: Any) -> Any:
            begin = now()
            try:
                return run(compute, job)
            finally:
                self.events.append((f"job {getattr(job.func, '__name__', 'job')}", begin, now()))

        return call

    def send(self, send: Callable[[FrameLink, Frame], Any]) -> Callable[[FrameLink, Frame], Any]:
        async def call(link: FrameLink, frame: Frame) -> None:
            begin = now()
            try:
                await send(link, frame)
            finally:
                self.events.append(("send", begin, now()))

        return call


def main() -> None:
    recorder = Recorder()
    out = sys.argv.pop(1)
    atexit.register(lambda: _write(out, recorder.events))
    # The functions of the product are private to it: whoever changes them has to change this file.
    with (
        mock.patch.object(Compute, "_run_job", recorder.job(Compute._run_job)),  # noqa: SLF001
        mock.patch.object(FrameLink, "send", recorder.send(FrameLink.send)),
        mock.patch("node.rpc.server.decode", recorder.timed("receive", decode)),
    ):
        node_main()


def _write(path: str, events: list[Event]) -> None:
    with Path(path).open("w") as file:
        json.dump(events, file)


if __name__ == "__main__":
    main()
