"""A draft model: a small model of the same tokenizer, whole on the driver, which guesses a larger one's next tokens.

It draws as the larger model will: with the same sampling, and with the same random numbers, as these depend on seed and
position alone. So the two draw the same token not only when both are sure of it. All methods run in the compute thread.
"""

import time
from collections.abc import Sequence

import mlx.core as mx

from node.core.errors import PippinError
from node.core.frames import Open, Tensor
from node.core.mlx_errors import MLX_ERRORS
from node.core.models import DRAFT_CONTEXT
from node.engine.sampling import NO_TOKEN, Draw, begin_draw
from node.engine.stage import Stage
from node.engine.tensor_codec import token_array

_LANE = 0


class DraftFailed(PippinError):
    """The draft model, or the MTP layer, could not compute a token."""

    code = "draft_failed"


class DraftModel:
    """It follows one session at a time. Another one begins with what both have in common."""

    observes = False
    beyond = 1

    def __init__(self, stage: Stage, vocabulary: int) -> None:
        """`stage`: all layers, with caches of its own. `vocabulary`: number of the larger model's logits."""
        self._stage = stage
        self._vocabulary = vocabulary
        self._held: list[int] = []
        """Tokens of which the lane has KV."""
        self._chunk = 64
        """Tokens of the next chunk of a prompt."""
        self.is_catching_up = False
        self.max_context = min(stage.plan.max_context, DRAFT_CONTEXT)
        self.kv_bytes = 0
        """May be read in any thread."""

    def observe(self, tokens: Sequence[int], end: int, tensors: Sequence[Tensor], count: int) -> None:
        """It needs no hidden states of the larger model."""

    def guess(self, tokens: Sequence[int], verified: int, draw: Draw) -> int | None:
        """The token that may come after `tokens`, of which the first `verified` are certain, and the others guesses. None
        as long as it is catching up: each call computes one chunk, so ask again. Raises DraftFailed; all KV is then freed.
        """
        try:
            return self._guess(tokens, verified, draw)
        except (PippinError, *MLX_ERRORS) as error:
            self.clear()
            raise DraftFailed(f"The draft model failed: {error}") from error
        finally:
            self.kv_bytes = self._stage.lanes.kv_bytes

    def clear(self) -> None:
        """Free all KV."""
        self._held = []
        self._stage.lanes.clear()
        self.kv_bytes = 0

    def _guess(self, tokens: Sequence[int], verified: int, draw: Draw) -> int | None:
        self._go_back_to(tokens[:-1], verified)
        certain = tokens[len(self._held) : verified]
        self.is_catching_up = len(certain) > self._chunk
        if self.is_catching_up:
            began = time.monotonic()
            self._run(certain[: self._chunk])
            most = self._stage.plan.max_chunk or 1024
            is_slow = time.monotonic() - began > 0.02  # for which the ring's own steps wait
            self._chunk = max(1, self._chunk // 2) if is_slow else min(2 * self._chunk, most)
            return None
        hidden = self._run(certain) if certain else ()
        for place in range(len(self._held), len(tokens)):
            hidden = self._run(tokens[place : place + 1], unverified=place + 1 - verified)
        logits = self._stage.finish(hidden)[:, : self._vocabulary]
        lacking = self._vocabulary - logits.shape[-1]
        if lacking > 0:  # models of a family pad their vocabularies differently
            logits = mx.pad(logits, [(0, 0), (0, lacking)], constant_values=mx.array(-mx.inf))
        return drawn(logits, draw)

    def _run(self, tokens: Sequence[int], unverified: int = 0) -> Sequence[mx.array]:
        hidden = self._stage.run(_LANE, token_array([tokens]), unverified=unverified)
        self._held += tokens
        return hidden

    def _go_back_to(self, tokens: Sequence[int], verified: int) -> None:
        """Take the lane back to what it has in common with `tokens`."""
        lanes, shared = self._stage.lanes, common(self._held, tokens)
        lane = lanes.lane(_LANE) if self._held else None
        undos = len(lane.undos) if lane else 0
        # What was certain in another session can't be taken back one by one where it is a guess.
        shared = min(shared, verified + undos)
        excess = len(self._held) - shared
        if lane and excess <= undos:
            lane.back(excess)
        elif lane and shared and self._stage.plan.trimmable:
            lane.undos.clear()
            lane.trim(excess)
        else:
            lanes.apply(Open(_LANE))
            shared = 0
        del self._held[shared:]


def drawn(logits: mx.array, draw: Draw) -> int:
    """The token drawn of logits [1, vocabulary]. Raises PippinError if they are not finite."""
    (sampled,) = begin_draw(logits, [draw]).read()
    if sampled.token == NO_TOKEN:
        raise PippinError("its output is not finite (NaN or infinity).")
    return sampled.token


def common(some: Sequence[int], others: Sequence[int]) -> int:
    """Number of first tokens that both have."""
    most = min(len(some), len(others))
    if some[:most] == others[:most]:  # nearly always, and quick
        return most
    return next(place for place in range(most) if some[place] != others[place])
