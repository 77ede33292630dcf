"""How much one ring takes on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from node.core.models import KvCost

ALLOCATED = 256
"""Tokens by which mlx-lm's caches grow."""


@dataclass(frozen=True, slots=True)
class RingLimits:
    context: int
    """Tokens of one session."""
    max_sessions: int
    """Sessions of the whole context for which there is KV."""
    max_queue: int
    """Sessions that wait."""
    max_rows: int
    """Sessions in a lane."""
    chunk: int
    """Tokens of prompts in one step, padding included, when no stream waits for it."""
    kv: tuple[KvCost, ...] = (KvCost(1),)
    """Of each layer of the model."""
    weights: int = 1 << 20
    """The driver's weights, in tokens of KV of the same size. A step reads them, as it reads the KV of its lane."""

    def charge(self, tokens: int) -> int:
        """The share of the KV budget that a sequence takes, in tokens of a sequence of the whole context.

        It is the share in the layer for which it is largest, so it holds on every stage. The state of a recurrent layer
        has the same size for any number of tokens, so there every session is charged the context.
        """
        return _charge(self.kv, self.context, min(-(-tokens // ALLOCATED) * ALLOCATED, self.context))


def weights_as_tokens(weight_bytes: int, kv: Sequence[KvCost], context: int) -> int:
    """Tokens of KV of these layers that have as many bytes."""
    return weight_bytes * context // max(1, sum(cost.bytes_for(context) for cost in kv))


@cache
def _charge(kv: tuple[KvCost, ...], context: int, tokens: int) -> int:
    whole = [(cost.bytes_for(tokens), cost.bytes_for(context)) for cost in set(kv)]
    return max((-(-part * context // most) for part, most in whole if most), default=tokens)
