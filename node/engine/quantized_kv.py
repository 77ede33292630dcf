"""KV in 8 or 4 bits, made of mlx-lm's own caches.

mlx-lm's QuantizedKVCache has neither batches nor windows. Here `mx.quantize` makes three arrays of each array, and a
cache of mlx-lm keeps each of them as if it were the KV itself. So everything that mlx-lm does with a cache (batches,
padding, windows, going back) works unchanged, and attention reads the same numbers as from a QuantizedKVCache.
"""

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache

_GROUPS = (64, 32)
"""Sizes of the groups of numbers that share a scale, best first: mlx-lm's own, and the smallest of MLX."""


class QuantizedKv(CacheList):  # type: ignore[misc]  # mlx-lm has no types
    """One layer's KV in so many bits, by which attribute mlx-lm's attention knows it. Its parts are the caches of the
    packed numbers, of their scales and biases.
    """

    def __init__(self, parts: Sequence[Any], bits: int) -> None:
        super().__init__(*parts)
        self.bits = bits
        self.group_size = _GROUPS[0]

    @property
    def offset(self) -> Any:
        """Tokens so far: a number, or in a batch an array."""
        return self.caches[0].offset

    def make_mask(self, *args: Any, **kwargs: Any) -> Any:
        return self.caches[0].make_mask(*args, **kwargs)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Append keys and values [rows, heads, tokens, size of a head]; return all of them, quantized. Raises ValueError if
        the size of a head is not a multiple of 32.
        """
        sizes = keys.shape[-1], values.shape[-1]
        self.group_size = next((group for group in _GROUPS if not any(size % group for size in sizes)), _GROUPS[0])
        packed = (mx.quantize(each, group_size=self.group_size, bits=self.bits) for each in (keys, values))
        pairs = [part.update_and_fetch(*pair) for part, *pair in zip(self.caches, *packed, strict=True)]
        all_keys, all_values = zip(*pairs, strict=True)
        return all_keys, all_values

    def merge(self, caches: Sequence["QuantizedKv"]) -> "QuantizedKv":
        merged = copy.copy(self)
        merged.caches = tuple(part.merge([cache.caches[k] for cache in caches]) for k, part in enumerate(self.caches))
        return merged


def quantized(cache: Any, bits: int) -> Any:
    """The same empty cache, with KV in so many bits. Other states, such as recurrent ones, stay as they are."""
    if type(cache) in (KVCache, RotatingKVCache):
        return QuantizedKv([cache, copy.copy(cache), copy.copy(cache)], bits)
    if isinstance(cache, CacheList):
        cache.caches = tuple(quantized(part, bits) for part in cache.caches)
    return cache
