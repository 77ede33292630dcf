"""The time of the control plane and of serving: that of the running event loop, so that a simulation can set it."""

import asyncio


def now() -> float:
    """Seconds, monotonic, from some point in the past; what the loop's own timers go by."""
    return asyncio.get_running_loop().time()
