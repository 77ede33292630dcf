"""Finds out how many tokens of one session a step may have, such that no bit of a token's result depends on the others.

Kernels differ with the number of rows, and then add in another order. So counts of tokens fall into groups of equal bits,
which depend on the device, its libraries, and the format and shape of the weights: they are tried, not looked up. Runs in
the compute thread.
"""

import hashlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain, product
from typing import Protocol

import mlx.core as mx

from node.core.frames import Open
from node.core.row_family import Groups, equal_in_both
from node.engine import caches
from node.engine.device import is_gpu
from node.engine.dry_run import LENGTH
from node.engine.graph import common_dtype, weights_in
from node.engine.layer_kinds import HEAD
from node.engine.plan import Plan
from node.engine.stage import Stage
from node.engine.tensor_codec import pack

MOST = 5
"""Most tokens of a step that is tried. So many tokens are computed with steps of each count."""
CONTEXTS = (64, 1100, 4200, 8300, 16_500, 33_000, 66_000)
"""Tokens before them: between the lengths at which attention on Metal changes its kernels, and beyond the last one."""
_MOST_S = 4.0
"""A Mac needs much less."""
_TRIAL = 40
"""Steps of a trial: for each count, with three numbers of right tokens, those that compute MOST tokens."""
_MOST_KV = 512 * 2**20
"""Bytes of KV of a layer with the longest context that is tried."""
_WARM_UP = 8
"""Tokens whose KV the others are made of."""
_LANE = -1


def equal_rows(stage: Stage, layer_s: float, head_s: float) -> Generator[float, None, Groups]:
    """The counts from 1 to MOST, in groups: steps of all counts of a group give each token the same result and leave the same
    KV, whatever its place in the step and whatever comes after it. Counts of which not even that is true are in no group.

    A generator of pieces, for `Compute.run_pieces`. It tries one layer of each kind, alone, and at the driver the head: the KV
    of one layer suffices, and a hundred equal layers take no longer than two. That takes _TRIAL steps of each of them, with
    each of the model's contexts and in the caches of a single session and of several. What was not tried is not proven: a device
    that would need more than about _MOST_S has ((1,),), as have layers with more KV than _MOST_KV, and a model whose caches can't
    be trimmed. `layer_s`, `head_s`: the seconds of such a step of one token.
    """
    plan = stage.plan
    places = [place for kind, place in stage.kinds.items() if kind != HEAD]
    # A CPU's kernels for attention do not depend on the context otherwise.
    tried = CONTEXTS if is_gpu() else CONTEXTS[:2]
    contexts = [context for context in tried if context + MOST <= plan.max_context]
    if not plan.trimmable or not contexts:
        return ((1,),)
    seconds = _TRIAL * (head_s + 2 * len(contexts) * len(places) * layer_s)
    kv_bytes = max(sum(cost.bytes_for(contexts[-1]) for cost in plan.kv[start:end]) for start, end in places)
    if seconds > _MOST_S or kv_bytes > _MOST_KV:
        return ((1,),)
    groups: Groups = (tuple(range(1, MOST + 1)),)
    try:
        for part in _parts(stage, places, contexts):
            groups = equal_in_both(groups, (yield from _try(chain.from_iterable(groups), part)))
    finally:
        mx.clear_cache()
    return groups


def _parts(stage: Stage, places: Sequence[tuple[int, int]], contexts: Sequence[int]) -> "Iterator[_Part]":
    plan = stage.plan
    dtype = common_dtype(weight for _, weight in weights_in(stage.model))
    if stage.start == 0:
        yield _Head(stage, dtype)
    for context, (start, end) in product(contexts, places):
        for batched in (False, True) if plan.batchable else (False,):
            yield _Layers(Stage(stage.model, plan, start, end), dtype, context, batched=batched)


class _Part(Protocol):
    """What is tried: MOST tokens, and as many others, of which wrong guesses are made."""

    def step(self, rows: Sequence[int], right: int) -> list[mx.array]:
        """Compute these tokens, in one step, and take all but the first `right` back. Returns their results."""

    def end(self) -> list[mx.array]:
        """Take all tokens back. Returns their KV."""


def _try(counts: Iterable[int], part: _Part) -> Generator[float, None, Groups]:
    """Compute the tokens with steps of each count, so that each is at each place, and before right and wrong ones. Returns the
    counts in groups of equal bits.
    """
    groups: dict[bytes, list[int]] = {}
    for count in counts:
        digests = set()
        for right in {1, count // 2 + 1, count}:
            steps = []
            for first in range(0, MOST, right):
                last = min(first + right, MOST)
                wrong = [MOST + (first + place) % MOST for place in range(count - (last - first))]
                steps.append(part.step([*range(first, last), *wrong], last - first))
            results = [mx.concatenate(list(parts), axis=1) for parts in zip(*steps, strict=True)]
            bits = pack([*results, *part.end()])
            digests.add(hashlib.blake2b(b"".join(tensor.data for tensor in bits)).digest())
            yield 0.0
        if len(digests) == 1:
            groups.setdefault(digests.pop(), []).append(count)
    return tuple(map(tuple, groups.values()))


class _Head:
    """The driver's final norm and head."""

    def __init__(self, stage: Stage, dtype: mx.Dtype) -> None:
        self._stage = stage
        self._hidden = _TriedRows(stage.plan, stage.plan.layers, dtype)

    def step(self, rows: Sequence[int], right: int) -> list[mx.array]:
        return [self._stage.finish(self._hidden.take(rows), every=True)[:, :right]]

    def end(self) -> list[mx.array]:
        return []


class _Layers:
    """Layers, and a session with a context of random KV; `batched`, if others have left its lane."""

    def __init__(self, stage: Stage, dtype: mx.Dtype, context: int, *, batched: bool) -> None:
        self._stage = stage
        self._hidden = _TriedRows(stage.plan, stage.start, dtype)
        key = mx.random.key(2)
        self._tokens = mx.random.randint(0, stage.plan.vocabulary, (1, 2 * MOST), mx.int32, key)
        stage.lanes.apply(Open(_LANE))
        stage.run(_LANE, mx.zeros((1, _WARM_UP), mx.int32), _TriedRows(stage.plan, stage.start, dtype, _WARM_UP).all)
        self._lane = stage.lanes.lane(_LANE)
        for cache in caches.parts(self._lane.caches):
            if not cache.empty():
                cache.update_and_fetch(*(_continued(kv, context - _WARM_UP) for kv in caches.keys_and_values(cache)))
        self._lane.positions = [context]
        if batched:
            self._lane.caches = [caches.batched(cache) for cache in self._lane.caches]
        mx.eval(caches.states(self._lane.caches))

    def step(self, rows: Sequence[int], right: int) -> list[mx.array]:
        tokens = mx.take(self._tokens, mx.array(list(rows)), axis=1)
        outputs = self._stage.run(_LANE, tokens, self._hidden.take(rows), unverified=len(rows) - 1)
        self._lane.trim(len(rows) - right)
        shapes = self._stage.plan.shapes[self._stage.end]
        return [
            mx.moveaxis(output, shape.index(LENGTH), 1)[:, :right]
            for output, shape in zip(outputs, shapes, strict=True)
            if LENGTH in shape
        ]

    def end(self) -> list[mx.array]:
        kept = [caches.keys_and_values(part) for part in caches.parts(self._lane.caches) if not part.empty()]
        kv = [mx.contiguous(each[..., -MOST:, :]) for pair in kept for each in pair]
        mx.eval(kv)  # before the next steps overwrite it
        self._lane.trim(MOST)
        return kv


class _TriedRows:
    """Random tokens in the form that is sent at a cut."""

    def __init__(self, plan: Plan, cut: int, dtype: mx.Dtype, length: int = 2 * MOST) -> None:
        key = mx.random.key(1)
        self._shapes = plan.shapes.get(cut, ())
        self.all = [mx.random.normal(shape, dtype=dtype, key=key) for shape in plan.shapes_at(cut, 1, length)]

    def take(self, rows: Sequence[int]) -> list[mx.array]:
        return [
            mx.take(array, mx.array(list(rows)), shape.index(LENGTH)) if LENGTH in shape else array
            for array, shape in zip(self.all, self._shapes, strict=True)
        ]


def _continued(kv: mx.array, tokens: int) -> mx.array:
    """So many more tokens, like those of keys or values [rows, heads, tokens, size]: with noise, unless they are packed."""
    copies = mx.concatenate([kv] * -(-tokens // kv.shape[2]), axis=2)[..., :tokens, :]
    if not mx.issubdtype(kv.dtype, mx.floating):
        return copies
    return copies * (1 + 0.5 * mx.random.normal(copies.shape, dtype=kv.dtype, key=mx.random.key(3)))
