"""How many sessions, and how much of each, the rings of this node accept."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from node.core.models import KvCost, ModelVersion, Shard
from node.core.rings import Ring
from node.engine.device import prefill_chunk
from node.ring.loaded_shards import LoadedShard

ALLOCATED = 256
"""Tokens by which mlx-lm's caches grow."""


@dataclass(frozen=True, slots=True)
class RingOptions:
    """What a node's options say of its rings."""

    usable: int
    """Bytes of memory for models."""
    max_queue: int
    """Sessions that wait in a ring."""
    max_batch: int
    """Sessions that a ring steps at a time."""
    step_timeout_s: float
    """A ring ends when a step takes longer."""
    guesses: bool
    """Compute steps of guessed tokens while stages are idle."""


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
    step_timeout_s: float = 60.0
    """The ring ends when a step takes longer."""
    token_s: float = 0.0
    """Seconds for each token of a prompt on the slowest stage, as measured when its layers were loaded; 0 if not known."""
    stored: ModelVersion | None = None
    """What KV on disks is of; None if this node keeps none there."""

    def charge(self, tokens: int) -> int:
        """The share of the KV budget that a sequence needs, in tokens of a sequence of the whole context.

        It is the share in the layer for which it is largest, so it holds on every stage. The state of a recurrent layer
        has the same size for any number of tokens, so there every session is charged the context.
        """
        return _charge(self.kv, self.context, min(-(-tokens // ALLOCATED) * ALLOCATED, self.context))


def limits_of(ring: Ring, options: RingOptions, shard: Shard, loaded: LoadedShard) -> RingLimits:
    """Those of a ring that this node drives with the layers of `shard`."""
    plan = loaded.stage.plan
    chunk = prefill_chunk(len(ring.nodes), plan.max_chunk)
    return RingLimits(
        context=ring.context,
        max_sessions=ring.max_sessions,
        max_queue=options.max_queue,
        max_rows=max(1, options.max_batch // len(ring.nodes)),
        chunk=min(chunk, loaded.chunk or chunk),
        kv=plan.kv,
        weights=weights_as_tokens(loaded.stage.weight_bytes, plan.kv[shard.start : shard.end], ring.context),
        step_timeout_s=options.step_timeout_s,
    )


def weights_as_tokens(weight_bytes: int, kv: Sequence[KvCost], context: int) -> int:
    """Tokens of KV of these layers that have as many bytes."""
    return weight_bytes * context // max(1, sum(cost.bytes_for(context) for cost in kv))


@cache
def _charge(kv: tuple[KvCost, ...], context: int, tokens: int) -> int:
    whole = [(cost.bytes_for(tokens), cost.bytes_for(context)) for cost in set(kv)]
    return max((-(-part * context // most) for part, most in whole if most), default=tokens)
