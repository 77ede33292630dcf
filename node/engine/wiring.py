"""Keeps the weights of models in wired memory, and nothing else (Metal, macOS 15 or later). Runs in the compute thread.

MLX wires each buffer that it makes, as long as all wired ones stay below its wired limit, and those that exist when the
limit rises. Buffers that come and go among the wired ones have made Macs restart (mlx#3186). So the limit rises only
after weights were read, if nothing else is in memory, by what they take: it leaves no room for KV and results.
"""

import mlx.core as mx

from node.engine.device import device_memory

HEAP = 2**20
"""Bytes of MLX's heap of small buffers: it is wired with the first weights, and is not in the active memory."""
CONSTANTS = 4 * 2**20
"""Bytes that models may have in memory beside weights and KV, such as the frequencies of their positions."""


class Wiring:
    """The wired limit of MLX. It is never below what is wired, as MLX would then unwire buffers of any kind."""

    def __init__(self) -> None:
        self._wired = 0
        """Bytes of the weights that are wired."""

    def wire(self, before: int) -> int:
        """Wire the weights that were read since the active memory was `before`, unless there was KV then: it would be
        wired, too. Returns the bytes wired. Must be called in the piece that has read them, and with MLX's cache clear.
        """
        if before > self._wired + CONSTANTS:
            return 0
        size = mx.get_active_memory() - before
        self._wired += size
        self._limit()
        return size

    def release(self, size: int) -> None:
        """Wired weights of so many bytes are free again."""
        self._wired -= size
        self._limit()

    def _limit(self) -> None:
        mx.set_wired_limit(min(self._wired + HEAP, device_memory() or 0) if self._wired else 0)
