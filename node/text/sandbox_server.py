"""The other side of sandboxes: the server that forks them, and what runs in one.

The server has no threads and does nothing but fork, so what it forks is in order on macOS, too, and is there within
milliseconds, as it has imported already what sandboxes need.
"""

import importlib
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable

import psutil

Job = Callable[[bytes], bytes]

IMPORTED = ("node.text.grammar_job", "node.text.tokenizer_job")
"""Modules of jobs."""
START = struct.Struct("!Q64s")
"""Asks the server for a sandbox, and brings the sandbox's end of a socket: the bytes of memory that it may use beyond those
of the server, and its job, as "module:function"."""
STARTED = struct.Struct("!q")
"""The server's answer: the process's id."""
ASKED = struct.Struct("!Id")
"""Before a request: its length in bytes, and the seconds that it may take."""
SIZE = struct.Struct("!I")
"""Before a reply: its length in bytes."""
ANSWERED, FAILED = b"\0", b"\1"
"""The first byte of a reply: what the job answered, or in words what it raised."""


def main() -> None:
    """The server, on the socket whose file descriptor is the first argument, until the node hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM):  # terminals and supervisors may send them to all processes
        signal.signal(number, signal.SIG_IGN)  # it is the node that decides, and hangs up
    for module in IMPORTED:
        importlib.import_module(module)
    node = socket.socket(fileno=int(sys.argv[1]))
    while True:
        asked, (*ends,), _, _ = socket.recv_fds(node, START.size, 1)
        if not ends:
            return
        with socket.socket(fileno=ends[0]) as channel:
            process = os.fork()
            if not process:
                node.close()
                _run(asked, channel)
        node.sendall(STARTED.pack(process))
        _reap()


def _reap() -> None:
    """Let go of the processes that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _run(asked: bytes, channel: socket.socket) -> None:
    """A sandbox, from its fork to its end."""
    try:
        memory, job = START.unpack(asked)
        module, _, make = job.rstrip(b"\0").decode().partition(":")
        _limit(memory)
        _serve(channel, getattr(importlib.import_module(module), make)())
    finally:
        os._exit(0)  # nothing of the server's may run on


def _limit(memory: int) -> None:
    # What native code prints when it panics is not for the node's log: whoever sends a request could write there.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # macOS takes this limit and does not keep it; the node looks at the memory, too
        most = psutil.Process().memory_info().vms + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _serve(channel: socket.socket, answer: Job) -> None:
    """One request after the other, until the node hangs up."""
    _send(channel, ANSWERED)
    while head := _read(channel, ASKED.size):
        length, seconds = ASKED.unpack(head)
        request = _read(channel, length)
        # Ends the process also in the middle of native code, and if the node is there no more to do it.
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            reply = ANSWERED + answer(request)
        except BaseException as error:  # noqa: BLE001 - the root of the process; a panic of Rust is no Exception
            reply = FAILED + f"{type(error).__name__}: {error}"[:500].encode(errors="replace")
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(channel, reply)


def _send(channel: socket.socket, reply: bytes) -> None:
    channel.sendall(SIZE.pack(len(reply)) + reply)


def _read(channel: socket.socket, size: int) -> bytes:
    """All of it; less when the node has hung up."""
    data = bytearray()
    while len(data) < size and (part := channel.recv(min(size - len(data), 2**20))):
        data += part
    return bytes(data)


if __name__ == "__main__":
    main()
