"""Finds a model's hidden states after its final norm, the input of its head.

mlx-lm's models have their layers in a module of their own, which returns these states; most have more modules around
it.
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
    """Inside, record the arrays that the modules around the layers return, those of the outermost module last."""
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
    """The modules in `module` that contain the list, from the outside in, each with its parent and its name there."""
    for name, value in module.items():
        if value is layers:
            return []
        if isinstance(value, Module) and (inside := _around(value, layers)) is not None:
            return [(module, name, value), *inside]
    return None
