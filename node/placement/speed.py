"""Estimates how quickly nodes compute a model, and a ring's time per token; decides when a move is worth it. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from node.core.models import ModelSpec
from node.core.reports import NodeReport
from node.core.rings import StageSpec
from node.placement.split import latency

GAIN = 0.2
"""Minimum relative gain for which a ring is moved: less is hardly noticed."""
GAIN_MS = 5.0
"""Minimum gain for which a ring is moved, as a busy machine's probes are late by some milliseconds."""
TOO_SLOW = 2.0
"""Skip replicas that take more than this many times as long per token as the model's first ring."""

SLOW_WIRE = 1.0
"""Time of a round on the wire, in times of a stage, from which stages wait for guesses even if each has one. Round trips of busy
machines are measured some milliseconds too long, and a wrong guess more costs the right step behind it half of a stage's time,
on average.
"""

GB_PER_S: Mapping[str, float] = {
    "M1": 68, "M1 Pro": 200, "M1 Max": 400, "M1 Ultra": 800,
    "M2": 100, "M2 Pro": 200, "M2 Max": 400, "M2 Ultra": 800,
    "M3": 100, "M3 Pro": 150, "M3 Max": 350, "M3 Ultra": 819,
    "M4": 120, "M4 Pro": 273, "M4 Max": 478,
    "M5": 153,
}  # fmt: skip
"""Bandwidth of the memory of Apple's chips, which limits the steps of one token. The larger Max chips have up to a sixth
more than said here, the smaller ones less.
"""
_OTHER_GB_PER_S = 100.0
_APPLE = re.compile(r"Apple M\d+( Pro| Max| Ultra)?")
UNEXPLAINED = 3.0
"""Against what its chip promises, a Mac may be so many times as slow as the best one: low power mode and heat halve its speed, and chips
of one name differ by a quarter. What is slower was measured while the Mac did something else.
"""
PROMPT_TOKENS = 4
"""Tokens of prompts to compute for each token generated: a chat has one or two, a coding agent many more."""
_LEAST_BYTES = 32 * 2**20
"""Measurements of smaller models do not count: their steps take a millisecond or two, of which little is reading weights."""
_PLAUSIBLE = (1e6, 1e14)
"""Bounds of a measured number of bytes per second; others are ignored."""

_MOST_HEAD = 100.0
"""A byte of the head takes at most so many times as long as one of the layers, of which a mixture of experts reads a tenth or less, and at
least this part of it; others are ignored.
"""

Pace = Mapping[str, float]
"""For each node, milliseconds per byte of a model's weights: of a step of one token, with its share of the prompts."""


def pace(spec: ModelSpec, nodes: Sequence[NodeReport]) -> Pace:
    """The pace of each node: measured if it loaded this model before, else estimated from its chip.

    Estimates assume that a chip reaches the share of its bandwidth that the measured nodes reach (median): a mixture of
    experts reads only some of its weights, and a CPU is slower. Measurements of other models say nothing for the same
    reason. A Mac that is slower than its chip explains counts as the best one. Of other chips only a name is known, which says
    nothing.
    """
    typical = {node.info.id: 1e3 / (_bandwidth(node.info.chip) * 1e9) for node in nodes}
    slowness = {node.info.id: ms / typical[node.info.id] for node in nodes if (ms := _measured(spec, node))}
    macs = {node.info.id for node in nodes if _APPLE.fullmatch(node.info.chip)} & slowness.keys()
    best = min((slowness[mac] for mac in macs), default=0.0)
    slowness |= {mac: best for mac in macs if slowness[mac] > UNEXPLAINED * best}
    scale = median(slowness.values()) if slowness else 1.0
    return {node: ms * slowness.get(node, scale) for node, ms in typical.items()}


def with_measured_head(spec: ModelSpec, nodes: Sequence[NodeReport]) -> ModelSpec:
    """The description of a model whose head has as many bytes as the layers read in the time that the head takes: the median of the
    nodes that measured both. Layers have small matrices, and a head is often quantised less, so a byte of each takes its own time.
    """
    if not spec.head_bytes or sum(spec.layer_bytes) < _LEAST_BYTES:
        return spec
    mine = [each for node in nodes for each in node.speeds if each.shard.version.files == spec.version.files]
    costs = [each.head_s * each.bytes_per_s / spec.head_bytes for each in mine]
    plausible = [cost for cost in costs if 1 / _MOST_HEAD <= cost <= _MOST_HEAD]
    return replace(spec, head_bytes=round(median(plausible) * spec.head_bytes)) if plausible else spec


def _measured(spec: ModelSpec, node: NodeReport) -> float | None:
    least, most = _PLAUSIBLE
    if sum(spec.layer_bytes) < _LEAST_BYTES:
        return None
    for speed in node.speeds:
        shard = speed.shard
        size = sum(spec.layer_bytes[shard.start : shard.end])
        prompt_bytes_per_s = speed.tokens_per_s * size
        is_plausible = least <= speed.bytes_per_s <= most and least <= prompt_bytes_per_s <= 1e3 * most
        if shard.version.files == spec.version.files and is_plausible:
            return 1e3 / speed.bytes_per_s + PROMPT_TOKENS * 1e3 / prompt_bytes_per_s
    return None


def _bandwidth(chip: str) -> float:
    """GB/s of "Apple M4 Pro"; of a newer chip, those of the newest known one of its size; else those of a slow Mac."""
    found = _APPLE.fullmatch(chip)
    if not found:
        return _OTHER_GB_PER_S
    newest = [rate for name, rate in GB_PER_S.items() if name.partition(" ")[2] == (found[1] or "").strip()][-1]
    return GB_PER_S.get(chip.removeprefix("Apple "), newest)


def token_ms(spec: ModelSpec, stages: Sequence[StageSpec], nodes: Mapping[str, NodeReport], pace: Pace) -> float:
    """Estimated milliseconds per token of a stream in a busy ring: each round waits for the slowest stage as often as
    there are stages; and the time on the wire.
    """
    work = [sum(spec.layer_bytes[stage.start : stage.end]) for stage in stages]
    work[0] += spec.driver_bytes(len(stages))
    slowest = max(bytes_ * pace[stage.node] for bytes_, stage in zip(work, stages, strict=True))
    return len(stages) * slowest + latency(tuple(nodes[stage.node] for stage in stages))


def is_slow_wire(nodes: Sequence[NodeReport], stage_ms: float) -> bool:
    """Whether a round of these nodes, in the order of their stages, is long on the wire against a stage's milliseconds."""
    return latency(tuple(nodes)) > SLOW_WIRE * stage_ms


def is_quicker(new_ms: float, old_ms: float) -> bool:
    """Whether the gain is large enough to hand over sessions for it."""
    return new_ms <= old_ms * (1 - GAIN) and new_ms <= old_ms - GAIN_MS
