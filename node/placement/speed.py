"""Estimates a ring's time per token, and decides when a move is worth it. Pure arithmetic for placement."""

from collections.abc import Mapping, Sequence

from node.core.models import ModelSpec
from node.core.types import NodeReport, StageSpec
from node.placement.split import latency

BYTES_PER_MS = 100 * 2**20
"""Weights read per millisecond, some 100 GB/s: the slowest Mac that is sold. An estimate that is too low gives the wire
less relative weight, so that rings are moved less often.
"""
GAIN = 0.2
"""Minimum relative gain for which a ring is moved: less is hardly noticed."""
GAIN_MS = 5.0
"""Minimum gain for which a ring is moved, as a busy machine's probes are late by some milliseconds."""
TOO_SLOW = 2.0
"""Skip replicas that take more than this many times as long per token as the model's first ring."""


def token_ms(spec: ModelSpec, stages: Sequence[StageSpec], nodes: Mapping[str, NodeReport]) -> float:
    """Estimated milliseconds per token of one stream: the stages read their weights in turn, plus time on the wire."""
    read = sum(spec.layer_bytes) + spec.ends_bytes
    return read / BYTES_PER_MS + latency(tuple(nodes[stage.node] for stage in stages))


def is_quicker(new_ms: float, old_ms: float) -> bool:
    """Whether the gain is large enough to hand over sessions for it."""
    return new_ms <= old_ms * (1 - GAIN) and new_ms <= old_ms - GAIN_MS
