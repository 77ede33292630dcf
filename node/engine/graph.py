"""Reads the graph of operations of arrays that are not evaluated."""

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten

_NAMES = 500
"""Inputs named in one export; MLX accepts up to 1024 names."""


def sources(outputs: Sequence[Sequence[mx.array]], inputs: Sequence[mx.array]) -> list[set[int]]:
    """For each group of outputs, the ids (Python's `id`) of the inputs that it depends on. Parses the graph that MLX
    exports; evaluates nothing. An array may be both output and input.
    """
    anchor = mx.zeros((1,))
    ends = {f"o{k}": mx.depends([anchor], list(group))[0] for k, group in enumerate(outputs)}
    found: list[set[int]] = [set() for _ in outputs]
    for first in range(0, len(inputs), _NAMES):
        names = {f"i{k}": array for k, array in enumerate(inputs[first : first + _NAMES])}
        text = io.StringIO()
        mx.export_to_dot(text, *ends.values(), **names, **ends)
        into = _edges(text.getvalue())
        for k, end in enumerate(ends):
            found[k] |= {id(names[name]) for name in _ancestors(end, into) if name in names}
    return found


def _ancestors(name: str, into: Mapping[str, list[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [name]
    while todo:
        for source in into.get(todo.pop(), ()):
            if source not in seen:
                seen.add(source)
                todo.append(source)
    return seen


def _edges(dot: str) -> dict[str, list[str]]:
    """Names of the inputs of the operation that makes each array, by the array's name.

    The lines of an operation are adjacent: its label, `input -> operation` for each input, `operation -> output` for
    each output. Compiled functions repeat an operation's id in each call, so ids alone would mix up their calls.
    """
    into: dict[str, list[str]] = {}
    reads: list[str] = []
    for line in dot.splitlines():
        if "[label" in line:
            reads = []
        elif " -> " in line:
            source, target = (side.strip('"') for side in line.split(" -> "))
            if target.isdigit():
                reads.append(source)
            else:
                into[target] = reads
    return into


def arrays_in(tree: Any) -> list[mx.array]:
    """The arrays in nested tuples, lists and dicts, in order; of another object that has arrays, those."""
    leaves: Any = tree_flatten(tree)
    found = [[leaf] if isinstance(leaf, mx.array) else arrays_of(leaf).values() for _, leaf in leaves]
    return [array for arrays in found for array in arrays]


def arrays_of(value: Any) -> dict[str, mx.array]:
    """The arrays that are attributes of an object, by name; none of a module."""
    attributes = {} if isinstance(value, Module) else getattr(value, "__dict__", {})
    return {name: each for name, each in attributes.items() if isinstance(each, mx.array)}


def weights_in(module: Module) -> list[tuple[str, mx.array]]:
    """A module's weights with their paths, such as `model.layers.0.mlp.up_proj.weight`."""
    flat: Any = tree_flatten(module.parameters())  # type: ignore[no-untyped-call]
    return [(path, weight) for path, weight in flat]


def common_dtype(weights: Iterable[mx.array]) -> mx.Dtype:
    """Dtype of the activations of a model: the most frequent floating dtype of its weights."""
    counts = Counter(weight.dtype for weight in weights if mx.issubdtype(weight.dtype, mx.floating))
    return counts.most_common(1)[0][0] if counts else mx.float32
