"""mlx-vlm's models: the second source of model classes, installed without the packages that it depends on.

The `__init__` of some of its packages would import them all; the models themselves need MLX, NumPy, Pillow and each other.
"""

import importlib
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx

from node.core.errors import ModelUnsupported
from node.engine.device import is_gpu

VERSION = "0.7.10"
"""The one with which the tests compare."""
_WITHOUT_INIT = ("mlx_vlm", "mlx_vlm.speculative")
_HINT = f"Install it on each node, without what it depends on: pip install --no-deps mlx-vlm=={VERSION}"


def _padded_attention(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | None = None) -> mx.array:
    """Attention with heads as wide as MLX has a fused kernel for."""
    width = q.shape[-1]
    target = next((each for each in (64, 80, 128) if width <= each), width)
    if target > width:
        q, k, v = (mx.pad(each, [(0, 0)] * 3 + [(0, target - width)]) for each in (q, k, v))
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)[..., :width]


def vlm_folder(needing: str) -> Path:
    """The folder of mlx-vlm's package. Raises ModelUnsupported, naming what is `needing` it, if it is not installed, or in another
    version.
    """
    try:
        found = distribution("mlx-vlm")
    except PackageNotFoundError:
        raise ModelUnsupported(f"{needing} need mlx-vlm, which is not installed.", hint=_HINT) from None
    if found.version != VERSION:
        raise ModelUnsupported(f"{needing} need mlx-vlm {VERSION}; {found.version} is installed.", hint=_HINT)
    return Path(str(found.locate_file("mlx_vlm")))


def vlm_model(model_type: str, needing: str = "Pictures") -> Any:
    """mlx-vlm's package of a model type. Raises as `vlm_folder`, and if the package can't be imported."""
    folder = vlm_folder(needing)
    for name in _WITHOUT_INIT:
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [str(folder.parent / name.replace(".", "/"))]
            sys.modules[name] = package
    try:
        if not is_gpu():  # on a Mac, too, its own kernels of Metal are for the GPU only
            importlib.import_module("mlx_vlm.models.kernels")._HAS_METAL = False  # type: ignore[attr-defined]  # noqa: SLF001
        # Before a model imports it by name: theirs is compiled, and what is computed inside can't be divided (node.engine.pieces).
        importlib.import_module("mlx_vlm.models.base").ensure_fused_sdpa = _padded_attention  # type: ignore[attr-defined]
        return importlib.import_module(f"mlx_vlm.models.{model_type}")
    except ImportError as error:
        raise ModelUnsupported(f"mlx-vlm's {model_type} cannot be imported: {error}", hint=_HINT) from error
