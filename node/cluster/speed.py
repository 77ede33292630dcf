"""How quick a ring is for one stream, and when another is worth the trouble of moving. Pure arithmetic for placement."""

from collections.abc import Mapping, Sequence

from node.cluster.split import latency
from node.core.types import ModelSpec, NodeReport, StageSpec

BYTES_PER_MS = 100 * 2**20
"""Weights read per millisecond, some 100 GB/s: the slowest Mac that is sold. A guess that is too low makes the wire count
for less, so that rings are moved less often."""
GAIN = 0.2
"""A ring is moved for a fifth less time per token, as few notice less;"""
GAIN_MS = 5.0
"""and for so much at least, as a busy machine's probes are late by some milliseconds."""
TOO_SLOW = 2.0
"""A replica that takes so many times as long for a token as the model's first ring would rather be felt than help."""


def token_ms(spec: ModelSpec, stages: Sequence[StageSpec], nodes: Mapping[str, NodeReport]) -> float:
    """Estimated milliseconds per token of one stream: each stage reads its weights in turn, and the wire takes its time."""
    read = sum(spec.layer_bytes) + spec.ends_bytes
    return read / BYTES_PER_MS + latency(tuple(nodes[stage.node] for stage in stages))


def is_quicker(new_ms: float, old_ms: float) -> bool:
    """By so much that sessions may be handed over for it."""
    return new_ms <= old_ms * (1 - GAIN) and new_ms <= old_ms - GAIN_MS
