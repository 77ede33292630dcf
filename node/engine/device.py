"""What MLX knows about the device it computes on."""

import gc
import time
from collections.abc import Generator

import mlx.core as mx
from mlx.nn.layers.base import Module

PIECE_S = 0.05
"""What takes longer than a ring's step is done in pieces of this length, so that other rings get their turn."""


def device_memory() -> int | None:
    """Bytes that the device may use for models; None when MLX has no figure of its own (a CPU).

    Metal: what macOS recommends as the working set, about three quarters of the unified memory; beyond it the system
    pages and everything crawls. CUDA: the card's memory.
    """
    info = mx.device_info()
    for key in ("max_recommended_working_set_size", "total_memory", "memory_size"):
        value = info.get(key)
        if isinstance(value, int) and value > 0 and mx.default_device() != mx.cpu:
            return value
    return None


def device_name() -> str:
    """The device's name as MLX gives it, such as "Apple M3 Max"; "cpu" when it gives none."""
    return str(mx.device_info().get("device_name") or "cpu")


def wire_memory() -> None:
    """Keep the model's memory resident (Metal): otherwise macOS may page weights out after a second without work."""
    if mx.metal.is_available():
        limit = mx.device_info().get("max_recommended_working_set_size")
        if isinstance(limit, int):
            mx.set_wired_limit(limit)


def release_memory(models: list[Module]) -> Generator[float, None, None]:
    """Free these models, which are of no use then, and all that nobody holds any more. A generator of pieces.

    Weights go one by one: to free a gigabyte takes 0.15 s (measured on Linux), in which no other thread can run Python.
    """
    begun = time.perf_counter()
    for module in [module for model in models for module in model.modules()]:  # type: ignore[no-untyped-call]
        for name in [name for name, value in module.items() if isinstance(value, mx.array)]:
            del module[name]
            mx.clear_cache()  # MLX would keep it for reuse (Metal)
            if time.perf_counter() - begun >= PIECE_S:
                yield 0.0
                begun = time.perf_counter()
    models.clear()
    gc.collect()  # a stage and its layers refer to each other, so they do not go by themselves
    mx.clear_cache()


def prefill_chunk() -> int:
    """Tokens of a prompt to run in one step: enough to keep the device busy, few enough to share it with other sessions.

    A GPU needs some hundreds for full speed. A CPU is as fast with few, and then the stages of a ring overlap better:
    see docs/performance.md.
    """
    return 128 if mx.default_device() == mx.cpu else 512
