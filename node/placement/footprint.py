"""Memory footprint of a stage, in bytes: weights, KV cache, the model's ends, and working memory."""

from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate

from node.core.models import DRAFT_CONTEXT, ModelSpec
from node.core.rings import Ring, StageSpec

STAGE_RESERVE = 64 * 2**20
"""Bytes reserved per stage: frames in flight, logits of a few sessions over a large vocabulary, allocator slack."""


class Footprint:
    """Computes the bytes of any stage of one model, for a context and a number of sessions with that context."""

    def __init__(self, spec: ModelSpec, context: int, sessions: int) -> None:
        cache = [kv.bytes_for(context) for kv in spec.kv]
        held = [weights + kv * sessions for weights, kv in zip(spec.layer_bytes, cache, strict=True)]
        self._before = list(accumulate(held, initial=0))
        self._weights = list(accumulate(spec.layer_bytes, initial=0))
        self._ends = spec.ends_bytes
        self._driver_work = {whole: spec.driver_bytes(1 if whole else 2) for whole in (True, False)}
        self.work_of_all = self._weights[-1] + self._driver_work[True]
        """`work` of the whole model."""
        self._shared = spec.shared_ends
        # Working memory, one of each at a time: a layer is read before the copy it replaces is freed, or the scores of
        # a chunk are computed; and the KV cache of a layer grows by copying all sessions of a lane.
        scores = spec.score_bytes * context
        self.reserve = STAGE_RESERVE + max(scores, *spec.layer_bytes) + max(cache) * sessions
        self._pictures = max(0, spec.picture_bytes - (self.reserve - STAGE_RESERVE))
        self.cache = sum(cache) * sessions
        self._guesses_alone = spec.guesses_alone
        self._guesser = 0
        if spec.guesser:  # it follows one session
            most = min(context, spec.guesser.max_context, DRAFT_CONTEXT if spec.draft else context)
            self._guesser = Footprint(spec.guesser, most, sessions=1).whole
        self.whole: int = self.stage(0, spec.layers, driver=True)
        """Bytes of the whole model on one node."""

    def stage(self, start: int, end: int, *, driver: bool) -> int:
        """Bytes of layers [start, end) on one node. A driver has what guesses, too, if it is of use."""
        ends = self._ends if driver or self._shared else 0
        ends += self._pictures if driver else 0
        whole = end - start == len(self._before) - 1
        guesser = self._guesser if driver and (not whole or self._guesses_alone) else 0
        return self._before[end] - self._before[start] + self.reserve + ends + guesser

    def work(self, start: int, end: int, *, driver: bool) -> int:
        """Bytes that the stage reads per token, which determine its time: weights only, as KV caches are seldom full.

        Of the ends, only the head is read; a driver also computes a guess. Compute time is proportional
        to the same number: each weight is used in one multiplication per token.
        """
        whole = end - start == len(self._weights) - 1
        return self._weights[end] - self._weights[start] + (self._driver_work[whole] if driver else 0)

    def work_in(self, room: int) -> float:
        """The `work` of what fits in so many bytes, if all layers were alike."""
        return self.work_of_all * max(0, room - self.reserve) / (self.whole - self.reserve)


footprint = lru_cache(1024)(Footprint)
"""Cached, as a placement of many models needs each one many times."""


def stage_weights(spec: ModelSpec, ring: Ring, stage: StageSpec) -> int:
    """Bytes of the weights among `stage_bytes`; the others are for the KV and for working memory."""
    drives = stage.node == ring.driver
    count = sum(spec.layer_bytes[stage.start : stage.end]) + (spec.ends_bytes if drives or spec.shared_ends else 0)
    if spec.guesser and drives and ring.draft:
        count += sum(spec.guesser.layer_bytes) + spec.guesser.ends_bytes
    return count


def weights_once(placed: Iterable[tuple[ModelSpec, Ring, StageSpec]]) -> int:
    """Bytes of the weights of a node's stages, as in its memory: what several stages of a model have, as while one ring replaces
    another, counts once.
    """
    found: dict[tuple[object, str], int] = {}
    for spec, ring, stage in placed:
        layers = spec.layer_bytes[stage.start : stage.end]
        ends = stage_weights(spec, ring, stage) - sum(layers)
        held = [(f"layer {number}", count) for number, count in enumerate(layers, stage.start)]
        files = ring.version.files
        found |= {(files, part): max(count, found.get((files, part), 0)) for part, count in (*held, ("ends", ends))}
    return sum(found.values())


def stage_bytes(spec: ModelSpec, ring: Ring, stage: StageSpec) -> int:
    """Bytes that a ring's stage may use on its node, as reserved by the placement."""
    costs = footprint(spec, ring.context, ring.max_sessions)
    return costs.stage(stage.start, stage.end, driver=stage.node == ring.driver)
