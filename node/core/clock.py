"""Clock of the control plane and the rings: that of the running event loop, so that a simulation can control it."""

import asyncio
import math


def now() -> float:
    """Seconds, monotonic, since an arbitrary moment; the event loop's own timers use the same clock."""
    return asyncio.get_running_loop().time()


GRID_S = 0.3
"""Periodic tasks are due at multiples of it."""
LOOK_S = 5.0
"""Interval of looks at what seldom changes: addresses, models on the disk, paths to other nodes."""
_SOON_S = 0.05


def in_step(delay_s: float) -> float:
    """A delay for a periodic task, so adjusted that all of them wake the process together.

    To wake an idle process costs more than most of what it then does. The delay becomes up to 0.25 s longer, or 0.05 s shorter.
    Short delays stay as they are.
    """
    if delay_s < GRID_S:
        return delay_s
    present = now()
    return max(0.0, math.ceil((present + delay_s - _SOON_S) / GRID_S) * GRID_S - present)


def in_step_before(delay_s: float) -> float:
    """The same for a task that must not be late: the delay becomes up to 0.25 s shorter, or 0.05 s longer."""
    if delay_s <= GRID_S - _SOON_S:
        return 0.0
    present = now()
    return max(0.0, math.floor((present + delay_s + _SOON_S) / GRID_S) * GRID_S - present)
