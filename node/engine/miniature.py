"""A small model of the same kind as a config's: its layers, choices and windows, but narrow and, if it can be, shallow.

What a class of mlx-lm does, and whether cutting it is right, hardly depends on its widths. A config has no list of them,
so the names of its numbers say what is a width, and several ways to shrink them are tried until one makes a model.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from node.engine.config_bounds import weight_count
from node.engine.ghosts import find_layers
from node.engine.plan import build

_LAYERS = 8
"""Of a small model: some kinds of layers come every eighth."""
_FEW = 3_000_000
"""Weights of a model that is small already."""
_WIDTH = re.compile(r"(?<!vocab_)size$|dim$|rank$|width$|channels$|n_embd$|n_inner$|d_model$|d_ssm$|d_head$")
_NO_WIDTH = re.compile(r"window|block|chunk|group|kernel|conv|layer|topk|top_k")
_LEAST = 8
"""Minimum of a width: half of a head is rotated, and groups of four are common."""


def miniatures(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Small configs of the same kind, the smallest first; not all of them make a model. Raises ModelUnsupported if the
    config itself makes none.
    """
    model = build(config)
    plain = {name: value for name, value in config.items() if not name.startswith("quantization")}
    if weight_count(model) <= _FEW:
        yield plain
    layers = len(find_layers(model))
    for divisor in (64, 16, 4, 2):
        for most in sorted({min(_LAYERS, layers), layers}):
            yield _shrunk(plain, divisor, layers, most)


def _shrunk(config: Mapping[str, Any], divisor: int, layers: int, most: int) -> dict[str, Any]:
    """With widths divided by `divisor`, and the first `most` of `layers` layers."""

    def shrink(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: shrink(key, each) for key, each in value.items()}
        if isinstance(value, list) and name.endswith("layer_ids"):
            value = [each for each in value if each <= most]
        if isinstance(value, list | str) and len(value) == layers and "factor" not in name:
            return value[:most]  # one for each layer
        if isinstance(value, list) and "factor" in name and len(value) % divisor == 0:
            return value[: len(value) // divisor]  # one for each two numbers of a head
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        if value == layers and "layer" in name:
            return most
        is_width = _WIDTH.search(name) and not _NO_WIDTH.search(name)
        fits = value % divisor == 0 and value // divisor >= _LEAST
        return value // divisor if is_width and fits else value

    return {name: shrink(name, value) for name, value in config.items()}
