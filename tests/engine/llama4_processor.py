"""transformers' processor of Llama 4's pictures, of which mlx-vlm's is a sketch without the view of the whole. It is written for
torch, of which this has the few functions that it calls.
"""

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.image_utils import SizeDict


class _Tensor(np.ndarray[Any, Any]):
    """As torch has it: its methods, and quotients of integers in 32 bits."""

    device = "cpu"

    def __truediv__(self, other: Any) -> Any:
        return np.divide(self, other, dtype=np.float32)

    def size(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.shape

    def view(self, *shape: int) -> Any:  # type: ignore[override]
        return self.reshape(shape)

    def permute(self, *axes: int) -> Any:
        return self.transpose(axes)

    def contiguous(self) -> Any:
        return self

    def unsqueeze(self, axis: int) -> Any:
        return np.expand_dims(self, axis)


def _tensor(values: Any, device: str = "") -> Any:
    del device
    return np.asarray(values).view(_Tensor)


def _padded(images: Any, padding: Sequence[int], fill: Sequence[int]) -> Any:
    assert not any(fill)
    left, top, right, bottom = padding
    return _tensor(np.pad(images, [*[(0, 0)] * (images.ndim - 2), (top, bottom), (left, right)]))


def _joined(parts: Sequence[Any], dim: int) -> Any:
    return np.concatenate(parts, dim)


def _module() -> Any:
    torch, vision = ModuleType("torch"), ModuleType("torchvision.transforms.v2")
    given: dict[str, Any] = {name: getattr(np, name) for name in ("where", "max", "min", "argmin")}
    given |= {"cat": _joined, "tensor": _tensor, "Tensor": _Tensor}
    vars(torch).update(given, compiler=SimpleNamespace(disable=lambda function: function))
    vars(vision)["functional"] = SimpleNamespace(pad=_padded)
    with pytest.MonkeyPatch.context() as patched:
        for name, module in {"torch": torch, "torchvision.transforms.v2": vision}.items():
            patched.setitem(sys.modules, name, module)
        for name in ("torchvision", "torchvision.transforms"):
            patched.setitem(sys.modules, name, ModuleType(name))
        return importlib.import_module("transformers.models.llama4.image_processing_llama4")


def best_fit(width: int, height: int, side: int, most: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Columns and rows of tiles of a picture, and its own width and height on them."""
    module = _module()
    sizes = _tensor(module.find_supported_resolutions(most, SizeDict(height=side, width=side)))
    high, wide = map(int, module.get_best_fit((height, width), sizes))
    limit = min(max(height, side), high), min(max(width, side), wide)
    rows, columns = module.get_max_res_without_distortion((height, width), limit)
    return (wide // side, high // side), (max(columns, 1), max(rows, 1))


def tiles(picture: Image.Image, settings: dict[str, Any]) -> tuple[Any, tuple[int, int]]:
    """float32 [tiles, 3, side, side], and rows and columns of tiles. `settings`: of preprocessor_config.json."""

    class Processor(_module().Llama4ImageProcessor):  # type: ignore[misc]
        def __init__(self) -> None: ...

        def resize(self, images: Any, size: SizeDict, resample: int) -> Any:
            resized = Image.fromarray(np.asarray(images[0]).transpose(1, 2, 0)).resize(
                (size.width, size.height), resample
            )
            return _tensor(np.array(resized).transpose(2, 0, 1)[None])

        def rescale_and_normalize(self, images: Any, *_: Any) -> Any:
            shares = np.asarray(images).transpose(0, 2, 3, 1).astype(np.float32) / 255
            return _tensor(((shares - settings["image_mean"]) / settings["image_std"]).transpose(0, 3, 1, 2))

    rules = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
    rules |= {"resize_to_max_canvas": False, "disable_grouping": True, "return_tensors": None}
    rules |= {name: settings[name] for name in ("image_mean", "image_std", "max_patches", "resample")}
    found = Processor()._preprocess(
        [_tensor(np.array(picture).transpose(2, 0, 1))], size=SizeDict(**settings["size"]), **rules
    )
    rows, columns = np.asarray(found["aspect_ratios"][0]).tolist()
    return np.asarray(found["pixel_values"][0]), (rows, columns)
