"""A node's layers of a model: what they do in a step.

Everything here runs in the compute thread.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import make_prompt_cache

from node.core.errors import ModelUnsupported, PippinError
from node.engine import caches
from node.engine.dry_run import LENGTH, ROWS
from node.engine.ghosts import PartialModel, find_layers
from node.engine.hidden_states import record_outputs
from node.engine.lanes import Kept, Lanes
from node.engine.plan import Plan


class Stage:
    """The layers [start, end) of a model. The one with start 0, the driver's, has embedding, norm and head as well.

    `model`, `plan`, `start`, `end` and `weight_bytes` are constant; `lanes` are its caches, `kept` what rings left of theirs.
    """

    def __init__(self, model: Module, plan: Plan, start: int, end: int, weight_bytes: int) -> None:
        self.plan = plan
        self.start = start
        self.end = end
        self.weight_bytes = weight_bytes
        self.model = model
        layers = list(find_layers(model))
        self._body = PartialModel(model, layers, start, end, plan.patterns, plan.carried)
        self._tail = PartialModel(model, layers, plan.layers, plan.layers, plan.patterns, plan.carried)
        self._choose_caches()
        self.kept = Kept()
        self.lanes = Lanes(partial(_fresh, model, (*self._own, *self._shadows)), plan, f"layers {start} to {end}")

    def sibling(self) -> "Stage":
        """Another with the same weights and caches of its own, for another ring; what they leave is kept in one place."""
        other = copy.copy(self)
        other.lanes = self.lanes.sibling()
        return other

    def _choose_caches(self) -> None:
        """Choose which caches this stage has, and which of them stands in for each that it has not.

        Models make masks from caches of layers that may be elsewhere. One of ours of the same kind tells the same; a kind
        that we don't have gets a shadow: a cache of tiny zeros that only counts.
        """
        used = {cache for layer in self.plan.caches_of for cache in layer}
        own = {cache for layer in self.plan.caches_of[self.start : self.end] for cache in layer}
        if self.start == 0:
            own |= set(range(self.plan.caches)) - used  # an embedding's
        self._own = sorted(own)
        kinds = [caches.kind(cache) for cache in make_prompt_cache(self.model)]
        have = {kinds[k]: entry for entry, k in reversed(list(enumerate(self._own)))}
        self._shadows: list[int] = []
        for k, kind in enumerate(kinds):
            if kind not in have:
                have[kind] = len(self._own) + len(self._shadows)
                self._shadows.append(k)
        entry_of = {k: entry for entry, k in enumerate(self._own)}
        self._entries = [entry_of.get(k, have[kind]) for k, kind in enumerate(kinds)]

    # --- steps ---

    def begin(self, lane: int, tokens: mx.array, lengths: Sequence[int] = ()) -> tuple[mx.array, ...]:
        """The driver's half of a step: embed tokens, int32 [rows, length], and run its layers.

        `lengths` are the valid tokens of each row of a right-padded prefill; empty when all rows are full.
        Returns hidden states [rows, length, width] and whatever else the architecture carries between layers; computed
        or being computed.

        Raises PippinError when the lane is unknown or has another number of rows.
        """
        if self.start != 0:
            raise PippinError(f"Layers {self.start} to {self.end} are not a driver's.")
        if tokens.ndim != 2 or tokens.shape[1] < 1:
            raise PippinError(f"Tokens of shape {tokens.shape} are no step.")
        return self._step(lane, tokens, (), lengths)

    def run(
        self, lane: int, tensors: Sequence[mx.array], tokens: mx.array | None = None, lengths: Sequence[int] = ()
    ) -> tuple[mx.array, ...]:
        """A stage's part of a step: what `begin` or `run` of the stage before gave, to what the next one needs.

        `tokens`, int32 [rows, length], are needed when `plan.reads_tokens`.

        Raises PippinError when the lane is unknown or the tensors don't fit it.
        """
        rows, length = self._check_shapes(self.start, tensors)
        if self.plan.reads_tokens and (tokens is None or tokens.shape != (rows, length)):
            raise PippinError(f"{self.plan.model_type} layers need the {rows}x{length} tokens of the step.")
        if tokens is not None and not 0 <= int(mx.min(tokens)) <= int(mx.max(tokens)) < self.plan.vocabulary:
            raise PippinError(f"A token of the step is not among the model's {self.plan.vocabulary}.")
        return self._step(lane, mx.zeros((rows, length), mx.int32) if tokens is None else tokens, tensors, lengths)

    def finish(self, tensors: Sequence[mx.array], lengths: Sequence[int] = (), *, every: bool = False) -> mx.array:
        """The driver's second half of a step: final norm and head over what the last stage gave.

        Returns logits, not evaluated: [rows, vocabulary] of each row's last valid token, or [rows, length, vocabulary]
        of `every` token.

        Raises PippinError when the tensors don't fit the model.
        """
        rows, length = self._check_shapes(self.plan.layers, tensors)
        if not every:
            tensors = self.last(tensors, lengths)
            length = 1
        (logits,) = self._tail(mx.zeros((rows, length), mx.int32), make_prompt_cache(self.model), tensors)
        return logits if every else logits[:, -1]

    def hidden(self, tensors: Sequence[mx.array]) -> mx.array:
        """What the head would get of what the last stage gave: [rows, length, width] after the final norm, not evaluated.

        Raises ModelUnsupported when the architecture does not tell it, PippinError when the tensors don't fit the model.
        """
        rows, length = self._check_shapes(self.plan.layers, tensors)
        shape = (rows, length, self.plan.width)
        with record_outputs(self.model) as seen:
            self._tail(mx.zeros((rows, length), mx.int32), make_prompt_cache(self.model), tensors)
        found = next((array for array in reversed(seen) if array.shape == shape), None)
        if found is None or not self.plan.embeds:
            raise ModelUnsupported(f"{self.plan.model_type} models give no embeddings.")
        return found

    def part(self, tensors: Sequence[mx.array], row: int, begin: int, end: int) -> tuple[mx.array, ...]:
        """Of what the last stage gives, only the tokens [begin, end) of one row."""
        rows, tokens = mx.array([row]), mx.arange(begin, end)
        return tuple(
            mx.take(mx.take(tensor, rows, shape.index(ROWS)), tokens, shape.index(LENGTH))
            for tensor, shape in zip(tensors, self.plan.shapes[self.plan.layers], strict=True)
        )

    def finite(self, tensors: Sequence[mx.array], lengths: Sequence[int] = ()) -> mx.array:
        """Of what `begin` or `run` gave, bool [rows]: whether each row's last valid token is finite numbers. On its way
        to be computed.
        """
        shape = self.plan.shapes[self.end][0]
        found = mx.isfinite(_last_tokens(tensors[0], shape, lengths))
        found = mx.all(found, axis=[axis for axis in range(found.ndim) if axis != shape.index(ROWS)])
        mx.async_eval(found)  # type: ignore[no-untyped-call]
        return found

    def last(self, tensors: Sequence[mx.array], lengths: Sequence[int] = ()) -> tuple[mx.array, ...]:
        """Of what the last stage gives, only each row's last valid token: all that `finish` needs to draw from."""
        shapes = self.plan.shapes[self.plan.layers]
        return tuple(_last_tokens(tensor, shape, lengths) for tensor, shape in zip(tensors, shapes, strict=True))

    def _step(
        self, number: int, tokens: mx.array, tensors: Sequence[mx.array], lengths: Sequence[int]
    ) -> tuple[mx.array, ...]:
        lane = self.lanes.lane(number)
        rows, length = tokens.shape
        if rows != len(lane.positions) or (lengths and len(lengths) != rows):
            raise PippinError(f"Lane {number} has {len(lane.positions)} sessions, but the step has {rows}.")
        if lengths and not all(0 <= valid <= length for valid in lengths):
            raise PippinError(f"Lengths {list(lengths)} do not fit a step of {length} tokens.")
        padded = any(valid != length for valid in lengths)
        if padded and not self.plan.pads:
            raise PippinError(f"A step of a {self.plan.model_type} model cannot be right-padded.")
        if padded:
            caches.right_pad(lane.caches, lengths, length)
        output = self._body(tokens, [lane.caches[entry] for entry in self._entries], tensors)
        for shadow in lane.caches[len(self._own) :]:
            caches.advance_shadow(shadow, rows, length)
        if padded:
            for cache in lane.caches:
                if not cache.empty():
                    cache.finalize()
        lane.positions = [p + n for p, n in zip(lane.positions, lengths or [length] * rows, strict=True)]
        if length == 1:
            # The thread goes on to build what comes next (head, sampling) while the device computes.
            mx.async_eval(output, caches.states(lane.caches))  # type: ignore[no-untyped-call]
        else:
            mx.eval(output, caches.states(lane.caches))
            mx.clear_cache()  # a prefill's buffers have sizes that do not come again
        return output

    def _check_shapes(self, cut: int, tensors: Sequence[mx.array]) -> tuple[int, int]:
        """Rows and length of what travels at a cut. Raises PippinError when it has another shape."""
        shapes = self.plan.shapes[cut]
        got = [tuple(tensor.shape) for tensor in tensors]
        if len(got) == len(shapes) and len(got[0]) == len(shapes[0]):
            length = got[0][shapes[0].index(LENGTH)]
            rows = got[0][shapes[0].index(ROWS)]
            sizes = {ROWS: rows, LENGTH: length}
            if rows > 0 < length and got == [tuple(sizes.get(size, size) for size in shape) for shape in shapes]:
                return rows, length
        raise PippinError(f"Tensors of shapes {got} are not what layer {cut} of {self.plan.model_type} takes.")


def _fresh(model: Module, wanted: Sequence[int]) -> list[Any]:
    """Empty caches, those of the whole model that are wanted. Not a method: lanes would hold on to their stage."""
    new = make_prompt_cache(model)
    return [new[k] for k in wanted]


def _last_tokens(tensor: mx.array, shape: Sequence[int], lengths: Sequence[int]) -> mx.array:
    """Of what travels, only each row's last valid token."""
    axis = shape.index(LENGTH)
    length = tensor.shape[axis]
    if length == 1:
        return tensor
    if not any(valid != length for valid in lengths):
        return mx.take(tensor, mx.array([length - 1]), axis)
    index = mx.array([max(valid, 1) - 1 for valid in lengths])
    index = index.reshape([-1 if k == shape.index(ROWS) else 1 for k in range(tensor.ndim)])
    return mx.take_along_axis(tensor, index, axis)
