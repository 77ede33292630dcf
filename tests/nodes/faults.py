"""Faults of a machine under real nodes: its disk of KV, its wall clock, and single bits of what comes to it. Linux only."""

import ctypes
import mmap
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")


class Fields(ctypes.Structure):
    """As in faults.c."""

    _fields_ = (
        ("ahead_s", ctypes.c_int64),
        ("read_errno", ctypes.c_int32),
        ("write_errno", ctypes.c_int32),
        ("open_ms", ctypes.c_int32),
        ("flip_every", ctypes.c_int32),
        ("failed", ctypes.c_int64),
        ("delayed", ctypes.c_int64),
        ("received", ctypes.c_int64),
        ("flipped", ctypes.c_int64),
    )
    ahead_s: int
    """Seconds by which the wall clock is wrong."""
    read_errno: int
    write_errno: int
    """What each call ends with that reads or writes a file of KV; 0: they work."""
    open_ms: int
    """Time that it takes to open one."""
    flip_every: int
    """A bit flips in each n-th of the pieces that gRPC receives; 0: in none."""
    failed: int
    delayed: int
    """Number of calls that failed, and that took longer."""
    received: int
    flipped: int
    """Number of pieces received, and of those with a flipped bit."""


class Faults:
    """Of one machine: of all nodes that are started with its `environment`."""

    def __init__(self, library: Path, file: Path) -> None:
        file.write_bytes(bytes(ctypes.sizeof(Fields)))
        self.environment = {"LD_PRELOAD": str(library), "FAULTS": str(file)}
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), 0)
        self.now = Fields.from_buffer(self._memory)

    def end(self) -> None:
        """No fault happens any more."""
        self.now.ahead_s = 0
        self.now.read_errno = self.now.write_errno = self.now.open_ms = self.now.flip_every = 0


def compiled(directory: Path) -> Path:
    """The library; skips the test where there is none."""
    if sys.platform != "linux" or not (compiler := shutil.which("cc")):
        pytest.skip("faults of a machine need Linux and a C compiler")
    library = directory / "faults.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True, capture_output=True
    )
    return library
