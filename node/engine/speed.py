"""Measures how quickly this device computes a stage. Runs in the compute thread."""

import time
from collections.abc import Generator

import mlx.core as mx

from node.core.frames import Open
from node.engine.device import probe_tokens
from node.engine.ghosts import find_layers
from node.engine.graph import common_dtype, weights_in
from node.engine.stage import Stage

_STEPS = (2, 8)
"""Minimum and maximum of steps of a kind. The quickest counts: other work on the machine only delays them."""
_ENOUGH_S = 0.2
"""No further step is made after this time."""
_LANE = -1


def measure(stage: Stage) -> Generator[float, None, tuple[float, float]]:
    """Run some chunks of a prompt, and some steps of one token.

    A generator of pieces, for `Compute.run_pieces`, each a step. Returns the bytes of the layers' weights per second of
    a step of one token, and the tokens per second of a chunk.
    """
    layers = find_layers(stage.model)[stage.start : stage.end]
    weights = list({id(weight): weight for layer in layers for _, weight in weights_in(layer)}.values())
    dtype, size = common_dtype(weights), sum(weight.nbytes for weight in weights)
    del layers, weights  # they may be unloaded between two pieces, and are then freed one by one
    own = stage.sibling()
    own.lanes.apply(Open(_LANE))
    try:
        chunk = probe_tokens()
        prompt_s = yield from _quickest(own, chunk, dtype)
        token_s = yield from _quickest(own, 1, dtype)
    finally:
        own.lanes.clear()
        mx.clear_cache()
    return size / token_s, chunk / prompt_s


def _quickest(stage: Stage, length: int, dtype: mx.Dtype) -> Generator[float, None, float]:
    """The least seconds of some steps of one row, without the first one, which compiles kernels.

    Tokens and hidden states are random: with equal ones, a mixture of experts would read only a few experts.
    """
    key, plan = mx.random.key(0), stage.plan
    tokens = mx.random.randint(0, plan.vocabulary, (1, length), mx.int32, key)
    hidden = [mx.random.normal(shape, dtype=dtype, key=key) for shape in plan.shapes_at(stage.start, 1, length)]
    mx.eval(tokens, hidden)
    seconds: list[float] = []
    least, most = _STEPS
    while len(seconds) <= least or (len(seconds) <= most and sum(seconds[1:]) < _ENOUGH_S):
        mx.synchronize()  # a ring may have begun a step ahead
        begin = time.perf_counter()
        mx.eval(stage.run(_LANE, tokens, hidden))
        seconds.append(time.perf_counter() - begin)
        yield 0.0
    return min(seconds[1:])
