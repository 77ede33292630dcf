"""The tensors that mlx-lm makes of a model when it converts it, from its config.json alone. No weights are needed or made."""

from collections.abc import Mapping
from typing import Any

from mlx.nn.layers.base import Module
from mlx.nn.layers.quantized import quantize

from node.core.models import TensorHeader
from node.engine.graph import weights_in
from node.engine.plan import activation_dtype, build, parts_of
from node.model.weights import Weights

_FILE = "model.safetensors"


def converted(config: Mapping[str, Any]) -> Weights:
    """The tensors of a model in the dtype of its config, quantized as that says. Raises ModelUnsupported as `build` does."""
    model = build(config)
    if any(part.get("tie_word_embeddings") for part in parts_of(config)) and hasattr(model, "sanitize"):
        # Some classes have a head until they are given weights without one.
        model.sanitize({name: weight for name, weight in weights_in(model) if not name.endswith("lm_head.weight")})
    model.set_dtype(activation_dtype(config))
    quantization = config.get("quantization") or {}
    general = {name: value for name, value in quantization.items() if not isinstance(value, Mapping)}
    special = {part: dict(value) for part, value in quantization.items() if isinstance(value, Mapping)}
    """By a part of the path of some modules, their own settings."""

    def settings(path: str, module: Module) -> bool | dict[str, Any]:
        own = next((value for part, value in special.items() if part in path), general)
        return own if hasattr(module, "to_quantized") and module.weight.shape[-1] % own["group_size"] == 0 else False

    if quantization:
        quantize(model, **general, class_predicate=settings)
    tensors = {name: TensorHeader(_FILE, str(each.dtype), each.shape, each.nbytes) for name, each in weights_in(model)}
    return Weights(tensors, {_FILE: sum(tensor.nbytes for tensor in tensors.values())})
