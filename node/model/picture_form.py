"""In which size and form a model takes pictures, of its config.json and preprocessor_config.json."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from node.model.picture_sizes import MAX_PIXELS, MAX_TILES, SizeLimits, Sizing, content_of, may_be, size_of, tiles_of

log = logging.getLogger(__name__)

MAX_PATCHES = 1024
"""Most patches of a side of a picture. Pixtral has 64, Mistral Small 3 has 110."""
MAX_PLACES = 2**14
"""Most places that a picture may have in a prompt."""
MOST_SCORES = 2**22
"""Most scores of queries and keys that a tower computes at once: see node.engine.pieces."""
_MAX_WORK = 2**45
"""More working memory than any machine has; descriptions of models have no room for numbers beyond 64 bits."""
_PIXTRAL = {"mistral3": 2, "pixtral": 1}
"""The models with Pixtral's tower, by their model_type: so many patches of each side are a cell, unless the config says otherwise."""
_QWEN2 = ("qwen2_vl", "qwen2_5_vl")
_QWEN3 = ("qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "qwen4_exp")


Layout = Literal["whole", "cells", "patches"]
"""What a tower takes: a picture whole, or its patches, those of a cell together and each twice, as for two pictures of a video; or in
rows.
"""
Mutuality = Literal["none", "windows", "all"]
"""In no layers, in those with a sliding window (Gemma 4), or in all (Gemma 3)."""


@dataclass(frozen=True, slots=True)
class PictureForm:
    """A picture is divided into cells, each of which has a place in the prompt."""

    cell: int
    """Pixels of the sides of a cell."""
    patch: int
    """Pixels of the sides of a patch, of which a cell has several."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    """By which the shares of red, green and blue, from 0 to 1, are normalized."""
    resample: int
    """Pillow's number of the filter with which pictures are resized."""
    vocabulary: int
    """Tokens of the model. The numbers of a picture's places are beyond them."""
    work_bytes: int
    """Estimate of the tower's working memory, at the largest picture."""
    sizing: Sizing = "longest"
    bounds: tuple[int, int] = (1, 1)
    """See node.model.picture_sizes."""
    layout: Layout = "whole"
    in_axes: bool = False
    """Whether the places of a picture have their positions in three axes: see node.core.axes."""
    mutual: Mutuality = "none"
    """Where the places of a picture see each other, also the later ones, so that one step has to have all of them."""

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The size in which a picture of so many pixels is taken. Raises BadRequest for one that is far longer than wide."""
        return size_of(self.sizing, self._bounds, width, height)

    def content(self, width: int, height: int) -> tuple[int, int]:
        """The picture's own size within `size`, of which the rest, at the right and below, is black."""
        return content_of(self.sizing, self._bounds, width, height)

    def takes(self, width: int, height: int) -> bool:
        """Whether a gateway may have made a picture of this size, by this form or one with other settings of sizes."""
        return may_be(self.sizing, self._bounds, width, height)

    @property
    def _bounds(self) -> SizeLimits:
        return SizeLimits(*self.bounds, self.cell, self.patch)

    @property
    def most_places(self) -> int:
        return self.bounds[1] ** (2 if self.sizing in ("square", "longest") else 1) // self.cell**2

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of cells of a picture that has its size."""
        return height // self.cell, width // self.cell

    def tiles(self, width: int, height: int) -> list[list[tuple[int, int]]]:
        """Left and upper edges of the tiles of a picture that has its size, by rows, of which the last one is a view of the whole; no
        rows if the model takes no tiles.
        """
        return tiles_of(self._bounds, width, height) if self.sizing == "tiles" else []

    @property
    def tile(self) -> int:
        """Pixels of the sides of a tile."""
        return math.isqrt(self.bounds[0])

    def runs(self, width: int, height: int) -> list[list[int]]:
        """Numbers of places of a picture that has its size, by rows, between which the family's prompts may have marks: those of each
        tile, or row of cells.
        """
        rows, columns = self.grid(width, height)
        tiles = self.tiles(width, height)
        return [[(self.tile // self.cell) ** 2] * len(row) for row in tiles] if tiles else [[columns]] * rows

    def places(self, width: int, height: int) -> int:
        return sum(map(sum, self.runs(width, height)))


def picture_form(config: Mapping[str, Any], processor: Mapping[str, Any]) -> PictureForm | None:
    """The form of a model of this config.json and preprocessor_config.json; None if it takes no pictures, or its kind of them
    is not supported, or its values make no sense: then it answers texts.
    """
    kind, vision = config.get("model_type"), config.get("vision_config")
    read = _FORMS.get(kind) if isinstance(kind, str) else None
    if read is None or not isinstance(vision, dict):
        return None
    try:
        form = read(config, vision, processor)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        log.warning("a %s model takes no pictures, as their form cannot be read: %.200r", kind, error)
        return None
    if not _makes_sense(form):
        log.warning("a %s model takes no pictures, as their form makes no sense: %s", kind, form)
        return None
    return form


def _makes_sense(form: PictureForm) -> bool:
    if min(form.patch, form.cell, form.vocabulary, *form.std, form.bounds[0]) <= 0 or form.resample not in range(6):
        return False
    if not 0 < form.work_bytes < _MAX_WORK:
        return False
    least, most = form.bounds
    is_side = form.sizing in ("square", "longest")
    if form.cell % form.patch or most < least or most > (MAX_PATCHES * form.patch if is_side else 2 * MAX_PIXELS):
        return False
    return (form.sizing != "square" or most % form.cell == 0) and 0 < form.most_places <= MAX_PLACES


def deep_layers(config: Mapping[str, Any]) -> int:
    """Of a model of this config.json: the number of first layers behind each of which features of pictures are added, as Qwen3-VL
    has it (DeepStack, arXiv:2406.04334). The driver has them all.
    """
    vision = config.get("vision_config")
    found = vision.get("deepstack_visual_indexes") if isinstance(vision, dict) else None
    return len(found) if config.get("model_type") in _QWEN3 and isinstance(found, list) else 0


def _pixtral(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any]) -> PictureForm:
    patch, side = int(vision.get("patch_size", 16)), int(vision.get("image_size", 1024))
    if side > MAX_PATCHES * patch:
        raise ValueError(f"{side} pixels are more than {MAX_PATCHES} patches")
    merged = int(config.get("spatial_merge_size", _PIXTRAL[config["model_type"]]))
    longest = min(int(processor.get("size", {}).get("longest_edge", side)), side)
    patches = (longest // patch) ** 2
    work = _layer_bytes(patches, vision.get("hidden_size", 1024), vision.get("intermediate_size", 4096))
    work += 8 * patches**2  # the mask, twice, as it is converted
    return PictureForm(
        cell=merged * patch, patch=patch, bounds=(1, longest), **_common(config, processor), work_bytes=work
    )


def _qwen(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any]) -> PictureForm:
    patch = int(vision.get("patch_size", 14))
    cell = patch * int(vision.get("spatial_merge_size", 2))
    size = processor.get("size") or {}
    least = int(processor.get("min_pixels") or size.get("shortest_edge") or 56 * 56)
    most = int(processor.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280)
    most = min(most, MAX_PIXELS)
    # Qwen2-VL's hidden_size is that of the text.
    width = int(vision.get("embed_dim") or vision.get("hidden_size", 1280))
    inner = int(vision.get("intermediate_size") or width * vision.get("mlp_ratio", 4))
    # Plans are made without preprocessor_config.json, and a driver takes what a gateway with other settings has made.
    largest = min(MAX_PIXELS, MAX_PLACES * cell**2)
    work = _layer_bytes(largest // patch**2, width, inner)
    work += 8 * deep_layers(config) * (largest // cell**2) * int(vision.get("out_hidden_size") or 0)
    return PictureForm(
        cell=cell,
        patch=patch,
        sizing="area",
        bounds=(min(least, most), most),
        layout="cells",
        in_axes=True,
        **_common(config, processor, _HALVES if config["model_type"] in _QWEN3 else _CLIP),
        work_bytes=work,
    )


def _gemma3(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any]) -> PictureForm:
    """Gemma 3's published config.json leaves out what its transformers class has as a default."""
    patch, side = int(vision["patch_size"]), int(vision["image_size"])
    places = int(config.get("mm_tokens_per_image", 256))
    window = int(config["text_config"].get("sliding_window", 1024))
    if not 0 < places <= window:
        raise ValueError(f"a window of {window} tokens has no room for the {places} of a picture")
    work = _layer_bytes((side // patch) ** 2, vision["hidden_size"], vision["intermediate_size"])
    cell = side // math.isqrt(places)
    if (side // cell) ** 2 != places:
        raise ValueError(f"{places} places do not fit a square")
    return PictureForm(
        cell=cell,
        patch=patch,
        sizing="square",
        bounds=(side, side),
        mutual="all",
        **_common({"vocab_size": config.get("vocab_size", 262208)}, processor, _HALVES, resample=2),
        work_bytes=work,
    )


def _gemma4(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any]) -> PictureForm:
    patch, text = int(vision.get("patch_size", 16)), config.get("text_config") or {}
    cell = patch * int(vision.get("pooling_kernel_size", 3))
    cells = int(processor.get("max_soft_tokens") or vision.get("default_output_length", 280))
    mutual: Mutuality = "windows" if text.get("use_bidirectional_attention") == "vision" else "none"
    if mutual != "none" and not 0 < cells <= int(text.get("sliding_window", 512)):
        raise ValueError(f"a window of {text.get('sliding_window')} tokens has no room for the {cells} of a picture")
    longest, positions = cells * (cell // patch), int(vision.get("position_embedding_size", 10240))
    if positions < longest:
        raise ValueError(f"a table of {positions} positions has none for a row of {longest} patches")
    patches = cells * (cell // patch) ** 2
    width = int(vision.get("hidden_size", 768))
    work = _layer_bytes(patches, width, vision.get("intermediate_size", 3072))
    work += 8 * patches * width  # its norms and positions take copies
    return PictureForm(
        cell=cell,
        patch=patch,
        sizing="fill",
        bounds=(1, cells * cell**2),
        mutual=mutual,
        **_common({"vocab_size": config.get("vocab_size", 262144)}, processor, _SHARES),
        work_bytes=work,
    )


def _glm5(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any]) -> PictureForm:
    patch = int(vision.get("patch_size", 14))
    if processor.get("patch_expand_factor", 1) != 1:
        raise ValueError("cells are larger than what the tower merges")
    cell = patch * int(vision.get("spatial_merge_size", 2))
    least, most = (int(processor.get(f"{name}_image_tokens", cells)) for name, cells in (("min", 16), ("max", 8000)))
    most = min(most * cell**2, MAX_PIXELS)
    work = _layer_bytes(most // patch**2, vision.get("hidden_size", 1024), vision.get("intermediate_size", 4096))
    return PictureForm(
        cell=cell,
        patch=patch,
        sizing="canvas",
        bounds=(min(least * cell**2, most), most),
        layout="cells",
        **_common(config, processor),
        work_bytes=work,
    )


def _kimi(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any]) -> PictureForm:
    if not processor.get("pad_input", True):
        raise ValueError("pictures are cropped")
    patch = int(vision.get("patch_size", 14))
    merged, _ = vision.get("merge_kernel_size") or (2, 2)
    patches = min(int(processor.get("in_token_limit", 4096)), 4096)  # plans do not know the processor's settings
    width = int(vision.get("hidden_size", 1152))
    work = _layer_bytes(patches, width, vision.get("intermediate_size", 4304))
    work += 64 * patches * width  # its rotation has sines for each head
    return PictureForm(
        cell=patch * int(merged),
        patch=patch,
        sizing="pad",
        bounds=(1, patches * patch**2),
        layout="patches",
        **_common(config, processor),
        work_bytes=work + 4 * patches**2,  # the mask
    )


def _llama4(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any]) -> PictureForm:
    patch, side = int(vision["patch_size"]), int(vision["image_size"])
    cell = round(patch / float(vision["pixel_shuffle_ratio"]))
    if processor.get("resize_to_max_canvas"):
        raise ValueError("pictures are enlarged to all tiles")
    if processor.get("size") not in (None, {"height": side, "width": side}):
        raise ValueError(f"tiles are not of {side} pixels, as the tower's")
    tiles = min(int(processor.get("max_patches", MAX_TILES)), MAX_TILES)
    if not 0 < cell <= side or side % cell or tiles < 1:
        raise ValueError(f"{tiles} tiles of {side} pixels have no whole cells of {cell}")
    patches, width = (side // patch) ** 2 + 1, int(config["text_config"]["hidden_size"])
    work = _layer_bytes(patches, vision["hidden_size"], vision["intermediate_size"])
    work += 8 * (MAX_TILES + 1) * (side // cell) ** 2 * width  # all tiles' embeddings, twice, as they are joined
    return PictureForm(
        cell=cell,
        patch=patch,
        sizing="tiles",
        bounds=(side**2, (tiles + 1) * side**2),
        **_common(config, processor, _HALVES, resample=2),
        work_bytes=work,
    )


_FORMS: Mapping[str, Callable[..., PictureForm]] = {
    **dict.fromkeys(_PIXTRAL, _pixtral),
    **dict.fromkeys((*_QWEN2, *_QWEN3), _qwen),
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "glm5_next": _glm5,
    "kimi_vl": _kimi,
    "llama4": _llama4,
}


def _layer_bytes(patches: int, width: int, inner: int) -> int:
    """Of a layer in float32, most of which is there while queries and keys are rotated; and scores, twice, as MLX lacks a fused kernel
    for some heads.
    """
    return 4 * patches * (12 * int(width) + 2 * int(inner)) + 8 * MOST_SCORES


_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALVES = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_SHARES = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
"""Mean and deviation of the towers' training. Gemma 4's tower takes the shares as they are."""


def _common(
    config: Mapping[str, Any], processor: Mapping[str, Any], of_training: Any = _CLIP, resample: int = 3
) -> dict[str, Any]:
    mean, std = of_training
    given = processor if processor.get("do_normalize", of_training is not _SHARES) else {}
    return {
        "mean": _three(given.get("image_mean"), mean),
        "std": _three(given.get("image_std"), std),
        "resample": int(processor.get("resample", resample)),
        "vocabulary": int((config.get("text_config") or config)["vocab_size"]),
    }


def _three(given: Any, default: tuple[float, float, float]) -> tuple[float, float, float]:
    red, green, blue = map(float, given or default)
    return red, green, blue
