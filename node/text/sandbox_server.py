"""The server process that forks sandboxes, and the code that runs in a sandbox.

The server has no threads and does nothing but fork, which is therefore safe on macOS, too. It has imported the modules
of most jobs, so a fork takes milliseconds. MLX does not survive a fork: a job that computes begins a program of its own.
"""

import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress

import psutil

from node.core.errors import PippinError
from node.host.descriptors import fixed_limit
from node.text.confinement import confine

Job = Callable[[bytes], bytes]

IMPORTED = ("node.model.json_parser", "node.text.grammar_job", "node.text.picture_job", "node.text.tokenizer_job")
"""Modules of the jobs that a fork of the server runs."""
APART = ("node.engine.trial",)
"""Those of jobs with a program of their own."""
IMPORTS_S = 180.0
"""Most that the imports of all jobs may take: macOS examines each library when it is first used."""
START = struct.Struct("!Q64s1024s")
"""Request to the server for a sandbox, sent with the sandbox's end of a socket: its maximum memory in bytes beyond the
server's, its job as "module:function", and its folder."""
START_REPLY = struct.Struct("!q")
"""The server's reply: the sandbox's process id."""
REQUEST_HEADER = struct.Struct("!Idd")
"""Header of a request: its length in bytes, and its limits of processor time and of all time in seconds."""
REPLY_HEADER = struct.Struct("!I")
"""Header of a reply: its length in bytes."""
ANSWERED, REFUSED, FAILED = b"\0", b"\1", b"\2"
"""First byte of a reply: the job's result follows, or the PippinError that it raised, as JSON, or the text of another exception."""


def main() -> None:
    """Run the server on the socket whose file descriptor is the first argument, until the node closes it; with a second
    argument, run this job instead.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # terminals and supervisors may send them to all processes
        signal.signal(number, signal.SIG_IGN)  # the node decides, and closes the socket
    node = socket.socket(fileno=int(sys.argv[1]))
    if len(sys.argv) > 2:
        # A job that no fork can run is there to die instead of the node, which runs the same next: it may open what the
        # node may, as MLX calls drivers and compilers. The node alone limits its memory: drivers reserve addresses without end.
        _silence()
        _serve(node, _function(sys.argv[2])())
        os._exit(0)  # threads of a device may hang
    # On a Mac, libraries of the system that an import starts may keep threads of their own, which run no Python.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    with fixed_limit():
        for module in IMPORTED:
            importlib.import_module(module)
    while True:
        request, (*ends,), _, _ = socket.recv_fds(node, START.size, 1)
        if not ends:
            return
        with socket.socket(fileno=ends[0]) as channel:
            process = os.fork()
            if not process:
                node.close()
                _run(request, channel)
        node.sendall(START_REPLY.pack(process))
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # reaps those that have ended
                pass


def _run(request: bytes, channel: socket.socket) -> None:
    """Run a sandbox after its fork; does not return."""
    try:
        memory, name, folder = START.unpack(request)
        job = name.rstrip(b"\0").decode()
        if job.partition(":")[0] in APART:
            channel.set_inheritable(True)
            command = [sys.executable, "-P", "-m", __spec__.name, str(channel.fileno()), job]
            os.execv(sys.executable, command)  # noqa: S606 - this very program
        make = _function(job)
        _silence()
        if sys.platform == "linux":  # macOS ignores this limit, so the node checks the memory, too
            most = psutil.Process().memory_info().vms + memory
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        confine(os.fsdecode(folder.rstrip(b"\0")))
        _serve(channel, make())
    finally:
        os._exit(0)  # no cleanup of the server may run here


def _function(job: str) -> Callable[[], Job]:
    module, _, name = job.partition(":")
    make: Callable[[], Job] = getattr(importlib.import_module(module), name)
    return make


def _silence() -> None:
    # The output of a panic must not reach the node's log, as a request could write there.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(channel: socket.socket, answer: Job) -> None:
    """Process one request after the other, until the node closes the socket."""
    _send(channel, ANSWERED)
    requests = channel.makefile("rb")
    while head := requests.read(REQUEST_HEADER.size):
        length, processor_s, wait_s = REQUEST_HEADER.unpack(head)
        request = requests.read(length)
        # Ends the process in the middle of native code, too, and also when the node has died.
        _set_timers(processor_s, wait_s)
        try:
            reply = ANSWERED + answer(request)
        except PippinError as error:
            fields = {"code": error.code, "message": error.message, "hint": error.hint, "param": error.param}
            reply = REFUSED + json.dumps(fields).encode()
        except BaseException as error:  # noqa: BLE001 - the root of the process; a panic of Rust is no Exception
            reply = FAILED + f"{type(error).__name__}: {error}"[:500].encode(errors="replace")
        _set_timers(0, 0)
        _send(channel, reply)


def _set_timers(processor_s: float, wait_s: float) -> None:
    """End this process after so many seconds of processor time, or so many in all; 0: never."""
    signal.setitimer(signal.ITIMER_PROF, processor_s)
    signal.setitimer(signal.ITIMER_REAL, wait_s)


def _send(channel: socket.socket, reply: bytes) -> None:
    channel.sendall(REPLY_HEADER.pack(len(reply)) + reply)


if __name__ == "__main__":
    main()
