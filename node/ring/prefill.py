"""Prompts on their way into a lane: which of them run together, and how many of their tokens in one step. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from node.ring.lane import Lane
from node.ring.session import Slot

STALL_S = 0.15
"""Maximum delay that a chunk causes to streams: a reader hardly sees it, and it is long beside a step of decoding."""
STALL_STEPS = 2
"""Where steps of decoding are slow, a chunk may take as long as so many of them: a shorter one would gain little."""
LONG_CHUNK_S = 3.0
"""Maximum time of a chunk of more than SHORT_CHUNK while nothing streams: another prompt may wait for it."""
SHORT_CHUNK = 512
"""Tokens with which every device is nearly at its full speed."""
MIN_CHUNK = 16
"""Tokens; a step of fewer takes as long."""
GRID = 512
"""Tokens of each chunk where the answer depends on how a prompt is divided."""


@dataclass(slots=True, eq=False)
class Prefill:
    """A lane whose rows will join `home`: one prompt, run in chunks, or several short ones, run in a single step."""

    lane: int
    home: Lane
    slots: list[Slot]
    """One for each row of the lane."""
    cached: int
    """Tokens of each row that were there before; the same for all rows, so none is padded for it."""
    in_flight: int = 0
    """Steps that have not come back."""
    begun: bool = False
    token_s: float = 0.0
    """Seconds for each token of the last chunk; they grow with the position in the prompt."""

    @property
    def gone(self) -> bool:
        return all(slot.gone for slot in self.slots)

    @property
    def ready(self) -> bool:
        return any(slot.unsent for slot in self.slots if not slot.gone)

    def fits(self, slot: Slot, most: int, *, pads: bool) -> bool:
        """Whether one more prompt can run in the same step: the whole prompt, within `most` tokens with the padding.

        Without `pads` all prompts must have the same length.
        """
        lengths = [slot.unsent, *(other.unsent for other in self.slots)]
        evaluated = {bool(other.evaluation) for other in (slot, *self.slots)}
        alike = self.cached == slot.cached and len(evaluated) == 1 and (pads or len(set(lengths)) == 1)
        return alike and not self.begun and len(lengths) * max(lengths) <= most

    def chunk(self, most: int, grid: int = 0) -> tuple[tuple[int, ...], ...]:
        """The tokens of the next step, a row for each slot: of a single prompt at most `most`.

        With a `grid` prompts are divided only at its multiples, and generated tokens are replayed one by one.
        """
        alone = len(self.slots) == 1
        rows = []
        for slot in self.slots:
            prompt, end = len(slot.session.request.prompt), len(slot.session.tokens)
            if grid:
                end = slot.sent + 1 if slot.sent >= prompt else min(slot.sent // grid * grid + grid, prompt)
            elif alone:
                end = min(slot.sent + most, end)
            rows.append(tuple(slot.session.tokens[slot.sent : end]))
            slot.sent = end
        return tuple(rows)


@dataclass(slots=True)
class ChunkSize:
    """Tokens of a prompt that one step may run, from the time that earlier steps took."""

    most: int
    """Tokens with which the device reaches its full speed: the size when no stream would be delayed."""
    token_s: float = 0.0
    """Seconds for each token of the last step of prompts."""
    decode_s: float = 0.0
    """Seconds of the last step of decoding."""

    def tokens(self, between: int, token_s: float = 0.0) -> int:
        """`between`: chunks that can come between two steps of a stream; 0 when there is no stream.

        `token_s`: seconds for each token of this prompt; 0 before its first chunk.
        """
        token_s = token_s or self.token_s
        size = self.most if token_s else min(self.most, SHORT_CHUNK)
        least, limit = SHORT_CHUNK, LONG_CHUNK_S
        if between:
            least, limit = MIN_CHUNK, max(STALL_S, STALL_STEPS * self.decode_s) / between
        while size > least and size * token_s > limit:
            size //= 2
        return size

    def took(self, tokens: Sequence[Sequence[int]], seconds: float) -> float:
        """Note the time of a step of prompts; returns the seconds for each token."""
        self.token_s = seconds / (len(tokens) * max(map(len, tokens)))
        return self.token_s
