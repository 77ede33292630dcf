"""A common interface to mlx-lm's cache classes."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, make_prompt_cache

from node.core.models import KvCost
from node.engine.quantized_kv import quantized

Undo = Sequence[Callable[[], object]]
"""Takes one token back in the caches. It refers to no lane: a lane that is dropped must be free at once."""


def empty_caches(model: Module, kv_bits: int) -> list[Any]:
    """The empty caches of a session, over all layers; KV in `kv_bits`, or 0 for the dtype of the activations."""
    caches: list[Any] = make_prompt_cache(model)
    if ngrams := getattr(getattr(model, "model", None), "ngram_embeddings", None):
        # longcat_flash_ngram takes zeros for missing tokens. Without them it cannot merge sessions of fewer tokens.
        caches[0].cache[0] = mx.zeros((1, ngrams.n - 1), mx.int64)
    return [quantized(cache, kv_bits) for cache in caches] if kv_bits else caches


def kind(cache: Any) -> tuple[Any, ...]:
    """Key of caches that are at the same position at the beginning of each step, so each gives the same masks."""
    if isinstance(cache, CacheList):
        return (type(cache), *(kind(part) for part in cache.caches))
    slots = len(cache.cache) if isinstance(cache, ArraysCache) else 0
    return (type(cache), slots, *(getattr(cache, name, None) for name in ("max_size", "keep", "chunk_size")))


def parts(caches: Iterable[Any]) -> Iterator[Any]:
    """Yield the caches, and in place of a CacheList those in it."""
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from parts(cache.caches)
        else:
            yield cache


def can_merge(part: Any) -> bool:
    """Whether mlx-lm can batch this cache with others."""
    return hasattr(part, "merge") or hasattr(part, "extend")


def batched(cache: Any) -> Any:
    """Convert to a cache that others can be appended to."""
    return cache if all(hasattr(part, "extend") for part in parts([cache])) else cache.merge([cache])


def single(cache: Any, row: int) -> Any:
    """Copy one row, as the cache of a session that is alone."""
    if isinstance(cache, CacheList):
        alone = copy.copy(cache)
        alone.caches = tuple(single(part, row) for part in cache.caches)
        return alone
    if isinstance(cache, ArraysCache):  # its `extract` fails on empty slots
        alone = copy.copy(cache)
        alone.cache = [None if slot is None else slot[row : row + 1] for slot in cache.cache]
        alone.left_padding = alone.lengths = None
        return alone
    return cache.extract(row) if hasattr(cache, "extract") else copy.deepcopy(cache)


def cut(caches: Iterable[Any]) -> None:
    """Give back what trimmed caches have allocated beyond their last token."""
    for part in parts(caches):
        if type(part) is KVCache and not part.empty():
            part.keys, part.values = map(mx.contiguous, part.keys_and_values())


def can_go_back(part: Any) -> bool:
    """Whether the cache can be trimmed to any earlier position; windows cannot, as they drop old tokens."""
    return part.is_trimmable() and not any(getattr(part, name, None) for name in ("max_size", "chunk_size"))


def can_step_back(part: Any) -> bool:
    """Whether a step of one token can be taken back: by trimming, or for recurrent states by keeping the old ones."""
    return isinstance(part, ArraysCache) or can_go_back(part)


def begin_step_back(caches: Iterable[Any]) -> Undo:
    """A step begins; the result takes its last token back. It may have several if all parts can be trimmed. Unless `can_step_back`, the step copies what it changes: the
    window of each cache that drops old tokens.
    """
    return [_undo(part) for part in parts(caches)]


def _undo(part: Any) -> Callable[[], object]:
    if can_go_back(part):
        return partial(part.trim, 1)
    if not isinstance(part, ArraysCache):
        return partial(vars(part).update, {name: _alias(value) for name, value in vars(part).items()})
    # Padding and lengths are changed in place, so they are copied; states are replaced.
    state = list(part.cache), *(None if count is None else count + 0 for count in (part.left_padding, part.lengths))
    return partial(setattr, part, "state", state)


def _alias(value: Any) -> Any:
    """The same array, or list of arrays, which stays as it is when the other one is changed in place."""
    if isinstance(value, list | tuple):
        return type(value)(_alias(each) for each in value)
    return value[...] if isinstance(value, mx.array) else value


def advance_shadows(shadows: Iterable[Any], rows: int, length: int) -> None:
    """Advance shadows, caches that no layer of this stage fills, by one step."""
    for part in parts(shadows):
        if isinstance(part, ArraysCache):
            part.cache = [mx.zeros((rows, 1)) if slot is None else slot for slot in part.cache]
            part.advance(length)
        else:
            part.update_and_fetch(mx.zeros((rows, 1, length, 1)), mx.zeros((rows, 1, length, 1)))


def states(caches: Iterable[Any]) -> list[Any]:
    """Arrays to evaluate after a step, so that the graph does not grow from step to step."""
    return [cache.state for cache in caches if not cache.empty()]


def cost(caches: Iterable[Any]) -> KvCost:
    """Bytes of one session's caches, computed from shapes after a short step, which need not be evaluated."""
    per_token = fixed = 0
    windows = set()
    for part in parts(caches):
        if isinstance(part, ArraysCache):
            fixed += 2 * part.nbytes  # the state before a step is kept as long as the step may be taken back
        elif part.keys is not None:
            row = part.nbytes // part.keys.shape[2]
            # mlx-lm allocates in steps of 256 tokens; while a step is appended, a window exceeds its size.
            fixed += row * type(part).step
            per_token += row
            windows.add(getattr(part, "max_size", None) or getattr(part, "chunk_size", None) or 0)
    # int(): a config may have `true` in place of a number, which a heartbeat cannot carry.
    return KvCost(int(per_token), int(fixed), int(windows.pop()) if len(windows) == 1 else 0)


def head_sizes(caches: Iterable[Any]) -> set[tuple[int, int]]:
    """Sizes of a key and of a value of one head, in each cache that has any; after a short step."""
    kept = [part for part in parts(caches) if not isinstance(part, ArraysCache) and part.keys is not None]
    return {(part.keys.shape[-1], part.values.shape[-1]) for part in kept}


def total_bytes(caches: Iterable[Any]) -> int:
    """Bytes that the caches take at present."""
    return sum(part.nbytes for part in parts(caches) if not part.empty())
