"""Divides a model that computes nothing but one long pass, such as a vision tower, into pieces of a bounded time.

MLX computes an array only when it is evaluated. So the pass is called once, which takes little, and the outputs of its
modules are recorded on the way; then they are evaluated in their order, as many at once as the time allows. What a part takes
is measured at the first of its kind, as layers are alike. The bits do not depend on which parts are evaluated together.

Of a large picture, attention is divided by heads and rows, a matrix or an MLP by rows, and patches into groups, each of which is
computed by itself. How depends on nothing but sizes: a picture has the same bits each time.
"""

import math
import re
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.nn.layers.activations import GELU
from mlx.nn.layers.base import Module
from mlx.nn.layers.convolution import Conv2d, Conv3d
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedLinear
from mlx.utils import tree_map_with_path, tree_unflatten

from node.engine.ghosts import LayerProxy
from node.model.picture_form import MOST_SCORES

_PRODUCTS = 2**31
"""Most products of two numbers in a part of a matrix."""
_PRODUCTS_OF_ACTIVATION = 1024
"""With which one number takes a CPU about as long as a matrix with so many products."""
_ROWS = 128
"""About the fewest rows of such a part: where they are wide enough to be divided further, a device has enough to do with fewer."""
_OF_ROWS = ("MLP", "VisionMLP", "GELUMLP", "FastGELUMLP", "Llama4VisionMLP", "VisionPatchMerger")
"""Classes of mlx-vlm's towers which compute each row by itself, in several matrices, activations and products between them."""


class Part(NamedTuple):
    kind: Hashable
    """Parts of a kind take about the same time."""
    output: mx.array
    bytes: int
    """Of memory that it takes, about."""


def in_pieces(parts: list[Part], longest_s: float, most_bytes: float = math.inf) -> Generator[None, None, None]:
    """Evaluate the outputs, with a pause after each piece: a single part, or several that take about `longest_s` seconds and
    `most_bytes` of memory at most. Empties `parts`, so that each is dropped once it is computed.
    """
    took: dict[Hashable, float] = {}
    parts.reverse()
    while parts:
        first = parts.pop()
        piece, left_bytes = [first.output], most_bytes - first.bytes
        left_s = longest_s - took[first.kind] if first.kind in took else 0.0
        while parts and parts[-1].kind in took:
            left_s, left_bytes = left_s - took[parts[-1].kind], left_bytes - parts[-1].bytes
            if left_s < 0 or left_bytes < 0:
                break
            piece.append(parts.pop().output)
        begin = time.monotonic()
        mx.eval(piece)
        took.setdefault(first.kind, time.monotonic() - begin)
        del first, piece  # other steps run now
        yield


@contextmanager
def recorded(model: Module) -> Iterator[list[Part]]:
    """Inside, what the modules of `model` and attention return is recorded."""
    parts = list[Part]()

    def proxy(path: str, module: Module) -> LayerProxy:
        return LayerProxy(module, partial(_called, parts, re.sub(r"\d+", "", path)))

    attention = mx.fast.scaled_dot_product_attention
    leaves = model.leaf_modules()  # type: ignore[no-untyped-call]
    named: Any = model.named_modules()  # type: ignore[no-untyped-call]
    of_rows = tree_unflatten([(path, module) for path, module in named if _is_of_rows(module)])
    try:
        for modules in (leaves, of_rows):
            model.update_modules(tree_map_with_path(proxy, modules, is_leaf=Module.is_module))
        mx.fast.scaled_dot_product_attention = partial(_attended, parts, attention)
        yield parts
    finally:
        mx.fast.scaled_dot_product_attention = attention
        for modules in (of_rows, leaves):
            model.update_modules(modules)


def _is_of_rows(module: Any) -> bool:
    return type(module).__name__ in _OF_ROWS


def _called(parts: list[Part], name: str, module: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """What a module returns."""
    is_of_patches = isinstance(module, Conv2d | Conv3d) and module.weight.shape[1:-1] == x.shape[1:-1]
    is_of_rows = isinstance(module, Linear | QuantizedLinear | GELU) or _is_of_rows(module)
    if not (is_of_patches or is_of_rows):
        return _noted(parts, (name, getattr(x, "shape", None)), module(x, *args, **kwargs))
    axis = 0 if is_of_patches else x.ndim - 2
    rows = x.shape[axis]
    spans = _spans(rows, min(math.ceil(x.size * _products(module, x.shape[-1]) / _PRODUCTS), rows // _ROWS))
    given = mx.split(x, [span.start for span in spans[1:]], axis) if len(spans) > 1 else [x]
    return _joined([_noted(parts, (name, each.shape), module(each)) for each in given], axis)


def _products(module: Any, width: int) -> int:
    """Of each number that it is given, in rows of a width; of several matrices, of the one that has the most."""
    if isinstance(module, GELU):
        return _PRODUCTS_OF_ACTIVATION
    if not _is_of_rows(module):
        return int(module.weight.shape[0])
    matrices = (each for each in module.modules() if isinstance(each, Linear | QuantizedLinear))
    return max(each.weight.shape[0] for each in matrices) * max(1, _PRODUCTS_OF_ACTIVATION // width)


def _attended(
    parts: list[Part],
    attend: Callable[..., mx.array],
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    mask: Any = None,
    **how: Any,
) -> mx.array:
    """What attention returns. All arrays: [batch, heads, length, width]."""
    batch, heads, rows, _ = q.shape
    groups, keys = k.shape[1], k.shape[2]
    for name, given in (("queries", q), ("keys", k), ("values", v), ("mask", mask)):  # with their rotation
        _noted(parts, (name, getattr(given, "shape", None)), given)
    if isinstance(mask, str) or how.get("sinks") is not None:
        whole: mx.array = _noted(parts, ("attention", q.shape, k.shape), attend(q, k, v, mask=mask, **how))
        return whole
    shared = heads // groups
    scores = batch * shared * rows * keys  # of a group
    found = []
    for group in _spans(groups, math.ceil(groups * scores / max(scores, MOST_SCORES))):
        own = slice(group.start * shared, group.stop * shared)
        pair = k[:, group], v[:, group]
        in_rows = []
        for span in _spans(rows, math.ceil(scores / MOST_SCORES)):
            asked, seen = q[:, own, span], _cut(mask, own, span)
            attended = attend(asked, *pair, mask=seen, **how)
            own_scores = asked.size // asked.shape[-1] * keys
            in_rows.append(_noted(parts, ("attention", asked.shape, keys), attended, own_scores))
        found.append(_joined(in_rows, axis=2))
    return _joined(found, axis=1)


def _cut(mask: mx.array | None, heads: slice, rows: slice) -> mx.array | None:
    """The part of a mask, which may have one head and one row for all."""
    if mask is not None and mask.shape[-2] > 1:
        mask = mask[..., rows, :]
    if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1:
        mask = mask[..., heads, :, :]
    return mask


def _noted(parts: list[Part], kind: Hashable, output: Any, scores: int = 0) -> Any:
    """`scores`: of attention; they are held twice, as their softmax too, where no kernel does all of it."""
    if isinstance(output, mx.array):
        parts.append(Part(kind, output, output.nbytes + 2 * scores * output.itemsize))
    return output


def _spans(length: int, count: int) -> list[slice]:
    """So many parts of equal length, but for the last one, which may be shorter; one at least, also of nothing."""
    step = max(1, math.ceil(length / max(1, count)))
    return [slice(begin, min(begin + step, length)) for begin in range(0, max(1, length), step)]


def _joined(found: Sequence[mx.array], axis: int) -> mx.array:
    return mx.concatenate(list(found), axis) if len(found) > 1 else found[0]
