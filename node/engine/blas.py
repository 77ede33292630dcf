"""The library with which MLX multiplies matrices on the CPU of a Linux machine. Its wheel has the reference BLAS."""

import platform
import re
from pathlib import Path

import mlx.core as mx

_TUNED = re.compile(r"/(?:lib)?(?:blis|openblas|mkl|atlas|armpl|nvpl)[^/]*(?:/[^/]*)?$")
"""Path of a library, by its name or that of its folder."""
_PLACES = (
    "lib/*/blis-pthread/libblas.so.3",
    "lib/*/openblas-pthread/libblas.so.3",
    "lib64/libopenblas.so.0",
    "lib/libopenblas.so.0",
)
"""Where Debian, Fedora and Arch install tuned ones, below /usr."""


def has_slow_blas(maps: Path = Path("/proc/self/maps")) -> bool:
    """Whether this process computes on the CPU with the reference BLAS. `maps`: the files that it has mapped."""
    if platform.system() != "Linux" or mx.default_device() != mx.cpu:
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
