"""mlx-vlm's whole models, with which those that take pictures, and those that mlx-lm lacks, are compared."""

import runpy
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.utils import load_model

from node.core.pictures import Picture
from node.engine.mlx_vlm import vlm_model
from node.engine.tower import given_to_tower
from node.model.config import read_config
from node.model.picture_form import PictureForm

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_model.py"


def make_model(preset: str, target: Path) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", [str(SCRIPT), "--preset", preset, "--out", str(target)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return target


def whole(directory: Path) -> Any:
    config = read_config(directory)
    package = vlm_model(config["model_type"])
    given = package.ModelConfig.from_dict(dict(config))
    given.text_config = package.TextConfig.from_dict(config["text_config"])
    given.vision_config = package.VisionConfig.from_dict(config["vision_config"])
    if hasattr(given, "hidden_size"):
        given.hidden_size = given.text_config.hidden_size
    model = package.Model(given)
    weights = dict(mx.load(str(directory / "model.safetensors")))
    vision = model.vision_tower if "vision_tower" in model else model.vision_model
    for part in (model, vision, model.language_model):
        weights = part.sanitize(weights) if hasattr(part, "sanitize") else weights
    # Kimi-VL's text model of mlx-lm, which has weights in another form, is asked instead of mlx-vlm's.
    model.load_weights(list(weights.items()), strict=config["model_type"] != "kimi_vl")
    model.directory = directory
    if config["model_type"] == "qwen3_vl_moe":  # transformers has the kinds of GELU the other way round in its tower
        for merger in (vision.merger, *vision.deepstack_merger_list):
            merger.act_fn = nn.GELU()
        for block in vision.blocks:
            block.mlp.act_fn = nn.GELU(approx="tanh")
    if config["model_type"] == "llama4":  # transformers' is the exact one
        for mlp in (vision.vision_adapter.mlp, *(layer.mlp for layer in vision.model.layers)):
            mlp.activation_fn = nn.GELU()
    return model.eval()


def logits(model: Any, tokens: Sequence[int], pixels: Any, more: Mapping[str, Any], cache: Any = None) -> mx.array:
    """Of all tokens, [1, tokens, vocabulary]. `pixels`, `more`: see `given_pictures`."""
    ids = mx.array([list(tokens)])
    text = model.language_model
    if model.config.model_type == "kimi_vl":
        embeddings = model.get_input_embeddings(ids, pixels, **more).inputs_embeds
        lm, _ = load_model(model.directory)
        lm.language_model.model.embed_tokens = lambda _: embeddings
        return mx.array(lm(ids))
    if model.config.model_type == "gemma4" and text.config.use_bidirectional_attention == "vision":
        # mlx-vlm has pictures' places see each other in all layers, transformers in those with a window.
        seen = _seen_of_picture(tokens, model.config.image_token_id)
        causal, window = _causal(len(tokens)), _causal(len(tokens), text.config.sliding_window)
        text.model._make_masks = lambda *_: [
            (window | seen) if layer.layer_type == "sliding_attention" else causal for layer in text.model.layers
        ]
        found = mx.array(model(ids, pixels, cache=cache).logits)
        del text.model._make_masks
        return found
    if model.config.model_type != "gemma3":
        more = more if model.config.model_type != "gemma4" else {}
        mask = () if model.config.model_type == "llama4" else (None,)
        return mx.array(model(ids, pixels, *mask, cache=cache, **more).logits)
    # mlx-vlm's generate makes Gemma's masks causal, and its model has one for all layers: neither is Gemma's.
    hidden = model.get_input_embeddings(ids, pixels, mx.ones(ids.shape, mx.int32)).inputs_embeds
    hidden *= mx.array(text.config.hidden_size**0.5, mx.bfloat16).astype(hidden.dtype)
    seen = _seen_of_picture(tokens, model.config.image_token_index)
    for layer, kv in zip(text.layers, cache or text.make_cache(), strict=True):
        window = text.config.sliding_window if layer.self_attn.is_sliding else len(tokens)
        hidden = layer(hidden, _causal(len(tokens), window) | seen, kv)
    return mx.array(text.lm_head(text.model.norm(hidden)))


def in_chunks(model: Any, tokens: Sequence[int], pixels: Any, more: Mapping[str, Any], ends: Sequence[int]) -> mx.array:
    """As `logits`, of Qwen's model in steps that end there."""
    ids, text = mx.array([list(tokens)]), model.language_model
    embeddings = model.get_input_embeddings(ids, pixels, **more).inputs_embeds
    positions, _ = text.get_rope_index(ids, more["image_grid_thw"])
    found, cache = [], text.make_cache()
    for begin, end in pairwise([0, *ends]):
        given = {"inputs_embeds": embeddings[:, begin:end], "position_ids": positions[..., begin:end]}
        found.append(text(ids[:, begin:end], cache=cache, **given).logits)
        mx.eval(found[-1], [each.state for each in cache])
    return mx.concatenate(found, axis=1)


def _causal(length: int, window: int = 0) -> mx.array:
    places = mx.arange(length)
    back = places[:, None] - places
    return (back >= 0) & (back < (window or length))


def _seen_of_picture(tokens: Sequence[int], place: int) -> mx.array:
    """Pictures have other tokens between them."""
    number, numbers = 0, []
    for before, token in pairwise([-1, *tokens]):
        number += token == place != before
        numbers.append(number if token == place else -1)
    of = mx.array(numbers)
    return (of[:, None] == of) & (of >= 0)


def given_pictures(form: PictureForm, pictures: Sequence[Picture]) -> tuple[Any, dict[str, Any]]:
    """What the model takes beside the tokens."""
    each = [given_to_tower(one, form) for one in pictures]
    if form.sizing in ("square", "tiles"):
        return mx.concatenate([pixels for pixels, _ in each]), {}
    if form.layout == "patches":
        grids = mx.concatenate([given["image_grid_hws"] for _, given in each])
        return mx.concatenate([patches for patches, _ in each]), {"image_grid_hws": grids}
    if form.sizing == "fill":
        return [pixels[0] for pixels, _ in each], {}
    if form.layout == "cells":
        grids = mx.concatenate([given["image_grid_thw"] for _, given in each])
        return mx.concatenate([patches for patches, _ in each]), {"image_grid_thw": grids}
    # Padded to the largest one, as mlx-vlm's processor does.
    height, width = (max(pixels.shape[axis] for pixels, _ in each) for axis in (2, 3))
    padded = [mx.pad(p, [(0, 0), (0, 0), (0, height - p.shape[2]), (0, width - p.shape[3])]) for p, _ in each]
    return mx.concatenate(padded), {"image_sizes": [size for _, given in each for size in given["image_sizes"]]}


class WholeText:
    """A whole model of mlx-vlm, loaded as mlx-vlm's `load_model` does, which needs more packages. Called as mlx-lm's."""

    def __init__(self, directory: Path) -> None:
        config = {"text_config": {}, "vision_config": {}, "audio_config": {}} | read_config(directory)
        package = vlm_model(config["model_type"])
        given = package.ModelConfig.from_dict(config)  # which may fill its parts in
        for part in ("text_config", "vision_config"):
            if hasattr(given, part):
                kind = getattr(package, part.title().replace("_", ""))
                setattr(given, part, kind.from_dict(config[part]))
        self.whole = package.Model(given)
        weights: dict[str, mx.array] = {}
        for file in directory.glob("*.safetensors"):
            weights |= mx.load(str(file))
        weights = self.whole.sanitize(weights)
        if hasattr(package, "LanguageModel") and hasattr(given, "text_config"):
            sanitize = getattr(package.LanguageModel(given.text_config), "sanitize", None)
            weights = sanitize(weights) if sanitize else weights
        if quantization := config.get("quantization"):
            _quantize(self.whole, quantization, weights)
        self.whole.load_weights(
            [each for each in weights.items() if each[0].startswith("language_model.")], strict=False
        )
        self.whole.eval()
        self.layers = self.whole.layers
        self.language_model = self.whole.language_model

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        # As mlx-vlm's `generate` does; Qwen's whole models begin the positions anew in each call.
        logits: mx.array = self.language_model(tokens, cache=cache).logits
        return logits

    def make_cache(self) -> list[Any]:
        caches: list[Any] = vlm_model("cache").make_prompt_cache(self.language_model)
        return caches


def _quantize(model: Any, quantization: dict[str, Any], weights: dict[str, mx.array]) -> None:
    def chosen(path: str, module: Any) -> Any:
        if isinstance(own := quantization.get(path), dict):
            return own
        return hasattr(module, "to_quantized") and f"{path}.scales" in weights

    group, bits = quantization["group_size"], quantization["bits"]
    nn.quantize(model, group, bits, mode=quantization.get("mode", "affine"), class_predicate=chosen)
