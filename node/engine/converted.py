"""The tensors that mlx-lm makes of a model when it converts it, from its config.json alone. No weights are needed or made."""

from collections.abc import Mapping
from typing import Any

from mlx.nn.layers.base import Module
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten

from node.core.models import TensorHeader
from node.engine.plan import activation_dtype, build, parts_of
from node.model.weights import Weights

_FILE = "model.safetensors"


def converted(config: Mapping[str, Any]) -> Weights:
    """The tensors of a model in the dtype of its config, quantized as that says. Raises ModelUnsupported as `build` does."""
    model = build(config)
    _tie(model, config)
    model.set_dtype(activation_dtype(config))
    if quantization := config.get("quantization"):
        _quantize(model, quantization)
    leaves: Any = tree_flatten(model.parameters())  # type: ignore[no-untyped-call]
    tensors = {name: TensorHeader(_FILE, str(leaf.dtype), leaf.shape, leaf.nbytes) for name, leaf in leaves}
    return Weights(tensors, {_FILE: sum(tensor.nbytes for tensor in tensors.values())})


def _tie(model: Module, config: Mapping[str, Any]) -> None:
    """Some classes have a head until they are given weights without one."""
    if any(part.get("tie_word_embeddings") for part in parts_of(config)) and hasattr(model, "sanitize"):
        leaves: Any = tree_flatten(model.parameters())  # type: ignore[no-untyped-call]
        model.sanitize({name: leaf for name, leaf in leaves if not name.endswith("lm_head.weight")})


def _quantize(model: Module, quantization: Mapping[str, Any]) -> None:
    """All that can be. `quantization`: settings of all modules and, by a part of their path, those of some."""
    general = {name: value for name, value in quantization.items() if not isinstance(value, Mapping)}
    special = {part: dict(value) for part, value in quantization.items() if isinstance(value, Mapping)}

    def settings(path: str, module: Module) -> bool | dict[str, Any]:
        own = next((value for part, value in special.items() if part in path), general)
        return own if hasattr(module, "to_quantized") and module.weight.shape[-1] % own["group_size"] == 0 else False

    quantize(model, **general, class_predicate=settings)
