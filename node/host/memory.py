"""How much memory this machine has, and how much of it a node may use for models."""

import ctypes
import sys

import psutil

RAM_SHARE = 0.7
"""Of a machine without a device that names its own limit. The rest is for the system, this process and file cache:
weights are read through it, and a machine that swaps is slower than one with fewer layers."""

_LIBC = ctypes.CDLL(None)
_GLIBC = _LIBC if sys.platform == "linux" and hasattr(_LIBC, "malloc_trim") else None
_M_ARENA_MAX = -8
_MOST_HEAPS = 2


def share_heaps() -> None:
    """Have all threads allocate from two heaps: glibc gives nearly each its own, of up to 64 MB, and what is freed there
    serves no other thread and seldom goes back to the system. Other C libraries need none of it.
    """
    if _GLIBC:
        _GLIBC.mallopt(_M_ARENA_MAX, _MOST_HEAPS)


def give_back() -> None:
    """Give the system what is free in these heaps, but for their ends glibc keeps all of it. Takes some milliseconds."""
    if _GLIBC:
        _GLIBC.malloc_trim(0)


def total() -> int:
    return int(psutil.virtual_memory().total)


def available() -> int:
    """Free now, or free as soon as the system drops its caches."""
    return int(psutil.virtual_memory().available)


def usable(device_memory: int | None, asked: int | None) -> int:
    """Bytes that this node may use for models, all told.

    What the user asked for goes first, up to what the machine has. Else, on Metal, the recommended working set
    (`device_memory`): beyond it the GPU's pages are no longer kept resident and every token waits for them. Else a
    share of the RAM. Always from what the machine has, never from what happens to be free: a placement must come out
    the same after a restart.
    """
    if asked is not None:
        return min(asked, max(total(), device_memory or 0))
    if device_memory:
        return device_memory
    return int(total() * RAM_SHARE)
