"""The vision tower of a model: from a picture to the embeddings of its places in a prompt. Runs in the compute thread.

The tower and what maps its output to the width of the text model are mlx-vlm's, whose own `get_input_embeddings` computes
them. It is given a picture, and tokens that are nothing but its places.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.activations import GELU
from mlx.nn.layers.base import Module
from mlx.nn.layers.quantized import quantize

from node.core.errors import BadRequest, ModelBroken
from node.core.mlx_errors import MLX_ERRORS
from node.core.pictures import Picture
from node.engine.mlx_vlm import vlm_model
from node.engine.pieces import in_pieces, recorded
from node.engine.plan import activation_dtype
from node.model.picture_form import PictureForm

_READING = ("qwen4_exp",)
"""Models with layers that read the tokens, and know the places of pictures by the token of the config. In Gemma's it is 0."""


class _Text:
    """Stands for mlx-vlm's language model, of which only the embedding is asked."""

    embed_scale = 1.0
    hidden_size_per_layer_input = 0

    def __init__(self, width: int, dtype: mx.Dtype) -> None:
        self.model = self
        self._width, self._dtype = width, dtype

    def embed_tokens(self, tokens: mx.array) -> mx.array:
        return mx.zeros((*tokens.shape, self._width), self._dtype)

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        return weights

    def get_rope_index(self, *_: Any, **__: Any) -> tuple[None, None]:
        """Positions are node.core.axes' business."""
        return None, None


@dataclass(frozen=True, slots=True, eq=False)
class Splice:
    """Embeddings, and the places of a step's tokens where they come instead of the tokens' own."""

    places: Sequence[int]
    embeddings: mx.array
    """[places, width], or wider: what is beyond is added behind each of the first layers, `width` numbers each."""

    def into(self, embedded: mx.array) -> mx.array:
        """`embedded`: [1, length, width]."""
        own = self.embeddings[:, : embedded.shape[-1]]
        embedded[:, mx.array(list(self.places))] = own.astype(embedded.dtype)[None]
        return embedded

    def behind(self, width: int) -> list[Callable[[mx.array], mx.array]]:
        """What changes the output, [1, length, width], of each of the first layers."""
        _, *deep = mx.split(self.embeddings, self.embeddings.shape[1] // width, axis=1)
        return [partial(self._added, part) for part in deep]

    def _added(self, features: mx.array, hidden: mx.array) -> mx.array:
        return hidden.at[:, mx.array(list(self.places))].add(features.astype(hidden.dtype)[None])


class Tower(Module):
    """The tower of one model."""

    def __init__(
        self, config: Mapping[str, Any], form: PictureForm, tensors: Mapping[str, mx.array] = MappingProxyType({})
    ) -> None:
        """`tensors`: those of the tower, by their names in the files; none for random weights.

        Raises ModelBroken if they are not those of the tower that config.json describes, and ModelUnsupported.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.form = form
        names = ("image_token_index", "image_token_id", "media_placeholder_token_id")
        self._token = next((int(config[name]) for name in names if config.get(name)), 0)
        reads = config.get("model_type") in _READING and 0 <= self._token < form.vocabulary
        self._told = self._token if reads else 0
        try:
            self.vlm = self._build(config)
            if tensors:
                self._load(config, tensors)
        except (*MLX_ERRORS, AssertionError) as error:
            raise ModelBroken(f"The model's vision tower cannot be built: {error!r:.500}") from error
        self.eval()

    def _build(self, config: Mapping[str, Any]) -> Any:
        # mlx-vlm's qwen3_vl_moe has the two kinds of GELU in its tower the other way round than transformers; they are one tower.
        kind = {"qwen3_vl_moe": "qwen3_vl"}.get(config["model_type"], config["model_type"])
        package = vlm_model(kind)
        given = package.ModelConfig.from_dict(dict(config))
        given.text_config = package.TextConfig.from_dict(dict(config.get("text_config") or config))
        given.vision_config = package.VisionConfig.from_dict(dict(config["vision_config"]))
        if kind != config["model_type"]:
            given.vision_config.model_type = kind
        width = given.text_config.hidden_size
        if hasattr(given, "hidden_size"):  # of Gemma's text model, which its config.json does not repeat
            given.hidden_size = width
        if hasattr(given.text_config, "mm_tokens_per_image"):
            given.text_config.mm_tokens_per_image = self.form.most_places
        if hasattr(given, "audio_config"):
            given.audio_config = None
        # Gemma 4's text model multiplies all embeddings by it; mlx-vlm's comes behind that.
        self._scale = mx.array(width**0.5 if config["model_type"] == "gemma4" else 1.0, activation_dtype(config))
        vlm = package.Model(given)
        if kind == "llama4":
            _mend_llama4(vlm.vision_model)
        if kind == "gemma4":
            _mend_gemma4(vlm.vision_tower.patch_embedder)
        del vlm["language_model"]
        vlm.language_model = _Text(width, activation_dtype(config))
        return vlm

    def _load(self, config: Mapping[str, Any], tensors: Mapping[str, mx.array]) -> None:
        weights = dict(tensors)
        for part in (self.vlm, self._vision):
            weights = part.sanitize(weights) if hasattr(part, "sanitize") else weights
        general = config.get("quantization") or {}

        def settings(path: str, module: Module) -> bool | dict[str, Any]:
            own = general.get(path, general)
            is_quantized = f"{path}.scales" in weights and hasattr(module, "to_quantized")
            return dict(own) if is_quantized and isinstance(own, Mapping) else is_quantized

        if general:
            sizes = {key: general[key] for key in ("group_size", "bits", "mode") if key in general}
            quantize(self.vlm, **sizes, class_predicate=settings)
        self.vlm.load_weights(list(weights.items()), strict=True)

    @property
    def _vision(self) -> Any:
        return self.vlm.vision_tower if "vision_tower" in self.vlm else self.vlm.vision_model

    @property
    def layers(self) -> list[Any]:
        """The tower's longest list of modules of one kind."""
        modules: Any = self._vision.modules()
        lists = [value for module in modules for value in module.values() if isinstance(value, list) and value]
        alike = [each for each in lists if isinstance(each[0], Module) and len(set(map(type, each))) == 1]
        return max(alike, key=len)

    def see(self, picture: Picture, longest_s: float = math.inf) -> Generator[None, None, mx.array]:
        """Compute the embeddings of a picture's places, as of Splice, tile by tile, in pieces of about `longest_s` seconds at most."""
        places = self.form.places(picture.width, picture.height)
        pixels, more = given_to_tower(picture, self.form)
        parts = mx.split(pixels, len(pixels)) if self.form.sizing == "tiles" else [pixels]
        found: list[mx.array] = []
        for part in parts:
            found += [(yield from self._see(part, more, places // len(parts), longest_s))]
        features = mx.concatenate(found)
        mx.eval(features)
        mx.clear_cache()
        return features

    def _see(
        self, pixels: mx.array, more: Mapping[str, Any], places: int, longest_s: float
    ) -> Generator[None, None, mx.array]:
        tower = self._vision
        with recorded(self.vlm) as parts:
            if "deepstack_merger_list" in tower:  # the model's own method would compute the whole tower at once
                own, others = tower(pixels.astype(tower.patch_embed.proj.weight.dtype), more["image_grid_thw"])
                features = mx.concatenate([own, *others], axis=1)
            else:
                tokens = mx.full((1, places), self._token, mx.int32)
                features = self.vlm.get_input_embeddings(tokens, pixels, **more).inputs_embeds[0]
        yield from in_pieces(parts, longest_s, self.form.work_bytes / 4)
        features = features / self._scale
        mx.eval(features)
        return features

    def see_next(
        self, pictures: Sequence[Picture], tokens: Sequence[int], sent: int, longest_s: float
    ) -> "Generator[None, None, Seen]":
        """The embeddings of the first of a prompt's pictures that has places behind its first `sent` tokens, and of further ones while
        together they have no more places than the largest picture; in pieces. Raises BadRequest if the places in the prompt are not
        those of the pictures.
        """
        positions = [position for position, token in enumerate(tokens) if token >= self.form.vocabulary]
        counts = [self.form.places(picture.width, picture.height) for picture in pictures]
        if len(positions) != sum(counts):
            what = f"The prompt has {len(positions):,} places of pictures"
            raise BadRequest(f"{what}; those that came with it have {sum(counts):,}.")
        found, own = list[mx.array](), list[int]()
        for picture, count, end in zip(pictures, counts, accumulate(counts), strict=True):
            places = positions[end - count : end]
            if places[-1] < sent:
                continue
            if own and len(own) + count > self.form.most_places:
                break
            if [tokens[position] for position in places] != picture.numbers(count, self.form.vocabulary):
                raise BadRequest(
                    "The places of pictures in the prompt are not those of the pictures that came with it."
                )
            found.append((yield from self.see(picture, longest_s)))
            own += places
        return Seen(mx.concatenate(found) if len(found) > 1 else found[0], own, told=self._told)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The embeddings of the places of pictures in a prompt, by their positions there. Numbers of two places may be equal."""

    embeddings: mx.array
    """As of Splice."""
    positions: Sequence[int]
    """Of the places, in their order; there may be other tokens between them."""
    begin: int = 0
    """Position of a step's first token."""
    told: int = 0
    """The token that layers read in each place."""

    @property
    def end(self) -> int:
        """Position behind the last place."""
        return self.positions[-1] + 1

    def at(self, begin: int) -> "Seen":
        """For the step that begins at this position."""
        return replace(self, begin=begin)

    def splice(self, tokens: Sequence[int]) -> tuple[list[int], Splice | None]:
        """The tokens of a step, in the places of the picture the one that is told, and what comes there."""
        first, last = (bisect_left(self.positions, self.begin + each) for each in (0, len(tokens)))
        if first == last:
            return list(tokens), None
        places = [position - self.begin for position in self.positions[first:last]]
        ids = list(tokens)
        for place in places:
            ids[place] = self.told
        return ids, Splice(places, self.embeddings[first:last])


def normalized(picture: Picture, form: PictureForm) -> mx.array:
    """The picture's numbers as the tower takes them: float32 [height, width, 3]."""
    pixels = mx.array(np.frombuffer(picture.pixels, np.uint8)).reshape(picture.height, picture.width, 3)
    shares = pixels.astype(mx.float32) * mx.array(1 / 255, mx.float32)
    return (shares - mx.array(form.mean, mx.float32)) / mx.array(form.std, mx.float32)


def given_to_tower(picture: Picture, form: PictureForm) -> tuple[mx.array, dict[str, Any]]:
    """What mlx-vlm's models take of a picture: see Layout. [1, 3, height, width]; of patches by cells [patches, 3 * 2 * patch * patch], in
    rows [patches, 3, patch, patch]. Of a picture of tiles [tiles, 3, tile, tile].
    """
    pixels = normalized(picture, form).transpose(2, 0, 1)
    if form.sizing == "tiles":
        edges = chain.from_iterable(form.tiles(picture.width, picture.height))
        return mx.stack([pixels[:, top : top + form.tile, left : left + form.tile] for left, top in edges]), {}
    if form.sizing == "square":
        return pixels[None], {"mask": mx.ones((1, form.places(picture.width, picture.height)), mx.int32)}
    if form.layout == "whole":
        return pixels[None], {"image_sizes": [(picture.height, picture.width)]}
    rows, columns = form.grid(picture.width, picture.height)
    patch, side = form.patch, form.cell // form.patch
    if form.layout == "patches":
        patches = pixels.reshape(3, rows * side, patch, columns * side, patch).transpose(1, 3, 0, 2, 4)
        return patches.reshape(-1, 3, patch, patch), {"image_grid_hws": mx.array([[rows * side, columns * side]])}
    cells = mx.repeat(pixels[None], 2, axis=0).reshape(2, 3, rows, side, patch, columns, side, patch)
    patches = cells.transpose(2, 5, 3, 6, 1, 0, 4, 7).reshape(rows * columns * side**2, -1)
    return patches, {"image_grid_thw": mx.array([[1, rows * side, columns * side]])}


def _mend_gemma4(embedder: Any) -> None:
    """Rows of the table by their numbers, all of which it has: see `_gemma4` in node.model.picture_form. mlx-vlm multiplies it by
    zeros and ones, 50 billion products for a picture, seconds on a CPU.
    """

    def embeddings(places: mx.array, is_padding: mx.array) -> mx.array:
        """`places`: [pictures, patches, 2]. Returns [pictures, patches, width]."""
        across, down = embedder.position_embedding_table
        found = across[places[..., 0]] + down[places[..., 1]]
        return mx.where(is_padding[..., None], 0.0, found)

    embedder._position_embeddings = embeddings  # noqa: SLF001 - it has no other name


def _mend_llama4(vision: Any) -> None:
    """GELU as the tower was trained with it, as transformers has it: mlx-vlm's is a coarse approximation. And patches at once: mlx-vlm
    takes each pixel by itself, 112,896 of a tile.
    """
    for module in vision.modules():
        if "activation_fn" in module:
            module.activation_fn = GELU()  # type: ignore[no-untyped-call]

    def unfold(pixels: mx.array) -> mx.array:
        """[tiles, 3, side, side] to [tiles, 3 * patch * patch, patches]."""
        tiles, channels, side, _ = pixels.shape
        rows, patch = side // vision.patch_size, vision.patch_size
        patches = pixels.reshape(tiles, channels, rows, patch, rows, patch).transpose(0, 1, 3, 5, 2, 4)
        return patches.reshape(tiles, channels * patch**2, rows**2)

    vision.patch_embedding.unfold = unfold
