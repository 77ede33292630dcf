"""Runs a model on a few tokens without computing anything, to find the dependencies of each layer."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_map_with_path

from node.core.errors import ModelUnsupported
from node.engine.caches import is_pool, is_recurrent, parts
from node.engine.ghosts import LayerProxy, fill, find_layers, pattern_of, rest_of
from node.engine.graph import arrays_in, sources, weights_in

ROWS, LENGTH = -1, -2
_FEW, PROMPT, _LONG, _DECODE = 2, 9, 20_000, 1
"""Lengths of the steps: models may run other code for a decode, for a few tokens (mlx-vlm's: up to 8), and for a prompt that is
longer than a window."""
_CHOICE = re.compile(r"top_?k")
_SHORT, _LEAST_CHOICE = 4, 16
"""Few tokens have no choice, and those of the other steps have one. No layer chooses among so many experts."""
_TOKENS = (-1, 0)
"""Stands for the token ids among the outputs of layers."""


class WeightGroup(NamedTuple):
    """Weights of one dtype: all of one layer (or shared by several), or those of one module outside of the layers."""

    layers: tuple[int, ...]
    module: str
    dtype: str


def with_short_choices(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with its choices among the tokens of a context, such as an `index_topk` of 2048, so small that a dry run
    makes them, as a long context does: layers may share them.
    """

    def shortened(part: Mapping[str, Any]) -> dict[str, Any]:
        pool = part.get("index_kpool")
        fewest = _SHORT * pool if isinstance(pool, int) else _SHORT  # chosen are pools of tokens
        return {name: shorten(name, value, fewest) for name, value in part.items()}

    def shorten(name: str, value: Any, fewest: int) -> Any:
        if isinstance(value, Mapping):
            return shortened(value)
        is_choice = isinstance(value, int) and value > max(_LEAST_CHOICE, fewest) and _CHOICE.search(name)
        return fewest if is_choice else value

    return shortened(config)


class DryRun:
    """Dependencies of each layer. The model runs its layers as usual, but each gets stand-ins for earlier outputs.

    So the graph of a layer's output ends at the stand-ins, and shows exactly which earlier outputs, weights, tokens
    and caches the layer needs. A value that is read on the host ends the graph, too, but also evaluates what it is made
    of, which then has no graph any more. If the layer that got an array has done that, nobody else need know; else all
    layers that come later count as in need of it.
    """

    def __init__(self, model: Module, caches: list[Any], dtype: mx.Dtype) -> None:
        """Run the steps, which fill `caches`. Replaces the model's weights by zeros of `dtype` that take no memory.

        Raises ModelUnsupported for a model that does not run its layers once each, in order.
        """
        self._caches = caches
        live = find_layers(model)
        layers = list(live)
        self.count = len(layers)
        self.patterns: list[Any] = []
        self._order = {id(layer): k for k, layer in enumerate(layers)}
        self._used: list[set[int]] = [set() for _ in layers]
        self._outputs: list[list[list[mx.array]]] = []  # per step, per layer
        self._scalars: dict[tuple[int, int], mx.array] = {}  # of the stand-ins, by layer and array
        self._stand_ins: dict[int, tuple[tuple[int, int], mx.array]] = {}  # layer and array, by the stand-in's id
        self._inputs: list[set[tuple[int, int]]] = [set() for _ in layers]
        self._rest: dict[int, list[Any]] = {}
        """Of the objects in each layer's output, what is not an array."""
        self._roots: dict[tuple[int, int], tuple[mx.array, mx.array]] = {}
        """Of the step: the tokens and the stand-ins, each with the scalar that it is made of."""
        self._watched: set[tuple[int, int]] | None = None
        """Which of them are evaluated; None in a step that is not watched."""
        self._read_on_host: set[tuple[tuple[int, int], int]] = set()
        """Each with the layer before which that was noted."""
        self._given_read = set[int]()
        """Layers that got the tokens after these had been read on the host, so no graph shows whether they read them."""
        weights = replace_weights(model, layers, dtype)
        live[:] = [LayerProxy(layer, self._record) for layer in layers]
        tokens: list[mx.array] = []
        logits = []
        for length in (_FEW, PROMPT, _LONG, _DECODE):
            if length == _LONG and self._is_slow(tokens[0]):
                continue
            for self._watched in (None, set()):
                if self._watched is None or self._evaluated():
                    logits.append(self._step(model, length))
                    tokens.append(self._roots[_TOKENS][0])
        live[:] = layers
        self._lengths = tuple(step.shape[1] for step in tokens)
        self.vocabulary = int(logits[0].shape[-1])
        self.width = int(self._outputs[0][-1][0].shape[-1])
        self.caches_of = tuple(tuple(sorted(used)) for used in self._used)
        self._find_dependencies(weights, tokens, logits)
        later = [group for groups in self._weights[1 : self.count] for group in groups]
        self.shared = frozenset(group.module for group in later if not group.layers)
        """Paths of the modules outside of the layers that layers after the first depend on."""
        self.reads_tokens = any(self._reads[1 : self.count])
        """Whether layers after the first read the token ids."""

    def _step(self, model: Module, length: int) -> mx.array:
        self._outputs.append([])
        self.patterns = []
        root = mx.zeros((), mx.int32)
        self._roots = {_TOKENS: (mx.broadcast_to(root, (1, length)), root)}
        logits: mx.array = model(self._roots[_TOKENS][0], cache=self._caches)
        self._watch(self.count)
        if len(self._outputs[-1]) != self.count:
            raise ModelUnsupported(f"Only {len(self._outputs[-1])} of the model's {self.count} layers run.")
        return logits

    def _evaluated(self) -> set[tuple[int, int]]:
        """Those of the step's tokens and stand-ins that have no graph any more."""
        found = sources([[array] for array, _ in self._roots.values()], [root for _, root in self._roots.values()])
        return {key for key, ids in zip(self._roots, found, strict=True) if not ids}

    def _watch(self, index: int) -> None:
        """Before layer `index` of a watched step, or the tail: note what was read on the host since the layer before."""
        if self._watched is None:
            return
        new = self._evaluated() - self._watched
        self._watched |= new
        given = self._inputs[index - 1] if index else set[tuple[int, int]]()
        # The first layer's input is made of the tokens.
        self._read_on_host |= {(key, index) for key in new - given if (key, index) != (_TOKENS, 1)}

    def _is_slow(self, tokens: mx.array) -> bool:
        """Whether the dry run takes time for each token: with recurrent layers, whose code loops over the tokens, with pools, from
        which mlx-vlm chooses block by block, and if the model evaluates outputs of layers, or its first layer's input (dbrx), which
        then has no graph.
        """
        loops = any(is_recurrent(part) or is_pool(part) for part in parts(self._caches))
        evaluates = bool((self._watched or set()) - {_TOKENS})
        return loops or evaluates or not sources(self._outputs[0][:1], [tokens])[0]

    def _record(self, layer: Module, *args: Any, **kwargs: Any) -> Any:
        index = len(self._outputs[-1])
        if self._order[id(layer)] != index:
            raise ModelUnsupported("The model does not run its layers once each, in order.")
        self._watch(index)
        values = (*args, *kwargs.values())
        given = {id(value) for value in values}
        given.update(id(item) for value in values if isinstance(value, tuple | list) for item in value)
        for k, cache in enumerate(self._caches):
            if not given.isdisjoint(map(id, (cache, *parts([cache])))):
                self._used[index].add(k)
        if _TOKENS in (self._watched or ()) and id(self._roots[_TOKENS][0]) in given:
            self._given_read.add(index)
        self._inputs[index] |= {self._stand_ins[id(a)][0] for a in arrays_in(values) if id(a) in self._stand_ins}
        output = layer(*args, **kwargs)
        arrays = arrays_in(output)
        self._outputs[-1].append(arrays)
        self.patterns.append(pattern_of(output))
        if self._rest.setdefault(index, rest := rest_of(self.patterns[-1])) != rest:
            raise ModelUnsupported("The model's layers pass on values that are no arrays and change from step to step.")
        stand_ins = {}
        for number, array in enumerate(arrays):
            scalar = self._scalars.setdefault((index, number), mx.zeros((), array.dtype))
            stand_ins[number] = mx.broadcast_to(scalar, array.shape)
            self._stand_ins[id(stand_ins[number])] = (index, number), stand_ins[number]
            self._roots[index, number] = stand_ins[number], scalar
        return fill(self.patterns[-1], stand_ins)

    def _find_dependencies(
        self, weights: dict[WeightGroup, mx.array], tokens: list[mx.array], logits: list[mx.array]
    ) -> None:
        """Find the dependencies of each layer, and of the tail as the last entry."""
        ends = [[array for step in self._outputs for array in step[k]] for k in range(self.count)]
        for end, used in zip(ends, self.caches_of, strict=True):
            end.extend(arrays_in([self._caches[c].state for c in used]))
        found = sources([*ends, logits], [*self._scalars.values(), *weights.values(), *tokens])
        self._needs = [{key for key, scalar in self._scalars.items() if id(scalar) in ids} for ids in found]
        for k, given in enumerate(self._inputs):
            if not self._needs[k]:  # the layer evaluates an array (dbrx), which then has no graph
                self._needs[k] = given
        self._weights = [{group for group, scalar in weights.items() if id(scalar) in ids} for ids in found]
        self._reads = [
            any(id(array) in ids for array in tokens) or k in self._given_read for k, ids in enumerate(found)
        ]
        for key, noted in self._read_on_host:  # maybe by the layer before
            for k in range(max(noted - 1, key[0] + 1), self.count + 1):
                if key != _TOKENS:
                    self._needs[k].add(key)
                elif k < self.count or noted == self.count:  # what is known before the layers is for them
                    self._reads[k] = True

    def cuts(self) -> tuple[tuple[int, ...], dict[int, tuple[int, ...]]]:
        """The legal cuts; and for each of them and the end of the layers, the indexes of the arrays to send. Raises
        ModelUnsupported if not even the tail (norm and head) can be separated from the layers.
        """
        carried: dict[int, tuple[int, ...]] = {}
        for cut in range(1, self.count + 1):
            leaves = self._carried(cut)
            if leaves is not None and (cut == self.count or not self._has_shared_state(cut)):
                carried[cut] = leaves
        if self.count not in carried or self._reads[self.count]:
            raise ModelUnsupported("The model's output depends on more than its last layer's.")
        return tuple(cut for cut in carried if cut < self.count), carried

    def _carried(self, cut: int) -> tuple[int, ...] | None:
        """Indexes of the arrays of layer cut-1's output that are needed after it; None if later layers need others."""
        crossing = {key for needs in self._needs[cut:] for key in needs if key[0] < cut}
        leaves = tuple(sorted(leaf for _, leaf in crossing))
        if not leaves or any(layer != cut - 1 for layer, _ in crossing):
            return None
        if any(len(step[cut - 1]) <= leaves[-1] for step in self._outputs):  # in a short context there is no choice
            return None
        # An array without these axes grows with the context like a cache, so it is not sent.
        return leaves if all({ROWS, LENGTH} <= set(shape) for shape in self.shapes(cut, leaves)) else None

    def _has_shared_state(self, cut: int) -> bool:
        """Whether layers on both sides of a cut share a cache, or one side uses weights of the other side's layers."""
        if set[int]().union(*self._used[:cut]) & set[int]().union(*self._used[cut:]):
            return True
        before = {layer for weights in self._weights[:cut] for w in weights for layer in w.layers}
        after = {layer for weights in self._weights[cut : self.count] for w in weights for layer in w.layers}
        return max(before, default=-1) >= cut or min(after, default=cut) < cut

    def shapes(self, cut: int, leaves: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Shapes of the arrays sent at the cut: the axis that varies with the step's length is LENGTH, the one before
        it ROWS.
        """
        found = []
        for leaf in leaves:
            shapes = [step[cut - 1][leaf].shape for step in self._outputs]
            shape = list(shapes[0])
            for axis, sizes in enumerate(zip(*shapes, strict=False)):
                if sizes == self._lengths:
                    shape[axis] = LENGTH
                    if axis > 0 and shape[axis - 1] == 1:
                        shape[axis - 1] = ROWS
            found.append(tuple(shape))
        return tuple(found)


def replace_weights(model: Module, layers: list[Module], dtype: mx.Dtype) -> dict[WeightGroup, mx.array]:
    """Replace each weight by a broadcast scalar zero, which takes no memory, even if the model evaluates it. Returns the
    scalars.
    """
    owners: dict[int, tuple[int, ...]] = {}
    for index, layer in enumerate(layers):
        for _, weight in weights_in(layer):
            owners[id(weight)] = (*owners.get(id(weight), ()), index)
    scalars: dict[WeightGroup, mx.array] = {}

    def replace(path: str, weight: mx.array) -> mx.array:
        own = owners.get(id(weight), ())
        kept = dtype if mx.issubdtype(weight.dtype, mx.floating) else weight.dtype
        key = WeightGroup(own, "" if own else path.rpartition(".")[0], str(kept))
        return mx.broadcast_to(scalars.setdefault(key, mx.zeros((), kept)), weight.shape)

    model.update(tree_map_with_path(replace, model.parameters()))  # type: ignore[no-untyped-call]
    return scalars
