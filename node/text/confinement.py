"""Confines a process to one folder, Python's own code, and no network: what a tokenizer names elsewhere can't be opened.

An audit hook refuses what Python code does. Native code does not ask it; on Linux the kernel refuses that (Landlock).
"""

import ctypes
import logging
import os
import struct
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import node

log = logging.getLogger(__name__)

_SYSTEM = (
    *("/usr/lib", "/lib", "/lib64", "/usr/local/lib", "/nix/store", "/etc/ld.so.cache"),
    *("/etc/localtime", "/usr/share/zoneinfo"),
)
"""Libraries that modules load, and time zones, which chat templates may ask for."""
_LISTS = ("os.listdir", "os.scandir")
_REFUSED = ("os.", "subprocess.", "socket.", "shutil.", "pickle.", "pty.", "ctypes.dlopen", "signal.")
_HARMLESS = ("os.putenv", "os.unsetenv")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Landlock, of Linux 5.13 and later: system calls, and rights by the version that knows them
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_BENEATH = 1
_WRITE_FILE, _READ_FILE, _READ_DIR, _MAKE_FILE, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 8, 1 << 14
_READING, _WRITING = _READ_FILE | _READ_DIR, _WRITE_FILE | _MAKE_FILE | _TRUNCATE
_OF_FILES = _READ_FILE | _WRITE_FILE | _TRUNCATE
_FILES = ((1, 13), (2, 14), (3, 15), (5, 16))
"""Number of rights on files that each version adds up to."""
_NETWORK_SINCE, _NETWORK = 4, 0b11
_SCOPE_SINCE, _SCOPE = 6, 0b11
"""Abstract sockets of other processes, and signals to them."""
_NO_NEW_PRIVILEGES = 38


def confine(folder: str) -> None:
    """Confine this process, which has one thread, for good. `folder`: may be read and written; empty: there is none."""
    code = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths = map(os.path.realpath, (*code, f"{sys.base_prefix}/lib", *node.__path__, *_SYSTEM, "/proc/self"))
    readable = [path for path in paths if Path(path).exists()]
    writable = [os.path.realpath(folder)] if folder else []
    sys.dont_write_bytecode = True
    if sys.platform == "linux":
        _restrict(readable, writable)

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        """Refuses events of Python code by an OSError, as the system would."""
        if event == "open":
            path, _, flags = args
            allowed = writable if flags & _WRITES else [*readable, *writable]
        elif event in _LISTS:
            path, allowed = args[0], [*readable, *writable]
        elif event.startswith(_REFUSED) and event not in _HARMLESS:
            raise PermissionError(f"a sandbox may not do this: {event}")
        else:
            return
        # A number is that of a file that is open already, which is beneath nothing.
        real = "" if isinstance(path, int) else os.path.realpath(os.fsdecode("." if path is None else path))
        if not any(real == root or real.startswith(root + os.sep) for root in allowed):
            raise PermissionError(f"a sandbox may not do this outside of its folder: {event}")

    sys.addaudithook(refuse)


def check_system() -> None:
    """Log a warning if this is Linux and its kernel does not confine native code."""
    if sys.platform == "linux" and _landlock(ctypes.CDLL(None)) < 1:
        log.warning(
            "Sandboxes run without Linux's Landlock, as this kernel does not offer it: only Python's own code is confined"
        )


def _landlock(system: ctypes.CDLL) -> int:
    """The version that the kernel knows; less than 1 if it has none."""
    version: int = system.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)
    return version


def _restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Have the kernel refuse everything else. Does nothing where it can't."""
    system = ctypes.CDLL(None, use_errno=True)
    version = _landlock(system)
    if version < 1:
        return
    files = (1 << max(count for since, count in _FILES if version >= since)) - 1
    network = _NETWORK if version >= _NETWORK_SINCE else 0
    scope = _SCOPE if version >= _SCOPE_SINCE else 0

    def call(number: int, *args: Any) -> int:
        result: int = system.syscall(number, *args)
        if result < 0:
            raise OSError(ctypes.get_errno(), "Landlock could not confine this process")
        return result

    attributes = struct.pack("QQQ", files, network, scope)
    rules = call(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    for paths, rights in ((readable, _READING), (writable, _READING | _WRITING)):
        for path in paths:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            given = rights & files if Path(path).is_dir() else rights & files & _OF_FILES
            call(_ADD, rules, _BENEATH, struct.pack("=Qi", given, opened), 0)
            os.close(opened)
    system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call(_RESTRICT, rules, 0)
    os.close(rules)
