"""Memory of this machine, and the share of it that a node may use for models."""

import ctypes
import sys

import psutil

RAM_SHARE = 0.7
"""Share of RAM used on machines whose device gives no limit of its own. The rest is for the system, this process and
the file cache, through which weights are read; a machine that swaps is slower than one with fewer layers.
"""

_LIBC = ctypes.CDLL(None)
_GLIBC = _LIBC if sys.platform == "linux" and hasattr(_LIBC, "malloc_trim") else None
_M_ARENA_MAX = -8
_MAX_ARENAS = 2


def limit_arenas() -> None:
    """Limit glibc to two malloc arenas. By default nearly every thread has its own, of up to 64 MB.

    Memory freed in an arena is of no use to threads with other arenas, and is seldom returned to the system. Other C
    libraries do not need this.
    """
    if _GLIBC:
        _GLIBC.mallopt(_M_ARENA_MAX, _MAX_ARENAS)


def release_free_heap() -> None:
    """Return free heap memory to the system: glibc keeps all but the ends of its heaps. Takes some milliseconds."""
    if _GLIBC:
        _GLIBC.malloc_trim(0)


def total() -> int:
    return int(psutil.virtual_memory().total)


def available() -> int:
    """Bytes that are free, or will be as soon as the system drops its caches."""
    return int(psutil.virtual_memory().available)


def usable(device_memory: int | None, asked: int | None) -> int:
    """Bytes that this node may use for models, in total.

    `asked`, by the user, takes precedence, up to the machine's memory. Otherwise, on Metal, it is the recommended
    working set (`device_memory`): beyond it the GPU's pages do not stay resident, and every token waits for them.
    Otherwise a share of the RAM. The result depends on total memory, never on what happens to be free: a placement must
    be the same after a restart.
    """
    if asked is not None:
        return min(asked, max(total(), device_memory or 0))
    if device_memory:
        return device_memory
    return int(total() * RAM_SHARE)
