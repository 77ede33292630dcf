"""A model's hidden states after its final norm, as its head gets them.

mlx-lm's models hold their layers in a module of its own, which returns just that, and most have more modules around it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from node.engine.ghosts import LayerProxy, find_layers
from node.engine.graph import arrays_in


@contextmanager
def record_outputs(model: Module) -> Iterator[list[mx.array]]:
    """Inside, all arrays that the modules around the layers return are recorded, those of the outermost last."""
    seen: list[mx.array] = []

    def record(module: Module, *args: Any, **kwargs: Any) -> Any:
        output = module(*args, **kwargs)
        seen.extend(arrays_in(output))
        return output

    around = _around(model, find_layers(model)) or []
    for parent, name, module in around:
        parent[name] = LayerProxy(module, record)
    try:
        yield seen
    finally:
        for parent, name, module in around:
            parent[name] = module


def _around(module: Module, layers: list[Any]) -> list[tuple[Module, str, Module]] | None:
    """From the outside in, the modules inside of `module` that hold the list, each after its parent and its name there."""
    for name, value in module.items():
        if value is layers:
            return []
        if isinstance(value, Module) and (inside := _around(value, layers)) is not None:
            return [(module, name, value), *inside]
    return None
