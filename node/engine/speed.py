"""Measures how quickly this device computes a stage. Runs in the compute thread."""

import time
from collections import Counter
from collections.abc import Callable, Generator

import mlx.core as mx

from node.core.frames import Open
from node.engine.dry_run import LENGTH, ROWS
from node.engine.ghosts import find_layers
from node.engine.graph import weights_in
from node.engine.stage import Stage

_CHUNK = 64
"""Tokens of a chunk on a GPU: enough for the kernels of long prompts, few enough for some tenths of a second."""
_CHUNK_CPU = 8
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
    own = stage.sibling()
    own.lanes.apply(Open(_LANE))
    try:
        chunk = _CHUNK_CPU if mx.default_device() == mx.cpu else _CHUNK
        prompt_s = yield from _quickest(_step(own, chunk))
        token_s = yield from _quickest(_step(own, 1))
    finally:
        own.lanes.clear()
        mx.clear_cache()
    size = sum(weight.nbytes for weight in _weights(stage))
    return size / token_s, chunk / prompt_s


def _quickest(step: Callable[[], float]) -> Generator[float, None, float]:
    """The least seconds of some steps, without the first one, which compiles kernels."""
    step()
    yield 0.0
    seconds: list[float] = []
    least, most = _STEPS
    while len(seconds) < least or (len(seconds) < most and sum(seconds) < _ENOUGH_S):
        seconds.append(step())
        yield 0.0
    return min(seconds)


def _step(stage: Stage, length: int) -> Callable[[], float]:
    """A function that runs a step of one row and returns its seconds.

    Tokens and hidden states are random: with equal ones, a mixture of experts would read only a few experts.
    """
    key = mx.random.key(0)
    tokens = mx.random.randint(0, stage.plan.vocabulary, (1, length), mx.int32, key)
    sizes = {ROWS: 1, LENGTH: length}
    shapes = stage.plan.shapes[stage.start] if stage.start else ()
    hidden = [
        mx.random.normal([sizes.get(size, size) for size in shape], dtype=_dtype(stage), key=key) for shape in shapes
    ]
    mx.eval(tokens, hidden)

    def run() -> float:
        mx.synchronize()  # a ring may have begun a step ahead
        begin = time.perf_counter()
        mx.eval(stage.run(_LANE, hidden, tokens) if stage.start else stage.begin(_LANE, tokens))
        return time.perf_counter() - begin

    return run


def _weights(stage: Stage) -> list[mx.array]:
    layers = find_layers(stage.model)[stage.start : stage.end]
    return list({id(weight): weight for layer in layers for _, weight in weights_in(layer)}.values())


def _dtype(stage: Stage) -> mx.Dtype:
    """Dtype of the activations: the most frequent floating dtype of the layers' weights."""
    counts = Counter(weight.dtype for weight in _weights(stage) if mx.issubdtype(weight.dtype, mx.floating))
    return counts.most_common(1)[0][0] if counts else mx.float32
