"""Masks for models in which the places of a picture see each other, the later ones too (transformers' Gemma 3, and Gemma 4, where
only layers with a sliding window do so).

A model asks the caches of its layers for masks. Inside `at`, they add what a picture's places see of it.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchRotatingKVCache, RotatingKVCache

from node.core.axes import Span
from node.engine.caches import parts
from node.model.picture_form import Mutuality


class Mutual:
    """Of the layers of a stage. A step has all places of a picture, or, where KV of an earlier step has the first, the rest."""

    def __init__(self, mutuality: Mutuality) -> None:
        self._in_all = mutuality == "all"

    @contextmanager
    def at(self, caches: Sequence[Any], _: Sequence[int], spans: Sequence[Span]) -> Iterator[None]:
        """`spans`: of the tokens of the step's only row."""
        if not any(span.columns for span in spans):
            yield
            return
        numbers = [number if span.columns else -1 for number, span in enumerate(spans) for _ in range(span.tokens)]
        pictures = mx.array(numbers)
        seen = (pictures[:, None] == pictures) & (pictures >= 0)
        with ExitStack() as stack:
            for cache in caches if len(numbers) > 1 else ():
                has_window = any(isinstance(part, RotatingKVCache | BatchRotatingKVCache) for part in parts([cache]))
                if not (self._in_all or has_window):
                    continue
                cache.make_mask = partial(_wider, cache.make_mask, seen)
                stack.callback(delattr, cache, "make_mask")
            yield


def _wider(make_mask: Any, seen: mx.array, tokens: int, **how: Any) -> mx.array:
    """A cache's own mask, and `seen`, bool [tokens, tokens], of the step's tokens, which are its last ones."""
    mask: mx.array = make_mask(tokens, **how | {"return_array": True})
    before = mask.shape[-1] - tokens
    return mask | mx.pad(seen, [(0, 0), (before, 0)])
