"""How many parameters a model has, from the shapes of its tensors."""

import math
from collections.abc import Mapping
from typing import Any

from node.model.weights import Weights, is_foreign

_GROUP = 64
"""Numbers that share a scale in MLX's quantization, unless the config says otherwise."""
_MAX_GROUP = 4096
"""Configs are not trusted. Groups of MLX have at most 128 numbers."""


def count_parameters(weights: Weights, config: Mapping[str, Any]) -> int:
    """Number of parameters of the text model; 0 if it is quantized in a format whose packing is not known.

    MLX packs several numbers of a quantized tensor into one; the scales, one for each group, tell how many there are.
    """
    if "quantization_config" in config and "quantization" not in config:
        return 0
    total = 0
    for name, tensor in weights.tensors.items():
        module, _, kind = name.rpartition(".")
        quantized = f"{module}.scales" in weights.tensors
        if is_foreign(name) or (quantized and kind in ("weight", "biases")):
            continue
        size = math.prod(tensor.shape)
        total += size * _group_size(config, module) if quantized and kind == "scales" else size
    return total


def _group_size(config: Mapping[str, Any], module: str) -> int:
    """Modules may have settings of their own."""
    general = config.get("quantization")
    settings = general if isinstance(general, Mapping) else {}
    own = settings.get(module)
    size = (own if isinstance(own, Mapping) else settings).get("group_size")
    return size if type(size) is int and 0 < size <= _MAX_GROUP else _GROUP
