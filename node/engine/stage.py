"""A stage: the layers of a model on one node, and their steps. Runs in the compute thread."""

import copy
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import QuantizedEmbedding
from mlx_lm.models.cache import make_prompt_cache

from node.core.axes import Span
from node.core.errors import ModelUnsupported, PippinError
from node.core.frames import SequenceId
from node.core.row_family import LayerKind
from node.engine import caches
from node.engine.dry_run import LENGTH, ROWS
from node.engine.ghosts import PartialModel, Place, around_layers, changed_output, find_layers, record_outputs
from node.engine.kv_blocks import (
    Block,
    block_layout,
    can_be_cut,
    copied,
    cut_block,
    fill,
    fits,
    has_state,
    state_layout,
)
from node.engine.lanes import CacheLane, Lanes, LeftoverKv
from node.engine.layer_kinds import kinds_of
from node.engine.mutual import Mutual
from node.engine.plan import Plan
from node.engine.rotation import Positions, Rotation
from node.engine.tower import Splice
from node.kv.blocks import BLOCK

_CLEAR_STEPS = 256
"""Steps of decoding between two clears of MLX's free buffers, as in mlx-lm. Caches grow every 256 tokens, and nothing
needs the smaller buffers that are then freed."""
_SHORT = 8
"""Most tokens of a prompt that are computed as a step of decoding: a draft model or MTP layer follows a session by so many at a time,
and would empty MLX's free buffers with each guess.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A weight in memory, which several stages may have: each has this object, so that it is counted once."""

    nbytes: int
    wired: int = 0
    """Bytes of them that are wired."""
    layer: int | None = None
    """The layer that it is of; None for one outside of layers."""


class Stage:
    """The layers [start, end) of a model. The driver's stage, with start 0, also has embedding, final norm and head.

    `model`, `plan`, `start`, `end`, `weights`, by their paths in the model, and `weight_bytes` are constant. `lanes`: its
    caches. `leftover`: those of ended rings.
    """

    def __init__(
        self, model: Module, plan: Plan, start: int, end: int, weights: Mapping[str, Weight] = MappingProxyType({})
    ) -> None:
        self.plan = plan
        self.start = start
        self.end = end
        self.weights = weights
        self.weight_bytes = sum(weight.nbytes for weight in weights.values())
        self.model = model
        self.placing: Rotation | Positions | Mutual | None = getattr(model, "placing", None)
        """Of the layers, if a picture's places have other positions than a text, or see each other."""
        layers = list(find_layers(model))
        self._body = PartialModel(model, layers, start, end, plan.patterns, plan.carried)
        self._tail = PartialModel(model, layers, plan.layers, plan.layers, plan.patterns, plan.carried)
        self._choose_caches()
        self._decoded = 0
        """Steps of decoding so far."""
        self.leftover = LeftoverKv()
        self.lanes = Lanes(model, (*self._own, *self._shadows), plan, f"layers {start}-{end - 1}")

    @property
    def begins_ahead(self) -> bool:
        """Whether it is a whole ring, and a step can begin before the token of the one before it is read."""
        return self.plan.steps_back and (self.start, self.end) == (0, self.plan.layers)

    @cached_property
    def kinds(self) -> Mapping[LayerKind, tuple[int, int]]:
        """The first layers [start, end) of each kind."""
        return kinds_of(self.model, self.plan, self.start, self.end)

    @cached_property
    def _around(self) -> Sequence[Place]:
        """The modules around the layers."""
        return around_layers(self.model)

    @cached_property
    def _embedding(self) -> Place:
        """The module that embeds tokens. Raises ModelUnsupported if there is none."""
        named: Any = self.model.named_modules()  # type: ignore[no-untyped-call]
        for path, module in named:
            # Gemma has one for each layer beside that of the tokens, and Qwen in some layers that of n-grams.
            is_other = path.startswith("tower.") or path.endswith("_per_layer") or ".layers." in path
            if isinstance(module, Embedding | QuantizedEmbedding) and not is_other:
                parent: Any = self.model
                *above, name = path.split(".")
                for step in above:
                    parent = parent[step]
                return parent, name, module
        raise ModelUnsupported(f"{self.plan.model_type} models have no embedding into which pictures could come.")

    def sibling(self) -> "Stage":
        """A stage of another ring, with the same weights, the same `leftover`, and caches of its own."""
        other = copy.copy(self)
        other.lanes = self.lanes.sibling()
        return other

    def _choose_caches(self) -> None:
        """Choose the caches of this stage, and for each of another stage, from which models may make masks, an alias: a
        cache of the same kind here, which gives the same mask. For a kind without one, a shadow is made: a cache of
        tiny zeros that only counts positions.
        """
        used = {cache for layer in self.plan.caches_of for cache in layer}
        own = {cache for layer in self.plan.caches_of[self.start : self.end] for cache in layer}
        if self.start == 0:
            own |= set(range(self.plan.caches)) - used  # caches of an embedding
        self._own = sorted(own)
        new = caches.empty_caches(self.model, self.plan.kv_bits)
        whole = range(self._own[0], self._own[-1] + 1) if self._own else range(0)
        of = {k: list(caches.parts([new[k]])) for k in whole}
        can_be_stored = all(can_be_cut(part) or has_state(part) for each in of.values() for part in each)
        fits = not self.plan.chunked and list(whole) == self._own and can_be_stored
        self.blocks_of = whole if fits else range(0)
        """The caches, by their numbers in the model, whose KV can be on disks: all of this stage, or none."""
        self.cut_caches = frozenset(k for k, each in of.items() if any(map(can_be_cut, each)))
        """Those that have something in a block."""
        self.state_caches = frozenset(k for k, each in of.items() if any(map(has_state, each)))
        """Those that have a state."""
        self._probed: dict[int, Any] = {}
        """Those caches after a token, of which nothing is computed; empty until they are asked for. Siblings share it."""
        kinds = [caches.kind(cache) for cache in new]
        first: dict[Any, int] = {}
        for k in (*self._own, *range(len(kinds))):
            first.setdefault(kinds[k], k)
        self._shadows = [k for k in first.values() if k not in own]
        held = [*self._own, *self._shadows]
        self._entries = [held.index(k if k in own else first[kind]) for k, kind in enumerate(kinds)]

    # --- KV on disk ---

    def block(self, number: SequenceId, index: int) -> Block | None:
        """A copy of a block of a sequence, of this ring or left by one; None if there is no such sequence any more, or a value
        is not finite.
        """
        lane, row = self.lanes.find(number, self.leftover) or (None, 0)
        if not lane or lane.positions[row] < (index + 1) * BLOCK:
            return None
        return cut_block(dict(zip(self._own, lane.caches, strict=False)), row, index)

    def state(self, number: SequenceId) -> Block | None:
        """A copy of the state of a sequence that the last Store kept; None if there is none, or a value is not finite."""
        kept = self.lanes.states.pop(number, None)
        return copied({k: kept[k] for k in self._own}) if kept else None

    def restore(
        self, prefix: SequenceId, blocks: Sequence[Block], state: Block | None, tokens: int
    ) -> Generator[float, None, int]:
        """Make a prefix of the first `tokens` of a sequence, in pieces: of its blocks, if this stage has any, and where the
        plan is not trimmable of the state behind them, if it has any. Returns how many of these come before the first one that this stage
        could not have made. If there is such a one, blocks alone become a shorter prefix, and a state none.
        """
        if not self._probed:
            probed = caches.empty_caches(self.model, self.plan.kv_bits)
            self.model(mx.zeros((1, 1), mx.int32), cache=probed)  # computes nothing
            self._probed |= {k: probed[k] for k in self._own}
        wanted = block_layout({k: self._probed[k] for k in sorted(self.cut_caches)})
        whole = next((k for k, block in enumerate(blocks) if not fits(block, wanted)), len(blocks))
        if self.plan.trimmable:
            tokens = whole * BLOCK
        else:
            wanted = state_layout({k: self._probed[k] for k in sorted(self.state_caches)}, tokens)
            if whole < len(blocks) or not fits(state or {}, wanted):
                return whole
        if tokens:
            new = caches.empty_caches(self.model, self.plan.kv_bits)
            filled = {k: new[k] for k in self._own}
            yield from fill(filled, blocks[:whole], state, tokens)
            self.lanes.add_prefix(prefix, filled, tokens)
        return whole + (state is not None)

    # --- steps ---

    def run(
        self,
        number: SequenceId,
        tokens: mx.array | None,
        tensors: Sequence[mx.array] = (),
        lengths: Sequence[int] = (),
        *,
        wanted: bool = True,
        unverified: int = 0,
        deferred: bool = False,
        splice: Splice | None = None,
        shifts: Sequence[int] = (),
        spans: Sequence[Span] = (),
    ) -> tuple[mx.array, ...]:
        """Run the layers on a step of the lane of this number.

        `tokens`: int32 [rows, length] of the vocabulary, which need not be evaluated; only the driver and models with
        `plan.reads_tokens` need them. `tensors`: what the stage before has returned; none at the driver. `lengths`: valid
        tokens of each row of a right-padded prefill; empty if all rows are full. `unverified`: see Frame.unverified. A step
        of several tokens is one of a prompt, unless some of them may be taken back. `splice`: embeddings of pictures among the
        tokens of the only row. `shifts`, `spans`: as of Frame.

        Returns hidden states [rows, length, width] and any other arrays that the architecture sends between layers;
        their evaluation has begun. Unless they are `wanted`, only the caches are computed, and it returns none.
        `deferred`: unless the step is a longer one of a prompt, its evaluation has not begun: the caller begins it, with
        what it makes of the result and with `states`.

        Raises PippinError if the lane is unknown, or if the step does not fit it or these layers.
        """
        lane = self.lanes.lane(number)
        tokens = self._checked(tokens, tensors)
        rows, length = tokens.shape
        if rows != len(lane.positions) or (lengths and len(lengths) != rows):
            raise PippinError(f"Lane {number} has {len(lane.positions)} sessions, but the step has {rows}.")
        if lengths and not all(0 <= valid <= length for valid in lengths):
            raise PippinError(f"Lengths {list(lengths)} do not fit a step of {length} tokens.")
        padded = any(valid != length for valid in lengths)
        if padded and not self.plan.pads:
            raise PippinError(f"A step of a {self.plan.model_type} model cannot be right-padded.")
        self.lanes.begin_step(number, unverified, length)
        if padded:
            for cache in lane.caches:
                cache.prepare(lengths=list(lengths), right_padding=[length - valid for valid in lengths])
        embedded = changed_output(self._embedding, splice.into) if splice else nullcontext()
        changes = splice.behind(self.plan.width) if splice else ()
        with embedded, self._placed(lane, length, shifts, spans):
            output = self._body(tokens, [lane.caches[entry] for entry in self._entries], tensors, changes)
        output = output if wanted else ()  # the last layer may then do less: that of a model with shared KV, nothing
        caches.advance_shadows(lane.caches[len(self._own) :], rows, length)
        if padded:
            for cache in lane.caches:
                if not cache.empty():
                    cache.finalize()
        lane.positions = [p + n for p, n in zip(lane.positions, lengths or [length] * rows, strict=True)]
        self._evaluate(lane, output, is_prompt=length > _SHORT and not unverified, deferred=deferred)
        return output

    def _placed(
        self, lane: CacheLane, length: int, shifts: Sequence[int], spans: Sequence[Span]
    ) -> AbstractContextManager[None]:
        """Raises PippinError if they do not fit the step or the layers."""
        if not (shifts or spans):
            return nullcontext()
        rows = len(lane.positions)
        fits = rows == 1 and sum(span.tokens for span in spans) == length if spans else len(shifts) == rows
        if not fits or self.placing is None:
            raise PippinError(
                f"Positions of {len(shifts)} rows and {len(spans)} spans do not fit a step of {rows}x{length}."
            )
        return self.placing.at(lane.caches, shifts, spans)

    def _checked(self, tokens: mx.array | None, tensors: Sequence[mx.array]) -> mx.array:
        """The tokens of a step, or zeros where no layer reads them. Raises PippinError for a step that does not fit."""
        if self.start == 0:
            if tokens is None or tensors or tokens.ndim != 2 or tokens.shape[1] < 1:
                raise PippinError(f"Tokens of shape {getattr(tokens, 'shape', None)} are no step.")
            return tokens
        shape = self._check_shapes(self.start, tensors)
        if not self.plan.reads_tokens:
            return mx.zeros(shape, mx.int32)
        if tokens is None or tokens.shape != shape:
            raise PippinError(f"{self.plan.model_type} layers need the {shape[0]}x{shape[1]} tokens of the step.")
        return tokens

    def finish(
        self, tensors: Sequence[mx.array], lengths: Sequence[int] = (), *, unverified: int = 0, every: bool = False
    ) -> mx.array:
        """The driver's end of a step: final norm and head on the result of the last stage.

        Returns logits, not evaluated: [rows, vocabulary] of each row's last valid token, or as for `last` those of the
        tokens that guesses follow, [tokens, vocabulary]; with `every` [rows, length, vocabulary] of all tokens. Raises
        PippinError if the tensors do not fit the model.
        """
        rows, length = self._check_shapes(self.plan.layers, tensors)
        if not every:
            length = min(length, unverified + 1)
            tensors = self.last(tensors, lengths, unverified)
        (logits,) = self._tail(mx.zeros((rows, length), mx.int32), make_prompt_cache(self.model), tensors)
        return logits if every else logits.reshape(rows * length, -1)

    def hidden(self, tensors: Sequence[mx.array]) -> mx.array:
        """Hidden states [rows, length, width] after the final norm, the input of the head, not evaluated. Raises
        ModelUnsupported if they are inaccessible in this architecture, PippinError if the tensors do not fit it.
        """
        rows, length = self._check_shapes(self.plan.layers, tensors)
        shape = (rows, length, self.plan.width)
        with record_outputs(self._around) as seen:
            self._tail(mx.zeros((rows, length), mx.int32), make_prompt_cache(self.model), tensors)
        found = next((array for array in reversed(seen) if array.shape == shape), None)
        if found is None or not self.plan.embeds:
            raise ModelUnsupported(f"{self.plan.model_type} models give no embeddings.")
        return found

    def part(self, tensors: Sequence[mx.array], row: int, begin: int, end: int) -> tuple[mx.array, ...]:
        """Slice the result of the last stage: the tokens [begin, end) of one row."""
        rows, tokens = mx.array([row]), mx.arange(begin, end)
        return tuple(
            mx.take(mx.take(tensor, rows, shape.index(ROWS)), tokens, shape.index(LENGTH))
            for tensor, shape in zip(tensors, self.plan.shapes[self.plan.layers], strict=True)
        )

    def finite(self, tensors: Sequence[mx.array], lengths: Sequence[int] = (), unverified: int = 0) -> mx.array:
        """Whether the result of `run` is finite at each of the tokens of `last`: bool [rows] or [tokens], not evaluated."""
        shape = self.plan.shapes[self.end][0]
        found = mx.isfinite(_last_tokens(tensors[0], shape, lengths, unverified))
        kept = (shape.index(ROWS), shape.index(LENGTH))
        return mx.all(found, axis=[axis for axis in range(found.ndim) if axis not in kept]).reshape(-1)

    def states(self, lane: int) -> list[mx.array]:
        """All arrays of a lane's caches. Raises PippinError if the lane is unknown."""
        return caches.states(self.lanes.lane(lane).caches)

    def last(
        self, tensors: Sequence[mx.array], lengths: Sequence[int] = (), unverified: int = 0
    ) -> tuple[mx.array, ...]:
        """Slice the result of the last stage: each row's last valid token, and the tokens before it that are followed by
        guesses, of which the step has `unverified` or fewer. They suffice for `finish`.
        """
        shapes = self.plan.shapes[self.plan.layers]
        pairs = zip(tensors, shapes, strict=True)
        return tuple(_last_tokens(tensor, shape, lengths, unverified) for tensor, shape in pairs)

    def _evaluate(self, lane: CacheLane, output: Sequence[mx.array], *, is_prompt: bool, deferred: bool) -> None:
        """Compute a step of a prompt, or begin another one unless it is `deferred`."""
        if is_prompt:
            mx.eval(output, caches.states(lane.caches))
            mx.synchronize()  # an array may be there before the failure of earlier work is
            mx.clear_cache()  # buffers of a prefill have sizes that are not reused
            return
        if not deferred:
            # The thread builds the next graph (head, sampling) while the device computes. The caches come second: in one
            # evaluation MLX updates some of them late, and copies those whose update still runs when the next step begins.
            mx.async_eval(output)  # type: ignore[no-untyped-call]
            mx.async_eval(caches.states(lane.caches))  # type: ignore[no-untyped-call]
        self._decoded += 1
        if self._decoded % _CLEAR_STEPS == 0:
            mx.clear_cache()

    def _check_shapes(self, cut: int, tensors: Sequence[mx.array]) -> tuple[int, int]:
        """Rows and length of the arrays sent at a cut. Raises PippinError if their shapes are wrong."""
        shapes = self.plan.shapes.get(cut, ())
        got = [tuple(tensor.shape) for tensor in tensors]
        if shapes and len(got) == len(shapes) and len(got[0]) == len(shapes[0]):
            length = got[0][shapes[0].index(LENGTH)]
            rows = got[0][shapes[0].index(ROWS)]
            if rows > 0 < length and got == self.plan.shapes_at(cut, rows, length):
                return rows, length
        raise PippinError(f"Tensors of shapes {got} are not what layer {cut} of {self.plan.model_type} takes.")


def _last_tokens(tensor: mx.array, shape: Sequence[int], lengths: Sequence[int], unverified: int) -> mx.array:
    """Slice an array that is sent between stages: see Stage.last."""
    axis = shape.index(LENGTH)
    length = tensor.shape[axis]
    if length <= unverified + 1:
        return tensor
    if not any(valid != length for valid in lengths):
        return mx.take(tensor, mx.arange(length - 1 - unverified, length), axis)
    index = mx.array([max(valid, 1) - 1 for valid in lengths])
    index = index.reshape([-1 if k == shape.index(ROWS) else 1 for k in range(tensor.ndim)])
    return mx.take_along_axis(tensor, index, axis)
