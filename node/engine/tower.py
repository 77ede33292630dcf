"""The vision tower of a model: from a picture to the embeddings of its places in a prompt. Runs in the compute thread.

The tower and what maps its output to the width of the text model are mlx-vlm's, whose own `get_input_embeddings` computes
them. It is given a picture, and tokens that are nothing but its places.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module
from mlx.nn.layers.quantized import quantize

from node.core.errors import BadRequest, ModelBroken
from node.core.mlx_errors import MLX_ERRORS
from node.core.pictures import Picture
from node.engine.ghosts import LayerProxy
from node.engine.mlx_vlm import vlm_model
from node.engine.plan import activation_dtype
from node.model.picture_form import PictureForm


class _Text:
    """Stands for mlx-vlm's language model, of which only the embedding is asked."""

    def __init__(self, width: int, dtype: mx.Dtype) -> None:
        self.model = self
        self._width, self._dtype = width, dtype

    def embed_tokens(self, tokens: mx.array) -> mx.array:
        return mx.zeros((*tokens.shape, self._width), self._dtype)

    def get_rope_index(self, *_: Any, **__: Any) -> tuple[None, None]:
        """Positions are node.core.axes' business."""
        return None, None


@dataclass(frozen=True, slots=True, eq=False)
class Splice:
    """Embeddings, [places, width], and the places of a step's tokens where they come instead of the tokens' own."""

    places: Sequence[int]
    embeddings: mx.array

    def into(self, embedded: mx.array) -> mx.array:
        """`embedded`: [1, length, width]."""
        embedded[:, mx.array(list(self.places))] = self.embeddings.astype(embedded.dtype)[None]
        return embedded


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
        self._token = int(config.get("image_token_index") or config.get("image_token_id") or 0)
        try:
            self.vlm = self._build(config)
            if tensors:
                self._load(config, tensors)
        except (*MLX_ERRORS, AssertionError) as error:
            raise ModelBroken(f"The model's vision tower cannot be built: {error!r:.500}") from error
        self.eval()

    def _build(self, config: Mapping[str, Any]) -> Any:
        package = vlm_model(config["model_type"])
        given = package.ModelConfig.from_dict(dict(config))
        given.text_config = package.TextConfig.from_dict(dict(config.get("text_config") or config))
        given.vision_config = package.VisionConfig.from_dict(dict(config["vision_config"]))
        vlm = package.Model(given)
        width = given.text_config.hidden_size
        del vlm["language_model"]
        vlm.language_model = _Text(width, activation_dtype(config))
        return vlm

    def _load(self, config: Mapping[str, Any], tensors: Mapping[str, mx.array]) -> None:
        weights = self.vlm.vision_tower.sanitize(self.vlm.sanitize(dict(tensors)))
        general = config.get("quantization") or {}

        def settings(path: str, module: Module) -> bool | dict[str, Any]:
            own = general.get(path, general)
            is_quantized = f"{path}.scales" in weights and hasattr(module, "to_quantized")
            return dict(own) if is_quantized and isinstance(own, Mapping) else is_quantized

        if general:
            sizes = {key: general[key] for key in ("group_size", "bits", "mode") if key in general}
            quantize(self.vlm, **sizes, class_predicate=settings)
        self.vlm.load_weights(list(weights.items()), strict=True)

    def see(self, picture: Picture) -> Generator[float, None, mx.array]:
        """Compute the embeddings of a picture's places, [places, width], in pieces: a layer of the tower each."""
        places = self.form.places(picture.width, picture.height)
        pixels, more = given_to_tower(picture, self.form)
        tokens = mx.full((1, places), self._token, mx.int32)
        with _recorded(_layers(self.vlm.vision_tower)) as outputs:
            features: mx.array = self.vlm.get_input_embeddings(tokens, pixels, **more).inputs_embeds[0]
        outputs.reverse()  # each is dropped once it is computed
        while outputs:
            mx.eval(outputs.pop())
            yield 0.0
        mx.eval(features)
        mx.clear_cache()
        return features

    def see_prompt(
        self, pictures: Sequence[Picture], tokens: Sequence[int], sent: int
    ) -> "Generator[float, None, Seen]":
        """The embeddings of those places of pictures in a prompt that are not among the first `sent` tokens, in pieces. Raises
        BadRequest if the places in it are not those of the pictures.
        """
        vocabulary = self.form.vocabulary
        positions = [position for position, token in enumerate(tokens) if token >= vocabulary]
        found: dict[int, tuple[mx.array, int]] = {}
        for picture in pictures:
            numbers = picture.numbers(self.form.places(picture.width, picture.height), vocabulary)
            own, positions = positions[: len(numbers)], positions[len(numbers) :]
            if [tokens[position] for position in own] != numbers:
                raise BadRequest(
                    "The places of pictures in the prompt are not those of the pictures that came with it."
                )
            if own[-1] >= sent:
                embeddings = yield from self.see(picture)
                found |= {position: (embeddings, place) for place, position in enumerate(own) if position >= sent}
        if positions:
            raise BadRequest(f"The prompt has {len(positions)} places of pictures that did not come with it.")
        return Seen(found)


@dataclass(frozen=True, slots=True)
class Seen:
    """The embeddings of the places of pictures in a prompt, by their positions there. Numbers of two places may be equal."""

    found: Mapping[int, tuple[mx.array, int]]
    """By position: embeddings [places, width] of a picture, and the place in it."""
    begin: int = 0
    """Position of a step's first token."""

    def at(self, begin: int) -> "Seen":
        """For the step that begins at this position."""
        return replace(self, begin=begin)

    def splice(self, tokens: Sequence[int]) -> tuple[list[int], Splice | None]:
        """The tokens of a step with zeros in the places of pictures, and what comes there."""
        places = [place for place in range(len(tokens)) if self.begin + place in self.found]
        if not places:
            return list(tokens), None
        rows = [self.found[self.begin + place] for place in places]
        parts = [mx.take(array, mx.array([row for _, row in group]), 0) for array, group in _runs(rows)]
        ids = [0 if self.begin + place in self.found else token for place, token in enumerate(tokens)]
        return ids, Splice(places, mx.concatenate(parts))


def _runs(rows: Iterable[tuple[mx.array, int]]) -> Iterator[tuple[mx.array, list[tuple[mx.array, int]]]]:
    """Neighbours of the same array."""
    for _, group in groupby(rows, key=lambda pair: id(pair[0])):
        members = list(group)
        yield members[0][0], members


def normalized(picture: Picture, form: PictureForm) -> mx.array:
    """The picture's numbers as the tower takes them: float32 [height, width, 3]."""
    pixels = mx.array(np.frombuffer(picture.pixels, np.uint8)).reshape(picture.height, picture.width, 3)
    shares = pixels.astype(mx.float32) * mx.array(1 / 255, mx.float32)
    return (shares - mx.array(form.mean, mx.float32)) / mx.array(form.std, mx.float32)


def given_to_tower(picture: Picture, form: PictureForm) -> tuple[mx.array, dict[str, Any]]:
    """What mlx-vlm's models take of a picture: all of it, [1, 3, height, width], or where positions are in three axes its patches,
    [patches, 3 * 2 * patch * patch], those of a cell together, each twice, as for two pictures of a video.
    """
    pixels = normalized(picture, form).transpose(2, 0, 1)
    if not form.in_axes:
        return pixels[None], {"image_sizes": [(picture.height, picture.width)]}
    rows, columns = form.grid(picture.width, picture.height)
    patch, side = form.patch, form.cell // form.patch
    cells = mx.repeat(pixels[None], 2, axis=0).reshape(2, 3, rows, side, patch, columns, side, patch)
    patches = cells.transpose(2, 5, 3, 6, 1, 0, 4, 7).reshape(rows * columns * side**2, -1)
    return patches, {"image_grid_thw": mx.array([[1, rows * side, columns * side]])}


def _layers(tower: Module) -> list[Any]:
    """The tower's longest list of modules of one kind."""
    modules: Any = tower.modules()  # type: ignore[no-untyped-call]
    lists = [value for module in modules for value in module.values() if isinstance(value, list) and value]
    alike = [each for each in lists if isinstance(each[0], Module) and len(set(map(type, each))) == 1]
    return max(alike, key=len)


@contextmanager
def _recorded(layers: list[Any]) -> Iterator[list[mx.array]]:
    """Inside, the outputs of these layers are recorded."""
    originals, outputs = list(layers), list[mx.array]()

    def record(layer: Module, *args: Any, **kwargs: Any) -> Any:
        output = layer(*args, **kwargs)
        outputs.append(output)
        return output

    layers[:] = [LayerProxy(layer, record) for layer in originals]
    try:
        yield outputs
    finally:
        layers[:] = originals
