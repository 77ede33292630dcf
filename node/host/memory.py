"""Memory of this machine, and the share of it that a node may use for models."""

import ctypes
import logging
import platform
import sys

import psutil

from node.core.units import format_bytes

log = logging.getLogger(__name__)

DEVICE_SHARE = 0.9
"""Share of a device's memory used for models. The rest is for MLX's free buffers, the results of a step, and other
programs; mlx-lm warns of models that take more.
"""
RAM_SHARE = 0.7
"""Share of RAM used on machines whose device gives no limit of its own. The rest is for the system, this process and
the file cache, through which weights are read; a machine that swaps is slower than one with fewer layers.
"""

SPARE_SHARE = 0.05
"""Share of the RAM that is to be available before a node keeps layers which no ring uses."""

STRANDED = 2**30
"""Bytes of wired memory without a known owner from which it is told."""
_SYSTEM_WIRED = 2 * 2**30
_SYSTEM_WIRED_SHARE = 1 / 16
"""What macOS itself wires, generously: some bytes, and a share of the memory."""

_IS_MAC = platform.system() == "Darwin"
_LIBC = ctypes.CDLL(None)
_GLIBC = _LIBC if sys.platform == "linux" and hasattr(_LIBC, "malloc_trim") else None


def limit_arenas() -> None:
    """Limit glibc to two malloc arenas. By default nearly every thread has its own, of up to 64 MB.

    Memory freed in an arena is of no use to threads with other arenas, and is seldom returned to the system. Other C
    libraries do not need this.
    """
    if _GLIBC:
        _GLIBC.mallopt(-8, 2)  # M_ARENA_MAX


def release_free_heap() -> None:
    """Return free heap memory to the system: glibc keeps all but the ends of its heaps. Takes some milliseconds."""
    if _GLIBC:
        _GLIBC.malloc_trim(0)


class _Usage(ctypes.Structure):
    """`rusage_info_v0` of macOS's libproc.h."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        ("times_and_faults", ctypes.c_uint64 * 5),
        ("wired", ctypes.c_uint64),
        ("resident", ctypes.c_uint64),
        ("footprint", ctypes.c_uint64),
        ("start_and_exit", ctypes.c_uint64 * 2),
    )


def used_by(process: int) -> int:
    """Bytes of memory of another process; 0 if it has ended, or is of a user whose processes this one may not look at.

    A Mac that is short of memory compresses pages, which then are no longer resident; its footprint counts them.
    """
    if _IS_MAC:
        usage = _Usage()
        failed = _LIBC.proc_pid_rusage(process, 0, ctypes.byref(usage))
        return 0 if failed else int(usage.footprint)
    try:
        return int(psutil.Process(process).memory_info().rss)
    except psutil.Error:
        return 0


def processor_time_of(process: int) -> float:
    """Seconds that another process has computed; 0 where `used_by` is."""
    try:
        times = psutil.Process(process).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def stranded() -> int:
    """Bytes of wired memory of this Mac that no process owns which this user may look at; 0 if there are few, and on other
    systems. Such memory is that of other users' processes, or was left by one that was killed while it held a model.

    macOS does not tell who owns wired memory. So all memory of all processes that this user may look at counts as wired,
    and a generous share as macOS's own.
    """
    if not _IS_MAC:
        return 0
    wired = int(getattr(psutil.virtual_memory(), "wired", 0))
    owned = sum(map(used_by, psutil.pids())) + _SYSTEM_WIRED + int(total() * _SYSTEM_WIRED_SHARE)
    return wired - owned if wired - owned >= STRANDED else 0


def total() -> int:
    return int(psutil.virtual_memory().total)


def available() -> int:
    """Bytes that are free, or will be as soon as the system drops its caches."""
    return int(psutil.virtual_memory().available)


def shortage() -> int:
    """Bytes that this machine lacks for SPARE_SHARE; 0 if it lacks none."""
    return max(0, int(total() * SPARE_SHARE) - available())


def usable(device_memory: int | None, asked: int | None) -> int:
    """Bytes that this node may use for models, in total.

    `asked`, by the user, takes precedence, up to the machine's memory. Otherwise it is a share of the device's memory:
    on Metal the recommended working set, beyond which the GPU's pages do not stay resident, and every token waits for
    them. Otherwise a share of the RAM. The result depends on total memory, never on what happens to be free: a
    placement must be the same after a restart.
    """
    if asked is not None:
        given = min(asked, max(total(), device_memory or 0))
        if given < asked:
            log.warning("--memory %s: this machine has %s, which is used", format_bytes(asked), format_bytes(given))
        if device_memory and given > device_memory:
            log.warning("%s", _too_much(given, device_memory))
        return given
    return int(device_memory * DEVICE_SHARE) if device_memory else int(total() * RAM_SHARE)


def excess(device_memory: int | None, asked: int | None) -> str:
    """Why the bytes that the user asked for are too many; empty if they are not."""
    given = min(asked or 0, max(total(), device_memory or 0))
    return _too_much(given, device_memory) if device_memory and given > device_memory else ""


def _too_much(given: int, device_memory: int) -> str:
    """Explain that the device can't hold `given` bytes, and on a Mac how to let it."""
    what = f"--memory: the GPU can hold {format_bytes(device_memory)}, not {format_bytes(given)}"
    wired = min(given, int(total() * DEVICE_SHARE))  # without the rest, macOS itself would stall
    if not _IS_MAC or wired <= device_memory:
        return f"{what}; a model that needs more will be very slow, or fail"
    command = f"sudo sysctl iogpu.wired_limit_mb={wired // 2**20}"
    return f"{what}; for more, run `{command}` and start the node again (macOS forgets it when it restarts)"
