"""Replaces layers of a model by ghosts, so that the model's own forward pass runs only some of them.

Models index layers and caches by absolute number, and read attributes of layers that may be on other nodes. So the
list of layers keeps its full length. A layer of another stage is a ghost: it has the attributes of the original, and
when called it returns the received arrays instead of computing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from operator import is_
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten, tree_map

from node.core.errors import ModelUnsupported
from node.engine.graph import arrays_in, arrays_of


class Reached(Exception):  # noqa: N818, RUF100  (not an error: it ends the forward pass)
    """Raised by the last layer of a stage with its output."""


class LayerProxy:
    """Wrapper of a layer with the same attributes. A call becomes `act(original, *arguments)`."""

    def __init__(self, original: Module, act: Callable[..., Any]) -> None:
        self._original = original
        self._act = act

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._act(self._original, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # some models distinguish layers by isinstance
        return type(self._original)


def find_layers(model: Module) -> list[Any]:
    """The list object that the model's forward pass iterates over; changes to it change the layers that run. Raises
    ModelUnsupported if there is none.
    """
    layers = list(getattr(model, "layers", ()))
    for module in model.modules():  # type: ignore[no-untyped-call]
        for value in module.values():
            if isinstance(value, list) and len(value) == len(layers) > 0 and all(map(is_, value, layers)):
                return value
    raise ModelUnsupported(f"{type(model).__module__} has no list of layers that could be cut.")


@dataclass(frozen=True, slots=True)
class ObjectPattern:
    """Of an object that layers pass on, such as the residuals of earlier layers: the numbers of its arrays, and the rest."""

    kind: type
    arrays: Mapping[str, int]
    rest: Mapping[str, Any]


def pattern_of(output: Any) -> Any:
    """A layer's output with its number in place of each array, and None for anything else, as it may be stale later."""
    numbers = count()

    def pattern(value: Any) -> Any:
        if isinstance(value, mx.array):
            return next(numbers)
        if not (arrays := arrays_of(value)):
            return None
        rest = {name: each for name, each in vars(value).items() if name not in arrays}
        return ObjectPattern(type(value), {name: next(numbers) for name in arrays}, rest)

    return tree_map(pattern, output)


def rest_of(pattern: Any) -> list[Any]:
    """What the objects of a layer's output have beside arrays: constants, or they would be stale in the next step."""
    leaves: Any = tree_flatten(pattern)
    return [leaf.rest for _, leaf in leaves if isinstance(leaf, ObjectPattern)]


def fill(pattern: Any, arrays: Mapping[int, mx.array]) -> Any:
    """The output with this pattern and these arrays, by number; missing arrays are None. Objects are new ones, as layers may
    change them.
    """
    if isinstance(pattern, tuple | list):  # not by tree_map, as each ghost does this in each step
        return tree_map(partial(fill, arrays=arrays), pattern)
    if isinstance(pattern, ObjectPattern):
        made: Any = object.__new__(pattern.kind)
        vars(made).update(pattern.rest, **{name: arrays.get(number) for name, number in pattern.arrays.items()})
        return made
    return arrays.get(pattern) if isinstance(pattern, int) else None


class PartialModel:
    """Runs only the layers [start, end) of a model of N layers; with `start == end == N` only its tail, norm and head."""

    def __init__(
        self,
        model: Module,
        layers: list[Any],
        start: int,
        end: int,
        patterns: Sequence[Any],
        carried: Mapping[int, tuple[int, ...]],
    ) -> None:
        """`layers`: the originals. `carried[c]`: indexes of the arrays of layer c-1's output that layer c needs."""
        self._model = model
        self._live = find_layers(model)
        self._originals = layers
        self._end = end
        self._enter = carried.get(start, ())
        self._leave = carried.get(end, ())
        self._received: dict[int, mx.array] = {}
        pairs = zip(layers, patterns, strict=True)
        self._layers: list[Any] = [LayerProxy(original, self._ghost(pattern)) for original, pattern in pairs]
        self._layers[start:end] = layers[start:end]
        if start < end:
            self._layers[end - 1] = LayerProxy(layers[end - 1], self._last)

    def __call__(
        self,
        tokens: mx.array,
        caches: list[Any],
        received: Sequence[mx.array] = (),
        changes: Sequence[Callable[[mx.array], mx.array]] = (),
    ) -> tuple[mx.array, ...]:
        """Run the layers on tokens, int32 [rows, length], which may be zeros if the layers do not read them. `changes`: of the
        outputs of the first layers, which are this stage's. Returns the arrays for the next layer, or of a tail the logits
        [rows, length, vocabulary].
        """
        self._received = dict(zip(self._enter, received, strict=True))
        self._live[:] = self._layers
        for k, change in enumerate(changes):
            changed: Any = LayerProxy(self._originals[k], partial(_changed, change))
            self._live[k] = LayerProxy(changed, self._last) if k == self._end - 1 else changed
        try:
            output = self._model(tokens, cache=caches)
        except Reached as reached:
            arrays = arrays_in(reached.args)
            return tuple(arrays[k] for k in self._leave)
        finally:
            self._received = {}
            self._live[:] = self._originals
        return (output,)

    def _last(self, original: Module, *args: Any, **kwargs: Any) -> Any:
        raise Reached(original(*args, **kwargs))

    def _ghost(self, pattern: Any) -> Callable[..., Any]:
        return lambda _original, *_args, **_kwargs: fill(pattern, self._received)


def _changed(change: Callable[[mx.array], mx.array], original: Module, *args: Any, **kwargs: Any) -> mx.array:
    return change(original(*args, **kwargs))


Place = tuple[Module, str, Module]
"""A module, by its parent and its name there."""


def around_layers(model: Module) -> list[Place]:
    """The modules around the list of layers, the outermost one, `model`, left out.

    mlx-lm's models have their layers in a module of their own, which returns the hidden states after the final norm, the
    input of the head; most have more modules around it.
    """
    layers, parent, around = find_layers(model), model, list[Place]()
    named: Any = model.named_modules()  # type: ignore[no-untyped-call]
    path = next((path for path, module in named if any(value is layers for value in module.values())), "")
    for name in path.split(".") if path else ():
        around.append((parent, name, parent[name]))
        parent = parent[name]
    return around


@contextmanager
def replaced_calls(places: Sequence[Place], act: Callable[..., Any]) -> Iterator[None]:
    """Inside, a call of one of these modules becomes `act(module, *arguments)`."""
    for parent, name, module in places:
        parent[name] = LayerProxy(module, act)
    try:
        yield
    finally:
        for parent, name, module in places:
            parent[name] = module


def changed_output(place: Place, change: Callable[[mx.array], mx.array]) -> AbstractContextManager[None]:
    """Inside, a module returns what this makes of its output."""
    return replaced_calls([place], partial(_changed, change))


@contextmanager
def record_outputs(around: Sequence[Place]) -> Iterator[list[mx.array]]:
    """Inside, record the arrays that these modules return, those of the outermost one last."""
    seen: list[mx.array] = []

    def record(module: Module, *args: Any, **kwargs: Any) -> Any:
        output = module(*args, **kwargs)
        seen.extend(arrays_in(output))
        return output

    for parent, name, module in around:
        parent[name] = LayerProxy(module, record)
    try:
        yield seen
    finally:
        for parent, name, module in around:
            parent[name] = module
