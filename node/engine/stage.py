"""A node's layers of a model and the caches of those layers: steps, and operations on caches.

Everything here runs in the compute thread.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import make_prompt_cache

from node.core.errors import ModelUnsupported, PippinError
from node.core.frames import CacheOp, Drop, Filter, Forget, Held, Keep, Merge, Open, Reuse
from node.engine import caches
from node.engine.dry_run import LENGTH, ROWS
from node.engine.ghosts import Cut, find_layers
from node.engine.plan import Plan
from node.engine.trunk import watched

_MOST_CACHES = 4096
"""Lanes and prefixes. A driver has one for each session and each prompt that it remembers: some hundreds at most."""


@dataclass
class _Lane:
    """Sessions that step together: one row each in every cache."""

    caches: list[Any]
    """Those of this stage's layers, then the shadows."""
    numbers: list[int]
    """For each row, the lane in which its session began: a name that stays when rows move."""
    positions: list[int] = field(default_factory=lambda: [0])
    """For each row, the tokens that its caches hold."""


class Stage:
    """The layers [start, end) of a model. The one with start 0, the driver's, has embedding, norm and head as well.

    `plan`, `start`, `end` and `weight_bytes` are constant.
    """

    def __init__(self, model: Module, plan: Plan, start: int, end: int, weight_bytes: int) -> None:
        self.plan = plan
        self.start = start
        self.end = end
        self.weight_bytes = weight_bytes
        self._model = model
        layers = list(find_layers(model))
        self._body = Cut(model, layers, start, end, plan.patterns, plan.carried)
        self._tail = Cut(model, layers, plan.layers, plan.layers, plan.patterns, plan.carried)
        self._lanes: dict[int, _Lane] = {}
        self._prefixes: dict[int, _Lane] = {}
        self._choose_caches()

    def sibling(self) -> "Stage":
        """Another with the same weights and caches of its own, for another ring."""
        other = copy.copy(self)
        other._lanes, other._prefixes = {}, {}  # noqa: SLF001 - of our own class
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
        kinds = [caches.kind(cache) for cache in make_prompt_cache(self._model)]
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
        rows, length = self._check(self.start, tensors)
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
        rows, length = self._check(self.plan.layers, tensors)
        if not every:
            tensors = self.last(tensors, lengths)
            length = 1
        (logits,) = self._tail(mx.zeros((rows, length), mx.int32), make_prompt_cache(self._model), tensors)
        return logits if every else logits[:, -1]

    def hidden(self, tensors: Sequence[mx.array]) -> mx.array:
        """What the head would get of what the last stage gave: [rows, length, width] after the final norm, not evaluated.

        Raises ModelUnsupported when the architecture does not tell it, PippinError when the tensors don't fit the model.
        """
        rows, length = self._check(self.plan.layers, tensors)
        shape = (rows, length, self.plan.width)
        with watched(self._model) as seen:
            self._tail(mx.zeros((rows, length), mx.int32), make_prompt_cache(self._model), tensors)
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

    def last(self, tensors: Sequence[mx.array], lengths: Sequence[int] = ()) -> tuple[mx.array, ...]:
        """Of what the last stage gives, only each row's last valid token: all that `finish` needs to draw from."""
        shapes = self.plan.shapes[self.plan.layers]
        return tuple(_last(tensor, shape, lengths) for tensor, shape in zip(tensors, shapes, strict=True))

    def _step(
        self, number: int, tokens: mx.array, tensors: Sequence[mx.array], lengths: Sequence[int]
    ) -> tuple[mx.array, ...]:
        lane = self._lane(number)
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

    def _check(self, cut: int, tensors: Sequence[mx.array]) -> tuple[int, int]:
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

    # --- caches ---

    @property
    def kv_bytes(self) -> int:
        """Bytes that all lanes and prefixes take now."""
        held = (*self._lanes.values(), *self._prefixes.values())
        return sum(caches.total_bytes(lane.caches) for lane in held)

    def apply(self, op: CacheOp) -> None:
        """Apply one cache operation. Raises PippinError when it does not fit; the caches are as before then."""
        if isinstance(op, Open | Keep | Reuse) and len(self._lanes) + len(self._prefixes) >= _MOST_CACHES:
            raise PippinError(f"There are {_MOST_CACHES} lanes and prefixes already: the driver has lost count.")
        match op:
            case Open(lane):
                self._lanes[lane] = _Lane(self._fresh(), [lane])
            case Merge(lane, source):
                self._merge(lane, source)
            case Filter(lane, rows):
                self._filter(lane, rows)
            case Drop(lane):
                self._lanes.pop(lane, None)
            case Keep(lane, row, prefix):
                self._keep(lane, row, prefix)
            case Reuse(lane, prefix, tokens):
                self._reuse(lane, prefix, tokens)
            case Forget(prefix):
                self._prefixes.pop(prefix, None)

    def clear(self) -> None:
        """Free all lanes and prefixes, and MLX's buffers."""
        self._lanes.clear()
        self._prefixes.clear()
        mx.clear_cache()

    def recall(self, held: Sequence[Held]) -> tuple[Held, ...]:
        """After a break, make prefixes of the sequences that are named, and free all else.

        Gives those that are here, with no more tokens than are here.
        """
        wanted = {each.number for each in held}
        for number in list(self._lanes):
            for row, name in enumerate(self._lanes[number].numbers):
                if name in wanted:
                    self._keep(number, row, name)
            del self._lanes[number]  # before the next one is copied
        self._prefixes = {number: kept for number, kept in self._prefixes.items() if number in wanted}
        mx.clear_cache()
        return tuple(here for each in held if (here := self._held(each)))

    def _held(self, asked: Held) -> Held | None:
        kept = self._prefixes.get(asked.number)
        tokens = min(kept.positions[0], asked.tokens) if kept else 0
        if kept and tokens and (self.plan.trimmable or kept.positions[0] == asked.tokens):
            return Held(asked.number, tokens)
        self._prefixes.pop(asked.number, None)
        return None

    def _fresh(self) -> list[Any]:
        new = make_prompt_cache(self._model)
        return [new[k] for k in (*self._own, *self._shadows)]

    def _lane(self, number: int) -> _Lane:
        if number not in self._lanes:
            raise PippinError(f"There is no lane {number} on layers {self.start} to {self.end}.")
        return self._lanes[number]

    def _merge(self, number: int, source: int) -> None:
        added = self._lane(source)
        if number == source:
            raise PippinError(f"Lane {number} cannot be merged with itself.")
        if number not in self._lanes:
            self._lanes[number] = self._lanes.pop(source)
            return
        if not self.plan.batchable:
            raise PippinError(f"Sessions of {self.plan.model_type} cannot share a lane.")
        lane = self._lanes[number]
        lane.caches = [caches.batched(cache) for cache in lane.caches]
        for cache, other in zip(lane.caches, added.caches, strict=True):
            cache.extend(caches.batched(other))
        mx.eval(caches.states(lane.caches))  # or the copies of several merges would pile up
        lane.numbers += added.numbers
        lane.positions += added.positions
        del self._lanes[source]

    def _filter(self, number: int, rows: Sequence[int]) -> None:
        lane = self._lane(number)
        if not rows or not all(0 <= row < len(lane.positions) for row in rows):
            raise PippinError(f"Lane {number} has no rows {list(rows)}: it has {len(lane.positions)}.")
        if len(lane.positions) > 1:
            for cache in lane.caches:
                cache.filter(list(rows))
        lane.numbers = [lane.numbers[row] for row in rows]
        lane.positions = [lane.positions[row] for row in rows]

    def _trim(self, lane: _Lane, tokens: int) -> None:
        if tokens == 0:
            return
        if not 0 < tokens <= min(lane.positions):
            raise PippinError(f"{tokens} tokens cannot be trimmed from {min(lane.positions)}.")
        if not all(cache.is_trimmable() for cache in lane.caches if not cache.empty()):
            raise PippinError(f"A cache of {self.plan.model_type} cannot go back {tokens} tokens.")
        for cache in lane.caches:
            if not cache.empty() and cache.trim(tokens) != tokens:
                raise PippinError(f"A cache of {self.plan.model_type} did not go back {tokens} tokens.")
        lane.positions = [position - tokens for position in lane.positions]

    def _keep(self, number: int, row: int, prefix: int) -> None:
        lane = self._lane(number)
        if not 0 <= row < len(lane.positions):
            raise PippinError(f"Lane {number} has no row {row}: it has {len(lane.positions)}.")
        fresh = self._fresh()  # for those that no layer fills, of which mlx-lm can't take a part
        kept = [
            new if cache.empty() else caches.single(cache, row) for cache, new in zip(lane.caches, fresh, strict=True)
        ]
        mx.eval(caches.states(kept))
        self._prefixes[prefix] = _Lane(kept, [prefix], [lane.positions[row]])

    def _reuse(self, number: int, prefix: int, tokens: int) -> None:
        if prefix not in self._prefixes:
            raise PippinError(f"There is no prefix {prefix} on layers {self.start} to {self.end}.")
        lane = copy.deepcopy(self._prefixes[prefix])
        lane.numbers = [number]
        self._trim(lane, lane.positions[0] - tokens)
        self._lanes[number] = lane


def _last(tensor: mx.array, shape: Sequence[int], lengths: Sequence[int]) -> mx.array:
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
