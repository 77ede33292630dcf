"""What one ring may take on, and what a session takes of it."""

from dataclasses import dataclass
from functools import cache

from node.core.types import KvCost

ALLOCATED = 256
"""Tokens; the steps in which mlx-lm's caches grow."""


@dataclass(frozen=True, slots=True)
class Limits:
    context: int
    max_sessions: int
    """Sessions of the whole context for which there is KV."""
    max_queue: int
    max_rows: int
    """Sessions in a lane."""
    chunk: int
    """Tokens of prompts in one step, padding included, when no stream waits for it."""
    kv: tuple[KvCost, ...] = (KvCost(1),)
    """Of each layer of the model."""

    def charge(self, tokens: int) -> int:
        """What a sequence takes of the KV set aside, in tokens of a sequence of the whole context.

        It is the share of the layer for which it is largest, so it holds on every stage, whatever layers that has. A
        recurrent layer's state is as large for one token as for all, so there every session is charged the context.
        """
        return _charge(self.kv, self.context, min(-(-tokens // ALLOCATED) * ALLOCATED, self.context))


@cache
def _charge(kv: tuple[KvCost, ...], context: int, tokens: int) -> int:
    whole = [(cost.bytes_for(tokens), cost.bytes_for(context)) for cost in set(kv)]
    return max((-(-part * context // most) for part, most in whole if most), default=tokens)
