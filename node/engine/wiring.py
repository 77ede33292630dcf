"""Keeps the weights of models in wired memory, and nothing else (Metal, macOS 15 or later). Runs in the compute thread.

MLX wires each buffer that it makes, as long as all wired ones stay below its wired limit, and those that exist when the
limit rises. Buffers that come and go among the wired ones have made Macs restart (mlx#3186). So the limit rises only
while weights are read, and stays just above them afterwards: KV and results, which are made later, do not fit.
"""

import logging

import mlx.core as mx

from node.core.units import format_bytes
from node.engine.device import device_memory

log = logging.getLogger(__name__)

SLACK = 16 * 2**20
"""Bytes that buffers of weights may have more than the weights: MLX rounds each up to whole pages."""


class Wiring:
    """The wired limit of MLX. It is never below what is wired, as MLX would then unwire buffers of any kind."""

    def __init__(self) -> None:
        self._weights = 0
        """Bytes of the weights that are wired, or being read."""

    def begin(self, size: int) -> bool:
        """Raise the limit for weights of so many bytes, which are read next. Returns whether they will be wired.

        They are not if there is KV: it would be wired instead of them.
        """
        mx.clear_cache()
        if mx.get_active_memory() > self._weights + SLACK:
            log.warning("weights of %s are not wired, as there is KV of other models (--wire)", format_bytes(size))
            return False
        self._weights += size
        self._limit(self._weights + SLACK)
        return True

    def end(self) -> None:
        """The weights are read: lower the limit to what there is, before any KV is made."""
        mx.clear_cache()
        self._limit(min(mx.get_active_memory(), self._weights) + SLACK)

    def release(self, size: int) -> None:
        """Weights of so many bytes are free again."""
        self._weights -= size
        self._limit(self._weights + SLACK if self._weights else 0)

    def _limit(self, size: int) -> None:
        mx.set_wired_limit(min(size, device_memory() or 0))
