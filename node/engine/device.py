"""The device that MLX computes on, and its memory."""

import gc
import time
from collections.abc import Generator

import mlx.core as mx
from mlx.nn.layers.base import Module

from node.core.errors import PippinError

PIECE_S = 0.05
"""Length of the pieces of long jobs, between which the steps of rings run."""
MIN_CHUNK = 128
"""Tokens of a prompt in one step below which time-outs of the device make it no smaller."""
_MAX_BUFFERS = 2 * 2**30
_MAX_BUFFERS_SHARE = 0.05
"""Of the device's memory."""


class DeviceUnavailable(PippinError):
    """This machine, or its build of MLX, has no such device."""

    code = "device_unavailable"


def choose_device(name: str) -> None:
    """Compute on "cpu" or "gpu" from here on, in all threads; an empty name leaves the choice to MLX: a GPU if there is one.

    Call it before any array is made. Raises DeviceUnavailable.
    """
    if name:
        try:
            mx.set_default_device(mx.cpu if name == "cpu" else mx.gpu)
        except ValueError as error:
            raise DeviceUnavailable(
                "MLX finds no GPU on this machine.", hint="Leave out PIPPIN_DEVICE, or set it to cpu."
            ) from error


def device_memory() -> int | None:
    """Bytes that the device may use for models; None if MLX gives no figure (CPU).

    Metal: the working set recommended by macOS, about 75 % of the unified memory; beyond it the system pages. CUDA: the
    card's memory.
    """
    info = mx.device_info()
    for key in ("max_recommended_working_set_size", "total_memory", "memory_size"):
        value = info.get(key)
        if isinstance(value, int) and value > 0 and is_gpu():
            return value
    return None


def device_name() -> str:
    """Name of the device according to MLX, such as "Apple M3 Max"; "cpu" if it has none."""
    return str(mx.device_info().get("device_name") or "cpu")


def is_gpu() -> bool:
    return mx.default_device() != mx.cpu


def is_metal() -> bool:
    return mx.metal.is_available() and is_gpu()


def limit_memory() -> None:
    """Bound the buffers that MLX keeps for reuse: its own bound is all of the memory."""
    memory = device_memory()
    if memory:
        mx.set_cache_limit(min(_MAX_BUFFERS, int(memory * _MAX_BUFFERS_SHARE)))


def release_memory(models: list[Module]) -> Generator[float, None, None]:
    """Free the weights of these models, which become unusable. A generator of pieces for `Compute.run_pieces`.

    Frees one weight after the other: freeing a gigabyte takes 0.15 s (measured on Linux) and holds the GIL.
    """
    begun = time.perf_counter()
    for module in [module for model in models for module in model.modules()]:  # type: ignore[no-untyped-call]
        for name in [name for name, value in module.items() if isinstance(value, mx.array)]:
            del module[name]
            mx.clear_cache()  # MLX would keep the buffer for reuse (Metal)
            if time.perf_counter() - begun >= PIECE_S:
                yield 0.0
                begun = time.perf_counter()
    models.clear()
    gc.collect()  # a stage and its layers refer to each other, so reference counting does not free them
    mx.clear_cache()


def prefill_chunk(stages: int, unfused: int = 0) -> int:
    """Tokens of a prompt in one step, when no stream waits for it, in a ring of so many stages.

    A GPU needs some hundreds for full speed, and more if a model's experts have to be read for each step: alone it
    takes 2048, as in mlx-lm. The stages of a ring overlap only from chunk to chunk. A CPU is as fast with fewer (see
    docs/performance.md). `unfused`: the most where attention is not fused; 0 where it is.
    """
    if not is_gpu():
        return 128
    most = 2048 if stages == 1 else 512
    return min(most, unfused) if unfused else most


def warm_up_tokens() -> int:
    """Tokens of the prompt that warms up a stage.

    A GPU has other kernels for a few tokens than for some tens: quantized products for up to 33, attention for up to 8.
    A CPU has not, and is slow.
    """
    return 64 if is_gpu() else 8
