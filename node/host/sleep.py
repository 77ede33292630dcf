"""Keeps a Mac awake while this process runs. A sleeping Mac answers nobody, and its rings fail."""

import logging
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_CAFFEINATE = "/usr/bin/caffeinate"

log = logging.getLogger(__name__)


@contextmanager
def prevent_sleep() -> Iterator[None]:
    """Inside, a Mac does not go to sleep for want of input, or at all on AC power. Does nothing on other systems.

    It ends with this process, however that ends. A closed lid sends a MacBook to sleep all the same. Enter it before
    other threads start: it starts a subprocess.
    """
    if platform.system() != "Darwin":
        yield
        return
    command = [_CAFFEINATE, "-is", "-w", str(os.getpid())]
    try:
        # A session of its own: Ctrl-C in the terminal must not end it while the node still finishes answers.
        caffeinate = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    except OSError as error:
        log.warning("this Mac may go to sleep while the node runs, as %s can't be started: %s", _CAFFEINATE, error)
        yield
        return
    with caffeinate:
        try:
            yield
        finally:
            caffeinate.terminate()
