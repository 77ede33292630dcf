"""Runs layers once before the first request does, so that its kernels are compiled. In pieces, as other rings compute meanwhile."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import mlx.core as mx
from mlx.nn.layers.base import Module

from node.core.frames import Merge, Open
from node.core.generation import Sampling
from node.core.row_family import LayerKind
from node.engine.caches import empty_caches
from node.engine.device import probe_tokens
from node.engine.ghosts import PartialModel, find_layers
from node.engine.layer_kinds import HEAD
from node.engine.plan import Plan
from node.engine.sampling import Draw, History, begin_draw
from node.engine.stage import Stage

_SAMPLINGS = (Sampling(temperature=0), Sampling(top_p=0.9))


def warm_up(
    stage: Stage, warm: frozenset[LayerKind] = frozenset(), ran: frozenset[int] = frozenset()
) -> Iterator[float]:
    """Run the first layer of each kind, in pieces, as the first requests will, so that kernels are compiled before them; the others
    make one step, as memory takes longer the first time. `warm`: kinds, and `ran`: layers, that other stages have run.
    """
    model, plan, compiled = stage.model, stage.plan, set(warm)
    cuts = [stage.start, *(cut for cut in plan.cuts if stage.start < cut < stage.end), stage.end]
    sent = _dtypes_sent(model, plan)
    for first, last in pairwise(cuts):
        if not ran.issuperset(range(first, last)):
            layers = Stage(model, plan, first, last)
            kinds = layers.kinds.keys() - {HEAD}
            _warm_up_layer(layers, sent[first], is_first=not kinds <= compiled)
            compiled |= kinds
            yield 0.99
    if HEAD in stage.kinds and HEAD not in compiled:
        tail = Stage(model, plan, 0, cuts[1])
        for rows in (1, 2):
            logits = tail.finish(_zeros(plan.shapes_at(plan.layers, rows, 1), sent[plan.layers]))
            for sampling in _SAMPLINGS:
                begin_draw(logits, [Draw(sampling, 0, History())] * rows).read()
        mx.clear_cache()
        yield 0.99


def _dtypes_sent(model: Module, plan: Plan) -> dict[int, list[mx.Dtype]]:
    """Dtypes of the arrays sent at each cut and at the end of the layers, which are not computed. They are those of the
    weights before the cut, or larger ones.
    """
    layers, sent = list(find_layers(model)), dict[int, list[mx.Dtype]]({0: []})
    for first, last in pairwise((0, *plan.cuts, plan.layers)):
        body = PartialModel(model, layers, first, last, plan.patterns, plan.carried)
        caches = empty_caches(model, plan.kv_bits)
        outputs = body(mx.zeros((1, 1), mx.int32), caches, _zeros(plan.shapes_at(first, 1, 1), sent[first]))
        sent[last] = [output.dtype for output in outputs]
    return sent


def _zeros(shapes: Iterable[Sequence[int]], dtypes: Iterable[mx.Dtype]) -> list[mx.array]:
    return [mx.zeros(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


def _warm_up_layer(stage: Stage, dtypes: Sequence[mx.Dtype], *, is_first: bool) -> None:
    """Run a prompt, a step of decoding, and one of two sessions; only a step unless it `is_first` of its kind."""
    one, other = 1, 2
    plan = stage.plan

    def step(lane: int, rows: int, length: int) -> None:
        hidden = _zeros(plan.shapes_at(stage.start, rows, length), dtypes)
        mx.eval(stage.run(lane, mx.zeros((rows, length), mx.int32), hidden))

    for lane in (one, other) if plan.batchable and is_first else (one,):
        stage.lanes.apply(Open(lane))
        if is_first:
            step(lane, 1, probe_tokens())
        step(lane, 1, 1)
    if plan.batchable and is_first:
        stage.lanes.apply(Merge(one, other))
        step(one, 2, 1)
    stage.lanes.clear()
