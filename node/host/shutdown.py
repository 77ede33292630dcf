"""Ends this process on signals, even if threads hang: Python cannot stop threads, and waits for all of them at exit."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable


def exit_within(seconds: float, code: int) -> None:
    """End the process after this time if it has not ended by itself. No log is lost: stderr is not buffered."""
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()


def on_signals(stop: Callable[[], None], leave: Callable[[], None]) -> None:
    """Have the first SIGINT, SIGTERM or SIGHUP call `stop`, and the next SIGINT or SIGTERM `leave`, on the running loop.

    A terminal that is closed sends SIGHUP, often twice: by the system, and by its shell. One that nohup ignores stays so.
    A thread waits for the signals, so that the second ends the process with 0 even if the loop is blocked. Call it
    once, in the main thread.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    loop = asyncio.get_running_loop()

    def wait() -> None:
        receiver.recv(1)
        loop.call_soon_threadsafe(stop)
        while receiver.recv(1)[0] == signal.SIGHUP:
            pass
        exit_within(1.0, 0)  # enough to say goodbye to peers
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(leave)

    threading.Thread(target=wait, name="signals", daemon=True).start()
    signal.set_wakeup_fd(sender.detach())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # the wakeup fd is only written to if there is a Python handler
