"""The device that MLX computes on, its memory, and on a CPU the library that multiplies matrices."""

import gc
import platform
import re
import time
from collections.abc import Generator
from pathlib import Path

import mlx.core as mx
from mlx.nn.layers.base import Module

from node.core.errors import PippinError

PIECE_S = 0.05
"""Length of the pieces of long jobs, between which the steps of rings run."""
MIN_CHUNK = 128
"""Tokens of a prompt in one step below which time-outs of the device make it no smaller."""
_TUNED = re.compile(r"/(?:lib)?(?:blis|openblas|mkl|atlas|armpl|nvpl)[^/]*(?:/[^/]*)?$")
"""Path of a tuned BLAS, by its name or that of its folder."""
_PLACES = (
    "lib/*/blis-pthread/libblas.so.3",
    "lib/*/openblas-pthread/libblas.so.3",
    "lib64/libopenblas.so.0",
    "lib/libopenblas.so.0",
)
"""Where Debian, Fedora and Arch install tuned ones, below /usr."""


class DeviceUnavailable(PippinError):
    """This machine, or its build of MLX, has no such device."""

    code = "device_unavailable"


def choose_device(name: str) -> None:
    """Compute on "cpu" or "gpu" from here on, in all threads; an empty name leaves the choice to MLX, which takes a GPU if
    there is one. Call it before any array is made. Raises DeviceUnavailable.
    """
    if name:
        try:
            mx.set_default_device(mx.cpu if name == "cpu" else mx.gpu)
        except ValueError as error:
            raise DeviceUnavailable(
                "MLX finds no GPU on this machine.", hint="Leave out PIPPIN_DEVICE, or set it to cpu."
            ) from error


def device_memory() -> int | None:
    """Bytes that the device may use for models; None if MLX gives no figure (CPU). CUDA: the card's memory. Metal: the
    working set recommended by macOS, about 75 % of the unified memory; beyond it the system pages.
    """
    keys = ("max_recommended_working_set_size", "total_memory", "memory_size") if is_gpu() else ()
    found = [value for value in map(mx.device_info().get, keys) if isinstance(value, int) and value > 0]
    return found[0] if found else None


def is_gpu() -> bool:
    return mx.default_device() != mx.cpu


def is_metal() -> bool:
    return mx.metal.is_available() and is_gpu()


def limit_memory() -> None:
    """Bound the buffers that MLX keeps for reuse: its own bound is all of the memory."""
    if memory := device_memory():
        mx.set_cache_limit(min(2 * 2**30, int(memory * 0.05)))


def release_memory(models: list[Module]) -> Generator[float, None, None]:
    """Free the weights of these models, which become unusable. A generator of pieces for `Compute.run_pieces`: freeing a
    gigabyte at once takes 0.15 s (measured on Linux) and holds the GIL.
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
    """Tokens of a prompt in one step, when no stream waits for it, in a ring of so many stages. `unfused`: the most where
    attention is not fused; 0 where it is.

    A GPU needs some hundreds for full speed, and more if a model's experts have to be read for each step: alone it takes
    2048, as in mlx-lm. Stages overlap only from chunk to chunk. A CPU is as fast with fewer (docs/performance.md).
    """
    if not is_gpu():
        return 128
    most = 2048 if stages == 1 else 512
    return min(most, unfused) if unfused else most


def probe_tokens() -> int:
    """Tokens of the prompt that warms up a stage or measures it, few enough for some tenths of a second. A GPU, unlike a
    CPU, has other kernels for a few tokens than for some tens: quantized products for up to 33, attention for up to 8.
    """
    return 64 if is_gpu() else 8


def has_slow_blas(maps: Path = Path("/proc/self/maps")) -> bool:
    """Whether this process computes on the CPU of a Linux machine with the reference BLAS, which MLX's wheel brings.
    `maps`: the files that it has mapped.
    """
    if platform.system() != "Linux" or is_gpu():
        return False
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    paths = {line[line.index("/") :] for line in lines if "/" in line}
    return any("/libblas" in path for path in paths) and not any(map(_TUNED.search, paths))


def tuned_blas(usr: Path = Path("/usr")) -> str:
    """Path of a tuned BLAS that is installed; empty if there is none."""
    return next((str(path) for place in _PLACES for path in sorted(usr.glob(place))), "")
