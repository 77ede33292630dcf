"""mlx-vlm's models: the second source of model classes, installed without the packages that it depends on.

The `__init__` of some of its packages would import them all; the models themselves need MLX, NumPy, Pillow and each other.
"""

import importlib
import sys
from collections.abc import Callable
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


def _mend_hy_v4(package: Any) -> None:
    """Choose tokens in contexts of any length: mlx-vlm's function is compiled with the number of those that are not chosen in the
    first one. And KV in steps of 256 tokens, which a plan can promise: its own class doubles what it has.
    """
    package.indexer._partition_scores = _choice  # noqa: SLF001
    package.language.HyV4KVCache = package.cache.KVCache


class _Lazy:
    """MLX's module, in which nothing is evaluated before it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)

    def async_eval(self, *_: Any) -> None:
        """A plan's dry run would compute the whole model."""


def _mend_qwen4_exp(package: Any) -> None:
    """Decode by the layers: mlx-vlm's own way calls the modules in them, where nobody sees that a layer is another stage's."""
    package.LanguageModel._supports_batch_invariant_decode = lambda _: False  # noqa: SLF001
    importlib.import_module("mlx_vlm.models.qwen3_5.gated_delta").mx = _Lazy()  # type: ignore[attr-defined]


_MENDS = {"hy_v4": _mend_hy_v4, "qwen4_exp": _mend_qwen4_exp}


def _choice(count: int, is_masked: bool) -> Callable[..., mx.array]:
    """Of the tokens with the largest scores: their numbers come last."""

    def choose(q: mx.array, k: mx.array, weights: mx.array, mask: mx.array | None = None) -> mx.array:
        """`q`: [rows, heads, length, size]; `k`: [rows, 1, context, size]; `weights`: [rows, length, heads]."""
        scores = mx.maximum(q @ k.swapaxes(-1, -2), 0) * weights.swapaxes(-1, -2)[..., None]
        scores = scores.sum(axis=1, keepdims=True)
        if is_masked and mask is not None:
            scores = mx.where(mask, scores, -float("inf"))
        return mx.argpartition(scores, kth=-count, axis=-1)

    return choose


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
        package = importlib.import_module(f"mlx_vlm.models.{model_type}")
    except ImportError as error:
        raise ModelUnsupported(f"mlx-vlm's {model_type} cannot be imported: {error}", hint=_HINT) from error
    if model_type in _MENDS:
        _MENDS[model_type](package)
    return package
