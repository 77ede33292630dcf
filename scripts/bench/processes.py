"""Child processes, each on its own core, and children that answer requests as lines of JSON."""

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from figures import ROOT

END_S = 15.0
ONE_THREAD = ("BLIS_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@functools.cache
def cores() -> tuple[int, ...]:
    """Return the cores that this process was allowed to use at the first call: one of each physical core first, then
    their hyperthreads. Empty on macOS.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    seen: set[str] = set()
    first: list[int] = []
    rest: list[int] = []
    for core in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        name = siblings.read_text().strip() if siblings.exists() else str(core)
        (rest if name in seen else first).append(core)
        seen.add(name)
    return (*first, *rest)


@contextlib.contextmanager
def on_cores(chosen: Sequence[int]) -> Iterator[None]:
    """Inside, this thread runs on these cores only, and so do all threads of processes that it starts."""
    if not chosen or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pin(pid: int, core: int | None) -> None:
    """Move all threads of a running process to another core."""
    if core is None:
        return
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # the thread has just ended
            os.sched_setaffinity(int(task.name), {core})


def environment(preload: Path | None = None) -> dict[str, str]:
    """Return an environment with one BLAS thread, with the modules of this script's tree, and without a user's options."""
    given = {**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    given["PIPPIN_CONFIG"] = os.devnull
    if preload:
        given["LD_PRELOAD"] = str(preload)
    return given


def start_node(
    arguments: Sequence[str], out: IO[bytes], preload: Path | None = None, program: Sequence[str] = ("-m", "node")
) -> subprocess.Popen[bytes]:
    """Start a node that writes its log to `out`. Ctrl-C reaches only this process, which ends its children itself."""
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        cwd=ROOT,
        env=environment(preload),
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask each to stop; kill the ones that do not."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Child:
    """A script of this directory that reads requests from its stdin and answers each with one line on its stdout."""

    def __init__(
        self, script: str, *arguments: str, core: int | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, str(Path(__file__).parent / script), *arguments]
        with on_cores([] if core is None else [core]):
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=dict(env or environment()),
                start_new_session=True,  # Ctrl-C reaches only this process, which ends its children itself
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end([self.process])

    def ask(self, timeout_s: float = 600.0, **question: Any) -> dict[str, Any]:
        self.tell(**question)
        return self.answer(timeout_s)

    def tell(self, **question: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, timeout_s: float = 600.0) -> dict[str, Any]:
        """Return the next line. Raises SystemExit when the child failed, ended, or is silent for `timeout_s`."""
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            command = " ".join(map(str, self.process.args)) if isinstance(self.process.args, list) else ""
            raise SystemExit(f"{'No answer from' if not ready else 'It ended:'} {command}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SystemExit(str(answer["error"]))
        return answer
