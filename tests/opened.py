"""Whether any process opens a file, as the kernel notices it (Linux)."""

import ctypes
import os
import sys
from pathlib import Path

_IN_OPEN = 0x20
_NOTICES = 2**16


class Opened:
    """Watches a file from now on."""

    def __init__(self, file: Path) -> None:
        self._notices = -1
        if sys.platform == "linux":
            system = ctypes.CDLL(None, use_errno=True)
            self._notices = system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if system.inotify_add_watch(self._notices, os.fsencode(file), _IN_OPEN) < 0:
                raise OSError(ctypes.get_errno(), "inotify can't watch a file")

    def __bool__(self) -> bool:
        """Whether it has been opened since it was last asked; False where the system does not tell."""
        try:
            return self._notices >= 0 and bool(os.read(self._notices, _NOTICES))
        except BlockingIOError:
            return False
