"""Clock of the control plane and the rings: that of the running event loop, so that a simulation can control it."""

import asyncio


def now() -> float:
    """Seconds, monotonic, since an arbitrary moment; the event loop's own timers use the same clock."""
    return asyncio.get_running_loop().time()
