"""How this process is told to end, and ends, whatever its threads are at: none can be ended, and Python waits for all."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable

QUIT_S = 1.0
"""How soon the second signal ends the process. Enough to say goodbye."""


def end_within(seconds: float, code: int) -> None:
    """End the process by then, if it has not ended by itself. What was logged is written: stderr has no buffer."""
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()


def on_signals(stop: Callable[[], None], leave: Callable[[], None]) -> None:
    """From now on the first SIGINT or SIGTERM calls `stop` and the second `leave`, on the running loop.

    After the second the process ends with 0, also when the loop is held up: a thread hears the signals. To be called in
    the main thread, once.
    """
    hears, tells = socket.socketpair()
    tells.setblocking(False)
    loop = asyncio.get_running_loop()

    def hear() -> None:
        hears.recv(1)
        loop.call_soon_threadsafe(stop)
        hears.recv(1)
        end_within(QUIT_S, 0)
        with contextlib.suppress(RuntimeError):  # the loop has come to its end meanwhile
            loop.call_soon_threadsafe(leave)

    threading.Thread(target=hear, name="signals", daemon=True).start()
    signal.set_wakeup_fd(tells.detach())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # without a handler in Python nothing is told
