"""Sandboxes: processes with limits, in which untrusted grammars, templates and tokenizers are compiled and run.

They are forked by a server process without threads that starts before everything else, as a process that runs gRPC
cannot fork on macOS. A sandbox limits time, memory and the size of a reply, and opens no files but those of its folder
and of Python (`node.text.confinement`).
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from node.core.errors import BadRequest, ModelBroken, ModelUnsupported, NotReady, Overloaded, PippinError, error_from
from node.core.fair_turns import FairTurns
from node.core.pool import Pool
from node.core.units import format_bytes
from node.host.memory import processor_time_of, used_by
from node.text import confinement, seatbelt
from node.text.sandbox_server import ANSWERED, IMPORTS_S, REFUSED, REPLY_HEADER, REQUEST_HEADER, START, START_REPLY

log = logging.getLogger(__name__)

_CHECK_S = 0.05
"""Interval of checks of a working sandbox's memory, which macOS does not limit."""
_GRACE_S = 10.0
"""How long after a limit the kernel ends a process itself: the node, which tells the reason, has died or hangs."""
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
"""Environment variables that sandboxes inherit; others may hold secrets and tokens."""
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OPENBLAS_NUM_THREADS": "1",  # the server has no threads
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "no_proxy": "*",  # else Python may query macOS for proxies, which crashes a forked process
}


_LONGEST_REFUSAL = 2**16
_REFUSALS = (BadRequest, ModelBroken, ModelUnsupported)
"""What a job may say of what it was given. A process that has been taken over is not to choose what becomes of its node's rings."""


class SandboxFailed(Exception):
    """The sandbox's process ended without a reply. The message is the reason, such as "it took more than 2 s"."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one request."""

    seconds: float
    """Processor time for a request of up to 1 MiB; see `longer`."""
    memory: int
    """Bytes beyond those of the sandbox server."""
    reply: int
    """Bytes of the reply."""
    patience: float = 10.0
    """How many times longer than its limit of processor time a request may take on a machine that has other work; 1 if a program that
    the job starts does the work, as its processor time is not the job's.
    """
    longer: bool = True
    """Whether a request of several MiB may take as many times longer."""
    kept: int = sys.maxsize
    """Growth in bytes after which a process is not used again, as the next request would have less memory left."""


class SandboxServer:
    """Handle of the process that forks sandboxes. Create it before any thread and before gRPC; it is never restarted."""

    def __init__(self) -> None:
        """Start the server, which imports the sandboxes' modules in the background."""
        confinement.check_system()
        self._node, theirs = socket.socketpair()
        self._node.settimeout(IMPORTS_S)
        self.forks = Pool("sandbox", 1, 256)
        """The thread that calls `fork`."""
        self.files = Pool("sandbox files", 2, 256)
        """Threads that copy files for sandboxes."""
        environment = _ENVIRONMENT | {name: os.environ[name] for name in _INHERITED if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this very program
                [*seatbelt.command(), sys.executable, "-P", "-m", "node.text.sandbox_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # what a terminal sends to all processes is for the node to decide
                env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )

    @property
    def has_ended(self) -> bool:
        """Whether the server has died, so that no sandbox can be started."""
        return self._process.poll() is not None

    def fork(self, job: str, memory: int, folder: Path | None = None) -> tuple[int, socket.socket]:
        """Fork a sandbox; returns its process id and socket. Blocks until the server's imports are done. Raises NotReady."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                request = START.pack(memory, job.encode(), os.fsencode(folder or ""))
                socket.send_fds(self._node, [request], [theirs.fileno()])
                reply = self._node.recv(START_REPLY.size)
            if not reply:
                raise ConnectionError("it hung up")
        except OSError as error:
            ours.close()
            self._node.close()  # a late reply would be taken for the reply to another request
            what = f"The server of this node's sandboxes has ended: {error}."
            raise NotReady(what, hint="Restart the node.") from error
        ours.setblocking(False)
        return START_REPLY.unpack(reply)[0], ours

    def close(self) -> None:
        """End the server. Each sandbox ends when its own socket is closed."""
        self._node.close()
        self._process.wait()


class Sandbox(asyncio.Protocol):
    """A sandbox's process. It takes one request at a time."""

    def __init__(self, process: int, bounds: Bounds) -> None:
        self._process = process
        self._bounds = bounds
        self._received = bytearray()
        self._reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._checks: dict[asyncio.Future[bytes], asyncio.TimerHandle] = {}
        """By reply, as the next request may come before the callbacks of the last one's reply run."""
        self._initial = 0
        """Bytes of memory of the process when it was ready; 0 until then."""
        self.alive = True
        """Whether it takes requests."""

    @classmethod
    async def start(cls, server: SandboxServer, job: str, bounds: Bounds, folder: Path | None = None) -> "Sandbox":
        """Start a sandbox and wait until it is ready. `job`: "module:function" that creates its `Job`. `folder`: the
        only one that it may read and write.

        Raises NotReady, Overloaded.
        """
        try:
            process, channel = await server.forks.run(server.fork, job, bounds.memory, folder)
            loop = asyncio.get_running_loop()
            _, sandbox = await loop.create_unix_connection(lambda: cls(process, bounds), sock=channel)
            await sandbox._replied(IMPORTS_S, IMPORTS_S)  # noqa: SLF001 - the first reply means that it is ready
        except (SandboxFailed, NotReady, Overloaded) as error:
            log.error("A process for %s could not be started: %s", job, error)
            if isinstance(error, SandboxFailed):
                raise NotReady(f"A sandbox could not be started: {error}.") from error
            raise
        sandbox._initial = used_by(process)  # noqa: SLF001
        return sandbox

    async def ask(self, request: bytes, *, finish: bool = False) -> bytes:
        """Send a request and return the job's reply. Raises SandboxFailed, and the PippinErrors of the job.

        Cancelling it kills the process. With `finish` the process completes the request instead; then await `wait_idle`
        before the next one.
        """
        if not self.alive:
            raise SandboxFailed("its process has ended")
        self._reply = asyncio.get_running_loop().create_future()
        seconds = self._bounds.seconds * (max(1.0, len(request) / 2**20) if self._bounds.longer else 1.0)
        wait = seconds * self._bounds.patience
        self._transport.write(REQUEST_HEADER.pack(len(request), seconds + _GRACE_S, wait + _GRACE_S) + request)
        return await self._replied(seconds, wait, finish=finish)

    @property
    def is_idle(self) -> bool:
        return self._reply.done()

    async def wait_idle(self) -> None:
        """Wait until the process has completed or failed an abandoned request. Afterwards check `alive`."""
        if not self.is_idle:
            await asyncio.wait([self._reply])

    def end(self) -> None:
        self._fail("its process was ended")

    async def _replied(self, seconds: float, wait: float, *, finish: bool = False) -> bytes:
        """Wait for a reply that takes up to so many seconds of processor time, and `wait` in all."""
        loop = asyncio.get_running_loop()
        limits = (loop.time() + wait, processor_time_of(self._process) + seconds, f"{seconds:g} s")
        self._checks[self._reply] = loop.call_later(min(_CHECK_S, seconds), self._check_limits, self._reply, *limits)
        self._reply.add_done_callback(self._stop_checks)
        try:
            reply = await asyncio.shield(self._reply)
        except asyncio.CancelledError:
            if not finish:
                self.end()
            raise
        if reply[:1] == REFUSED and (refusal := _refusal(reply[1:])):
            raise refusal
        if reply[:1] != ANSWERED:
            self.end()
            raise SandboxFailed(f"it failed with {reply[1:].decode(errors='replace')}")
        return reply[1:]

    def _stop_checks(self, reply: asyncio.Future[bytes]) -> None:
        self._checks.pop(reply).cancel()
        reply.exception()  # retrieved, or asyncio would log that nobody did

    def _check_limits(self, reply: asyncio.Future[bytes], deadline: float, most: float, told: str) -> None:
        loop = asyncio.get_running_loop()
        if reply.done():
            return
        if loop.time() >= deadline or processor_time_of(self._process) >= most:
            self._fail(f"it took more than {told}")
        elif self._initial and used_by(self._process) - self._initial > self._bounds.memory:
            self._fail(f"it took more than {format_bytes(self._bounds.memory)} of memory")
        else:
            wait = min(_CHECK_S, deadline - loop.time())
            self._checks[reply] = loop.call_later(wait, self._check_limits, reply, deadline, most, told)

    @property
    def has_grown(self) -> bool:
        return used_by(self._process) - self._initial > self._bounds.kept

    def _fail(self, reason: str) -> None:
        if self.alive:
            self.alive = False
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its parent has reaped it
                os.kill(self._process, signal.SIGKILL)
            self._transport.abort()
        if not self._reply.done():
            self._reply.set_exception(SandboxFailed(reason))

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < REPLY_HEADER.size:
            return
        (length,) = REPLY_HEADER.unpack_from(self._received)
        if length > self._bounds.reply:
            self._fail(f"what it made is larger than {format_bytes(self._bounds.reply)}")
        elif len(self._received) >= REPLY_HEADER.size + length:
            reply = bytes(self._received[REPLY_HEADER.size :])
            self._received.clear()
            if not self._reply.done():
                self._reply.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"its process crashed, or needed more than {format_bytes(self._bounds.memory)} of memory")


def _refusal(reply: bytes) -> PippinError | None:
    """The error of a job; None if a job gives no such reply."""
    if len(reply) > _LONGEST_REFUSAL:
        return None
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        fields = json.loads(reply)
        if isinstance(fields, dict) and all(
            isinstance(value, str) or (name == "param" and value is None) for name, value in fields.items()
        ):
            error = error_from(**fields)
            return error if isinstance(error, _REFUSALS) else None
    return None


class Sandboxes:
    """Sandboxes for one kind of work, fair among clients. Another one replaces a killed one."""

    def __init__(self, start: Callable[[], Awaitable[Sandbox]], turns: FairTurns, *, costly: bool = False) -> None:
        """`start` may raise PippinErrors. `turns`: how many sandboxes work at the same time, and for whom. `costly`: a
        process takes much memory and a while to start, so that there is only one, and a request whose client has gone
        is completed; `turns` are then one at a time.
        """
        self._start = start
        self._turns = turns
        self._costly = costly
        self._alive: list[Sandbox] = []
        self._in_use: set[Sandbox] = set()
        """A request has each, until it has taken the reply: it may yet end the sandbox."""
        self._starting: asyncio.Task[PippinError | None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Wait until a sandbox is idle, or the costly one is there. Raises SandboxFailed after `close`, and the errors of
        `start`.
        """
        while not self._idle():
            if self._closed:
                raise SandboxFailed("its process was ended")
            if self._costly and self._alive:
                if self._in_use:
                    return
                await self._alive[0].wait_idle()
                continue
            starting = self._start_another()
            await asyncio.wait([starting])  # not cancelled with the waiting task: the next request uses the sandbox
            if error := starting.result():
                raise error

    def end(self) -> None:
        """End those that are idle. The next request starts another one."""
        for sandbox in self._idle():
            sandbox.end()

    async def close(self) -> None:
        """End all for good."""
        self._closed = True
        for sandbox in self._alive:
            sandbox.end()
        if self._starting:
            await asyncio.wait([self._starting])
        await asyncio.sleep(0)  # their transports close in the next iteration of the loop

    async def ask(self, request: bytes, client: str) -> bytes:
        """Send a request of a client to a sandbox. Cancelling it kills the sandbox, unless that is costly. Raises
        SandboxFailed, Overloaded, and the errors of the job and of `start`.
        """
        async with self._turns.turn(client):
            await self.start()
            sandbox = self._idle()[-1]
            self._in_use.add(sandbox)
            if not self._costly and not self._idle():
                self._start_another()
            try:
                return await sandbox.ask(request, finish=self._costly)
            except asyncio.CancelledError:
                await sandbox.wait_idle()  # in the client's turn
                raise
            finally:
                self._in_use.remove(sandbox)
                if not self._costly and sandbox.has_grown:
                    sandbox.end()
                elif self._costly and not sandbox.alive and not self._closed:
                    self._start_another()

    def _idle(self) -> list[Sandbox]:
        self._alive = [sandbox for sandbox in self._alive if sandbox.alive]
        return [sandbox for sandbox in self._alive if sandbox.is_idle and sandbox not in self._in_use]

    def _start_another(self) -> "asyncio.Task[PippinError | None]":
        """Start a sandbox, unless one is being started."""
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._begin(), name="start of a sandbox")
        return self._starting

    async def _begin(self) -> PippinError | None:
        try:
            sandbox = await self._start()
        except PippinError as error:
            return error
        if self._closed:
            sandbox.end()
        self._alive.append(sandbox)
        return None
