"""A lane's caches: what mlx-lm's cache classes have in common, and what they lack."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList

from node.core.types import KvCost


def kind(cache: Any) -> tuple[Any, ...]:
    """Caches of one kind are at the same position whenever a step begins, so either can tell a mask."""
    if isinstance(cache, CacheList):
        return (CacheList, *(kind(part) for part in cache.caches))
    slots = len(cache.cache) if isinstance(cache, ArraysCache) else 0
    return (type(cache), slots, *(getattr(cache, name, None) for name in ("max_size", "keep", "chunk_size")))


def parts(cache: Any) -> Iterator[Any]:
    """The cache itself, or of a list of caches each."""
    if isinstance(cache, CacheList):
        for part in cache.caches:
            yield from parts(part)
    else:
        yield cache


def can_merge(cache: Any) -> bool:
    """Whether mlx-lm can batch this cache with others."""
    return all(hasattr(part, "merge") or hasattr(part, "extend") for part in parts(cache))


def batched(cache: Any) -> Any:
    """The cache as one that others can be appended to."""
    if all(hasattr(part, "extend") for part in parts(cache)):
        return cache
    return cache.merge([cache])


def single(cache: Any, row: int) -> Any:
    """A copy of one session's part of the cache, as that session would have it alone."""
    if isinstance(cache, CacheList):
        return CacheList(*(single(part, row) for part in cache.caches))
    if isinstance(cache, ArraysCache):  # its own `extract` fails on slots that are still empty
        alone = copy.copy(cache)
        alone.cache = [None if slot is None else slot[row : row + 1] for slot in cache.cache]
        alone.left_padding = alone.lengths = None
        return alone
    return cache.extract(row) if hasattr(cache, "extract") else copy.deepcopy(cache)


def can_go_back(cache: Any) -> bool:
    """Whether any earlier position can be had by trimming: a window that is full has lost what went before."""
    bounds = ("max_size", "chunk_size")
    return all(part.is_trimmable() and not any(getattr(part, name, None) for name in bounds) for part in parts(cache))


def advance_shadow(cache: Any, rows: int, length: int) -> None:
    """Move a cache that no layer of ours fills as far as its layers, which are elsewhere, move theirs."""
    for part in parts(cache):
        if isinstance(part, ArraysCache):
            part.cache = [mx.zeros((rows, 1)) if slot is None else slot for slot in part.cache]
            part.advance(length)
        else:
            part.update_and_fetch(mx.zeros((rows, 1, length, 1)), mx.zeros((rows, 1, length, 1)))


def states(caches: Iterable[Any]) -> list[Any]:
    """All that has to be evaluated after a step, so that the next one does not drag this one's graph along."""
    return [cache.state for cache in caches if not cache.empty()]


def cost(cache: Any) -> KvCost:
    """What the cache takes for one session, read off shapes after a short step that need not be evaluated."""
    per_token = fixed = 0
    windows = set()
    for part in parts(cache):
        if isinstance(part, ArraysCache):
            fixed += part.nbytes
        elif part.keys is not None:
            row = part.nbytes // part.keys.shape[2]
            window = getattr(part, "max_size", None) or getattr(part, "chunk_size", None) or 0
            # mlx-lm allocates in steps of 256 tokens; a window is exceeded by the step that is being appended.
            fixed += row * type(part).step
            per_token += row
            windows.add(window)
    # A config may have `true` where a number belongs, which Python takes for 1 and a heartbeat does not take.
    return KvCost(int(per_token), int(fixed), int(windows.pop()) if len(windows) == 1 else 0)


def total_bytes(caches: Iterable[Any]) -> int:
    """Bytes that the caches take now."""
    return sum(part.nbytes for cache in caches for part in parts(cache) if not part.empty())


def right_pad(caches: Iterable[Any], lengths: Sequence[int], width: int) -> None:
    """Tell the caches that the rows of the coming step are valid only up to these lengths."""
    padding = [width - length for length in lengths]
    for cache in caches:
        cache.prepare(lengths=list(lengths), right_padding=padding)
