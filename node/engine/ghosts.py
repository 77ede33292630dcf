"""Takes the place of layers, so that a model's own forward pass runs only some of them.

Models index layers and caches absolutely and read attributes of layers that may be elsewhere. So the list of layers
keeps its full length, and a layer that is not ours is a ghost: it answers every question about itself as the original
does, and instead of computing it returns what came over the wire.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from node.core.errors import ModelUnsupported
from node.engine.graph import arrays_in


class Leaf:
    """Stands in the pattern of a layer's output for the k-th array."""

    def __init__(self, index: int) -> None:
        self.index = index


class Reached(Exception):  # noqa: N818, RUF100  (no error: how the last layer of a stage ends the forward pass)
    """Raised by the last layer of a stage with its output."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


class LayerProxy:
    """Wraps a layer: attributes are the original's; a call goes to `act` with the original and its arguments."""

    def __init__(self, original: Module, act: Callable[..., Any]) -> None:
        self._original = original
        self._act = act

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._act(self._original, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # some models tell their layers apart by isinstance
        return type(self._original)


def find_layers(model: Module) -> list[Any]:
    """The very list that the model's forward pass walks; what is put into it is what runs.

    Raises ModelUnsupported when there is none.
    """
    layers = list(getattr(model, "layers", ()))
    for module in model.modules():  # type: ignore[no-untyped-call]
        for value in module.values():
            if isinstance(value, list) and len(value) == len(layers) > 0 and all(map(is_, value, layers)):
                return value
    raise ModelUnsupported(f"{type(model).__module__} has no list of layers that could be cut.")


def pattern_of(output: Any) -> Any:
    """A layer's output with each array replaced by its Leaf; numbers, which could be stale later, by None."""
    count = 0

    def replace(value: Any) -> Any:
        nonlocal count
        if isinstance(value, mx.array):
            count += 1
            return Leaf(count - 1)
        if isinstance(value, tuple | list):
            return type(value)(replace(item) for item in value)
        return None

    return replace(output)


def fill(pattern: Any, arrays: dict[int, mx.array]) -> Any:
    """The output that has the pattern and these arrays; arrays not given are None."""
    if isinstance(pattern, Leaf):
        return arrays.get(pattern.index)
    if isinstance(pattern, tuple | list):
        return type(pattern)(fill(item, arrays) for item in pattern)
    return None


class PartialModel:
    """A model of which only the layers [start, end) run; `start == end == N` leaves its tail: norm and head."""

    def __init__(
        self,
        model: Module,
        layers: list[Any],
        start: int,
        end: int,
        patterns: Sequence[Any],
        carried: Mapping[int, tuple[int, ...]],
    ) -> None:
        """`layers` are the originals; `carried[c]` says which arrays of layer c-1's output go on to layer c."""
        self._model = model
        self._live = find_layers(model)
        self._originals = layers
        self._enter = carried.get(start, ())
        self._leave = carried.get(end, ())
        self._received: dict[int, mx.array] = {}
        self._stops = start < end
        self._layers: list[Any] = [
            original
            if start <= k < end - 1
            else LayerProxy(original, self._last if start <= k < end else self._ghost(pattern))
            for k, (original, pattern) in enumerate(zip(layers, patterns, strict=True))
        ]

    def __call__(self, tokens: mx.array, caches: list[Any], received: Sequence[mx.array] = ()) -> tuple[mx.array, ...]:
        """Run the layers. `tokens` int32 [rows, length]; they may be zeros on a stage whose layers don't read them.

        Returns what goes on to the next layer, or of a tail the logits [rows, length, vocab].
        """
        self._received = dict(zip(self._enter, received, strict=True))
        self._live[:] = self._layers
        try:
            output = self._model(tokens, cache=caches)
        except Reached as reached:
            arrays = list(arrays_in(reached.output))
            return tuple(arrays[k] for k in self._leave)
        finally:
            self._received = {}
            self._live[:] = self._originals
        return (output,)

    def _last(self, original: Module, *args: Any, **kwargs: Any) -> Any:
        raise Reached(original(*args, **kwargs))

    def _ghost(self, pattern: Any) -> Callable[..., Any]:
        return lambda _original, *_args, **_kwargs: fill(pattern, self._received)
