"""Which layers of a model are alike, so that the same kernels compute them."""

from collections.abc import Mapping
from itertools import chain, pairwise

from mlx.nn.layers.base import Module

from node.core.row_family import LayerKind
from node.engine import caches
from node.engine.ghosts import find_layers
from node.engine.graph import weights_in
from node.engine.plan import Plan

HEAD: LayerKind = "head"
"""The driver's final norm and head."""


def kinds_of(model: Module, plan: Plan, start: int, end: int) -> Mapping[LayerKind, tuple[int, int]]:
    """The first layers of each kind that can be run alone, of the layers [start, end): by shape and dtype of their weights, and by
    their caches. With start 0, also HEAD, of no layers.
    """
    layers = find_layers(model)
    used = [caches.kind(cache) for cache in caches.empty_caches(model, plan.kv_bits)]
    found: dict[LayerKind, tuple[int, int]] = {HEAD: (0, 0)} if start == 0 else {}
    for first, last in pairwise([start, *(cut for cut in plan.cuts if start < cut < end), end]):
        weights = chain.from_iterable(map(weights_in, layers[first:last]))
        kind = tuple((path, tuple(weight.shape), str(weight.dtype)) for path, weight in weights)
        found.setdefault(
            (kind, tuple(used[cache] for layer in plan.caches_of[first:last] for cache in layer)), (first, last)
        )
    return found
