"""Measures how quickly this device computes a stage. Runs in the compute thread."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from node.core.frames import Open
from node.core.row_family import Groups
from node.engine.device import probe_tokens
from node.engine.ghosts import find_layers
from node.engine.graph import common_dtype, weights_in
from node.engine.row_probe import equal_rows
from node.engine.stage import Stage

_STEPS = (2, 8)
"""Minimum and maximum of steps of a kind. The quickest counts: other work on the machine only delays them."""
_ENOUGH_S = 0.2
"""No further step is made after this time."""
_LONG_S = 1.0
"""After this time not even the minimum of steps of several tokens is made."""
_LANE = -1


@dataclass(frozen=True, slots=True)
class Measured:
    bytes_per_s: float
    """Bytes of the layers' weights, per second of a step of one token."""
    tokens_per_s: float
    """Tokens per second of a chunk of a prompt."""
    head_s: float
    """Of the head in a step of one token; 0 if the stage has none."""
    groups: Groups
    """See equal_rows."""
    seconds: Mapping[int, float]
    """Of a step of so many tokens of one session, with the head at the driver."""


def measure(stage: Stage, groups: Groups = ()) -> Generator[float, None, Measured]:
    """Run some chunks of a prompt, some steps of one token, and where groups of counts have equal bits some of several.

    A generator of pieces, for `Compute.run_pieces`, each a step or five of a layer. `groups`: as of an earlier measurement, as
    bits don't change; empty if there was none.
    """
    layers = find_layers(stage.model)[stage.start : stage.end]
    weights = list({id(weight): weight for layer in layers for _, weight in weights_in(layer)}.values())
    dtype, size = common_dtype(weights), sum(weight.nbytes for weight in weights)
    del layers, weights  # they may be unloaded between two pieces, and are then freed one by one
    own = stage.sibling()
    own.lanes.apply(Open(_LANE))
    try:
        chunk = probe_tokens()
        prompt_s = yield from _quickest(partial(own.run, _LANE, *_random(own, own.start, chunk, dtype)))
        layers_s = yield from _quickest(partial(own.run, _LANE, *_random(own, own.start, 1, dtype)))
        head_s = (yield from _quickest(_head(own, 1, dtype))) if own.start == 0 else 0.0
        if not groups:
            groups = yield from equal_rows(stage, layers_s / (stage.end - stage.start), head_s)
        counts = sorted(count for group in groups for count in group if 2 in group or len(group) > 1)
        seconds = yield from _step_seconds(own, counts, dtype)
    finally:
        own.lanes.clear()
        mx.clear_cache()
    return Measured(size / layers_s, chunk / prompt_s, head_s, groups, seconds)


def _head(stage: Stage, count: int, dtype: mx.Dtype) -> Callable[[], list[mx.array]]:
    """The driver's end of a step of so many tokens."""
    _, hidden = _random(stage, stage.plan.layers, count, dtype)
    return lambda: [stage.finish(hidden, every=True)]


def _step_seconds(stage: Stage, counts: Sequence[int], dtype: mx.Dtype) -> Generator[float, None, dict[int, float]]:
    """The least seconds of steps of 1 and of these numbers of tokens, in turns, as they are compared. Their kernels are compiled.
    A slow stage leaves out the larger ones, and if it times only the first, that one too.

    Where one stage is the whole ring, a step of one token begins before the one before it is read, and then takes only what the
    slower of device and graph takes: that is what a step of several costs the ring.
    """
    inputs = {count: _random(stage, stage.start, count, dtype) for count in {1, *counts}} if counts else {}
    heads = {count: _head(stage, count, dtype) for count in inputs if stage.start == 0}
    seconds: dict[int, float] = {}
    spent, (least, most) = 0.0, _STEPS

    def begin_step(count: int) -> list[mx.array]:
        step = [*stage.run(_LANE, *inputs[count], unverified=count - 1), *(heads[count]() if heads else ())]
        mx.async_eval(step)  # type: ignore[no-untyped-call]
        return step

    for turn, count in enumerate(sorted(inputs) * most):
        if spent > (_ENOUGH_S if turn >= least * len(inputs) else _LONG_S):
            break
        mx.synchronize()
        before = begin_step(count) if count == 1 and stage.begins_ahead else []
        begin = time.perf_counter()
        step = begin_step(count)
        mx.eval(before or step)
        took = time.perf_counter() - begin
        seconds[count] = min(took, seconds.get(count, took))
        spent += took
        yield 0.0
    return seconds if len(seconds) > 1 else {}


def _random(stage: Stage, cut: int, length: int, dtype: mx.Dtype) -> tuple[mx.array, list[mx.array]]:
    """Tokens of one row, and the hidden states that come to a cut. With equal ones, a mixture of experts would read only a few
    experts.
    """
    key, plan = mx.random.key(0), stage.plan
    tokens = mx.random.randint(0, plan.vocabulary, (1, length), mx.int32, key)
    hidden = [mx.random.normal(shape, dtype=dtype, key=key) for shape in plan.shapes_at(cut, 1, length)]
    mx.eval(tokens, hidden)
    return tokens, hidden


def _quickest(step: Callable[[], Sequence[mx.array]]) -> Generator[float, None, float]:
    """The least seconds of some steps, without the first one, which compiles kernels."""
    seconds: list[float] = []
    least, most = _STEPS
    while len(seconds) <= least or (len(seconds) <= most and sum(seconds[1:]) < _ENOUGH_S):
        mx.synchronize()  # a ring may have begun a step ahead
        begin = time.perf_counter()
        mx.eval(step())
        seconds.append(time.perf_counter() - begin)
        yield 0.0
    return min(seconds[1:])
