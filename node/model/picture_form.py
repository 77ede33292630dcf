"""In which size and form a model takes pictures, of its config.json and preprocessor_config.json."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node.core.errors import BadRequest

log = logging.getLogger(__name__)

MAX_PATCHES = 1024
"""Most patches of a side of a picture. Pixtral has 64, Mistral Small 3 has 110."""
MAX_PLACES = 2**14
"""Most places that a picture may have in a prompt."""
MAX_PIXELS = 2**21
"""Qwen's models take six times as many, for which a Mac's tower would need minutes: attention grows with their square."""
_MAX_ASPECT = 200
_PIXTRAL = {"mistral3": 2, "pixtral": 1}
"""The models with Pixtral's tower, by their model_type: so many patches of each side are a cell, unless the config says otherwise."""
_QWEN = ("qwen2_vl", "qwen2_5_vl")


@dataclass(frozen=True, slots=True)
class PictureForm:
    """A picture is divided into cells, each of which has a place in the prompt."""

    cell: int
    """Pixels of the sides of a cell."""
    patch: int
    """Pixels of the sides of a patch, of which a cell has several."""
    longest: int
    """Pixels of the longest side; 0 where the number of pixels is bounded instead."""
    pixels: tuple[int, int]
    """Fewest and most pixels; zeros where the longest side is bounded instead."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    """By which the shares of red, green and blue, from 0 to 1, are normalized."""
    resample: int
    """Pillow's number of the filter with which pictures are resized."""
    vocabulary: int
    """Tokens of the model. The numbers of a picture's places are beyond them."""
    work_bytes: int
    """Estimate of the tower's working memory, at the largest picture."""

    @property
    def in_axes(self) -> bool:
        """Whether the places of a picture have their positions in three axes: see node.core.axes."""
        return not self.longest

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The size in which a picture of so many pixels is taken: as transformers' image processors of Pixtral and Qwen2-VL have
        it. Raises BadRequest for one that is far longer than wide.
        """
        cell = self.cell
        if self.longest:
            ratio = max(width, height) / self.longest
            if ratio > 1:
                width, height = (max(1, math.floor(side / ratio)) for side in (width, height))
            return math.ceil(width / cell) * cell, math.ceil(height / cell) * cell
        if max(width, height) > _MAX_ASPECT * min(width, height):
            raise BadRequest(
                f"A picture of {width}x{height} is too long: {_MAX_ASPECT}:1 is the most that the model takes."
            )
        least, most = self.pixels
        taken = round(width / cell) * round(height / cell) * cell * cell
        if taken > most:
            scale = math.sqrt(width * height / most)
            width, height = (max(1, math.floor(side / scale / cell)) for side in (width, height))
        elif taken < least:
            scale = math.sqrt(least / (width * height))
            width, height = (math.ceil(side * scale / cell) for side in (width, height))
        else:
            width, height = round(width / cell), round(height / cell)
        return width * cell, height * cell

    def takes(self, width: int, height: int) -> bool:
        """Whether a gateway may have made a picture of this size, by this form or one with other settings of sizes."""
        whole = width % self.cell == height % self.cell == 0
        most = math.ceil(self.longest / self.cell) * self.cell
        return whole and (max(width, height) <= most if self.longest else width * height <= MAX_PIXELS + self.cell**2)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of cells of a picture that has its size."""
        return height // self.cell, width // self.cell

    def places(self, width: int, height: int) -> int:
        rows, columns = self.grid(width, height)
        return rows * columns


def picture_form(config: Mapping[str, Any], processor: Mapping[str, Any]) -> PictureForm | None:
    """The form of a model of this config.json and preprocessor_config.json; None if it takes no pictures, or its kind of them
    is not supported, or its values make no sense: then it answers texts.
    """
    kind, vision = config.get("model_type"), config.get("vision_config")
    if kind not in (*_PIXTRAL, *_QWEN) or not isinstance(vision, dict):
        return None
    try:
        form = _pixtral(config, vision, processor) if kind in _PIXTRAL else _qwen(config, vision, processor)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        log.warning("a %s model takes no pictures, as their form cannot be read: %.200r", kind, error)
        return None
    least, most = form.pixels
    usable = min(form.patch, form.cell, form.vocabulary, *form.std) > 0 and form.resample in range(6)
    bounded = 0 <= form.longest <= MAX_PATCHES * form.patch and 0 <= least <= most and form.cell % form.patch == 0
    if not (usable and bounded and 0 < max(form.longest**2, most) // form.cell**2 <= MAX_PLACES):
        log.warning("a %s model takes no pictures, as their form makes no sense: %s", kind, form)
        return None
    return form


def _pixtral(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any]) -> PictureForm:
    patch, side = int(vision.get("patch_size", 16)), int(vision.get("image_size", 1024))
    if side > MAX_PATCHES * patch:
        raise ValueError(f"{side} pixels are more than {MAX_PATCHES} patches")
    merged = int(config.get("spatial_merge_size", _PIXTRAL[config["model_type"]]))
    longest = min(int(processor.get("size", {}).get("longest_edge", side)), side)
    patches = (longest // patch) ** 2
    work = _layer_bytes(patches, vision.get("hidden_size", 1024), vision.get("intermediate_size", 4096))
    work += 8 * patches**2  # the mask, twice, as it is converted
    return PictureForm(merged * patch, patch, longest, (0, 0), *_common(config, processor), work)


def _qwen(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any]) -> PictureForm:
    patch = int(vision.get("patch_size", 14))
    cell = patch * int(vision.get("spatial_merge_size", 2))
    size = processor.get("size") or {}
    least = int(processor.get("min_pixels") or size.get("shortest_edge") or 56 * 56)
    most = int(processor.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280)
    most = min(most, MAX_PIXELS)
    width = int(
        vision.get("embed_dim") or vision.get("hidden_size", 1280)
    )  # Qwen2-VL's hidden_size is that of the text
    inner = int(vision.get("intermediate_size") or width * vision.get("mlp_ratio", 4))
    work = _layer_bytes(most // patch**2, width, inner)
    return PictureForm(cell, patch, 0, (min(least, most), most), *_common(config, processor), work)


def _layer_bytes(patches: int, width: int, inner: int) -> int:
    """Of a layer in float32."""
    return 4 * patches * (8 * int(width) + 2 * int(inner))


def _common(
    config: Mapping[str, Any], processor: Mapping[str, Any]
) -> tuple[tuple[float, float, float], tuple[float, float, float], int, int]:
    mean, std = (_three(processor.get(name), default) for name, default in _CLIP.items())
    vocabulary = int((config.get("text_config") or config)["vocab_size"])
    return mean, std, int(processor.get("resample", 3)), vocabulary


_CLIP = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}


def _three(given: Any, default: tuple[float, float, float]) -> tuple[float, float, float]:
    red, green, blue = map(float, given or default)
    return red, green, blue
