"""A common interface to the cache classes of mlx-lm and of mlx-vlm.

mlx-vlm has copies of mlx-lm's, with the same attributes, and a class of its own for pools: KV of several tokens in one. So what a
cache is, its attributes tell, not its class.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

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


def is_recurrent(part: Any) -> bool:
    """Whether the cache is an ArraysCache: states of a fixed size, which each step replaces."""
    return isinstance(getattr(part, "cache", None), list)


def is_pool(part: Any) -> bool:
    """Whether the cache is a PoolingCache: one row for each `ratio` tokens, and those tokens that are no row yet."""
    return hasattr(part, "pooled")


def _is_list(cache: Any) -> bool:
    return hasattr(cache, "caches")


def kind(cache: Any) -> tuple[Any, ...]:
    """Key of caches that are at the same position at the beginning of each step, so each gives the same masks."""
    if _is_list(cache):
        return (type(cache), *(kind(part) for part in cache.caches))
    slots = len(cache.cache) if is_recurrent(cache) else 0
    return (type(cache), slots, *(getattr(cache, name, None) for name in ("max_size", "keep", "chunk_size", "ratio")))


def parts(caches: Iterable[Any]) -> Iterator[Any]:
    """Yield the caches, and in place of a CacheList those in it."""
    for cache in caches:
        if _is_list(cache):
            yield from parts(cache.caches)
        else:
            yield cache


def can_merge(part: Any) -> bool:
    """Whether this cache can be batched with others."""
    return hasattr(part, "merge") or hasattr(part, "extend")


def batched(cache: Any) -> Any:
    """Convert to a cache that others can be appended to."""
    return cache if all(hasattr(part, "extend") for part in parts([cache])) else cache.merge([cache])


def single(cache: Any, row: int) -> Any:
    """Copy one row, as the cache of a session that is alone."""
    if _is_list(cache):
        alone = copy.copy(cache)
        alone.caches = tuple(single(part, row) for part in cache.caches)
        return alone
    if is_recurrent(cache):  # its `extract` fails on empty slots
        alone = copy.copy(cache)
        alone.cache = [None if slot is None else slot[row : row + 1] for slot in cache.cache]
        alone.left_padding = alone.lengths = None
        return alone
    return cache.extract(row) if hasattr(cache, "extract") else copy.deepcopy(cache)


def cut(caches: Iterable[Any]) -> None:
    """Give back what trimmed caches have allocated beyond their last token."""
    for part in map(_kv, parts(caches)):
        if type(part).__name__ == "KVCache" and not part.empty():
            part.keys, part.values = map(mx.contiguous, keys_and_values(part))


def _kv(part: Any) -> Any:
    """The cache itself, or in MiniMax M3's the one beside the keys of its index."""
    return getattr(part, "kv_cache", part)


def keys_and_values(part: Any) -> tuple[mx.array, mx.array]:
    """Those of the tokens that a cache has, without what it has allocated beyond the last one."""
    part = _kv(part)
    keys, values = part.keys_and_values() if hasattr(part, "keys_and_values") else part.state[:2]
    return keys, values


def can_go_back(part: Any) -> bool:
    """Whether the cache can be trimmed to any earlier position; windows cannot, as they drop old tokens, nor pools."""
    return part.is_trimmable() and not any(getattr(part, name, None) for name in ("max_size", "chunk_size", "ratio"))


def can_step_back(part: Any) -> bool:
    """Whether a step of one token can be taken back: by trimming, or for recurrent states and pools by keeping the old ones."""
    return is_recurrent(part) or is_pool(part) or can_go_back(part)


def begin_step_back(caches: Iterable[Any]) -> Undo:
    """A step begins; the result takes its last token back. It may have several if all parts can be trimmed. Unless
    `can_step_back`, the step copies what it changes: the window of each cache that drops old tokens.
    """
    each = list(parts(caches))
    if all(map(can_go_back, each)):
        return [partial(part.trim, 1) for part in each]
    undos = list[Callable[[], object]]()
    for part in each:
        if isinstance(part, ArraysCache):  # mlx-lm's
            # Padding and lengths are changed in place, so they are copied; states are replaced.
            counts = (None if count is None else count + 0 for count in (part.left_padding, part.lengths))
            undos.append(partial(setattr, part, "state", (list(part.cache), *counts)))
        else:
            # KV stays where it is: what is behind the offset does not count. Not each step may have appended any.
            stays = ("keys", "values") if can_go_back(part) else ()
            kept = {name: _alias(value) for name, value in vars(part).items() if name not in stays}
            undos.append(partial(vars(part).update, kept))
    return undos


def _alias(value: Any) -> Any:
    """The same array, or list of arrays, which stays as it is when the other one is changed in place."""
    if isinstance(value, list | tuple):
        return type(value)(_alias(each) for each in value)
    return value[...] if isinstance(value, mx.array) else value


def advance_shadows(shadows: Iterable[Any], rows: int, length: int) -> None:
    """Advance shadows, caches that no layer of this stage fills, by one step."""
    for part in parts(shadows):
        if is_pool(part):
            continue  # only its own layer asks it
        if is_recurrent(part):
            part.cache = [mx.zeros((rows, 1)) if slot is None else slot for slot in part.cache]
            part.advance(length)
        else:
            part.update_and_fetch(mx.zeros((rows, 1, length, 1)), mx.zeros((rows, 1, length, 1)))


def states(caches: Iterable[Any]) -> list[Any]:
    """Arrays to evaluate after a step, so that the graph does not grow from step to step."""
    return [cache.state for cache in caches if not cache.empty()]


def cost(caches: Iterable[Any]) -> KvCost:
    """Bytes of one session's caches, computed from shapes after a short step, which need not be evaluated."""
    fixed = 0
    rows = Counter[int]()
    """Bytes of a token, by the number of tokens that are kept; 0: all."""
    for part in parts(caches):
        if is_recurrent(part):
            fixed += 2 * part.nbytes  # the state before a step is kept as long as the step may be taken back
        elif is_pool(part):
            if part.buf_kv is not None:
                fixed += 2 * (part.buf_kv.nbytes + part.buf_gate.nbytes)
                # A row of the pool is no larger than one of the buffer.
                rows[0] += -(-part.buf_kv.nbytes // part.ratio**2)
        elif _kv(part).keys is not None:
            index, index_row = _index_bytes(part)
            row = (part.nbytes - index) // _kv(part).keys.shape[2] + index_row
            # Caches are allocated in steps of 256 tokens; while a step is appended, a window exceeds its size.
            fixed += row * type(part).step
            rows[getattr(part, "max_size", None) or getattr(part, "chunk_size", None) or 0] += row
    if rows[0]:  # beside what grows, windows count as if they were full
        fixed += sum(window * row for window, row in rows.items())
        rows = Counter({0: rows[0]})
    window = next(iter(rows)) if len(rows) == 1 else 0
    # int(): a config may have `true` in place of a number, which a heartbeat cannot carry.
    return KvCost(int(rows.total()), int(fixed), int(window))


def _index_bytes(part: Any) -> tuple[int, int]:
    """Of the index in Qwen's sparse attention, which is as long as the context, not allocated in steps: now, and of each token. It has
    keys, those of blocks, and positions, in three axes once there are pictures.
    """
    if getattr(part, "index_position_ids", None) is None:
        return 0, 0
    positions = part.index_position_ids.nbytes
    now = sum(each.nbytes for each in (part.index_keys, part.index_block_keys) if each is not None) + positions
    return now, -(-(now + 2 * positions) // part.index_keys.shape[1])


def head_sizes(caches: Iterable[Any]) -> set[tuple[int, int]]:
    """Sizes of a key and of a value of one head, in each cache that has any; after a short step."""
    kept = [part for part in map(_kv, parts(caches)) if getattr(part, "keys", None) is not None]
    return {(part.keys.shape[-1], part.values.shape[-1]) for part in kept}


def total_bytes(caches: Iterable[Any]) -> int:
    """Bytes that the caches take at present."""
    return sum(part.nbytes for part in parts(caches) if not part.empty())
