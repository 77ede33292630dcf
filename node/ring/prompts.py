"""Prompts on their way into a lane: which of them run together, and how many of their tokens in one step. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from node.ring.lane import Lane
from node.ring.session import Slot

STALL_S = 0.15
"""How long a chunk may hold up streams: a pause that a reader hardly sees, and long beside a step of decoding."""
STALL_STEPS = 2
"""Where a step of decoding takes long itself, a chunk may take as long as so many: fewer tokens would gain little."""
LEAST_CHUNK = 16
"""Tokens; of fewer, a step costs as much."""
GRID = 512
"""Tokens of each chunk where the answer depends on how a prompt is divided."""


@dataclass(slots=True, eq=False)
class Prompts:
    """What is run in one lane before it joins `home`: a prompt in chunks, or several short ones in a single step."""

    lane: int
    home: Lane
    slots: list[Slot]
    """One for each row of the lane."""
    cached: int
    """Tokens of each row that were there before: rows then begin side by side, and none is padded for it."""
    under_way: int = 0
    """Steps that have not come back."""
    begun: bool = False
    token_s: float = 0.0
    """Seconds that a token of the last chunk took: more and more, the further it is in the prompt."""

    @property
    def gone(self) -> bool:
        return all(slot.gone for slot in self.slots)

    @property
    def ready(self) -> bool:
        return any(slot.ahead for slot in self.slots if not slot.gone)

    def takes(self, slot: Slot, most: int, *, pads: bool) -> bool:
        """Whether one more prompt can run in the same step: all of it, within `most` tokens with the padding.

        Without `pads` all have to be of one length.
        """
        lengths = [slot.ahead, *(other.ahead for other in self.slots)]
        evaluated = {bool(other.reading) for other in (slot, *self.slots)}
        alike = self.cached == slot.cached and len(evaluated) == 1 and (pads or len(set(lengths)) == 1)
        return alike and not self.begun and len(lengths) * max(lengths) <= most

    def chunk(self, most: int, grid: int = 0) -> tuple[tuple[int, ...], ...]:
        """The tokens of its next step, a row for each slot: of one prompt `most` at a time.

        With a `grid` prompts are divided at its multiples alone, and what was generated is replayed as it was: token by token.
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
class Pace:
    """How many tokens of a prompt may run in one step, from how long steps have taken."""

    most: int
    """Tokens with which the device is at its full speed: what a step has when no stream would be held up."""
    token_s: float = 0.0
    """Seconds that each token of the last step of prompts took."""
    decode_s: float = 0.0
    """Seconds of the last step of decoding."""

    def tokens(self, between: int, token_s: float = 0.0) -> int:
        """`between` is how many chunks can come between two steps of a stream; 0 when there is no stream.

        `token_s` is what a token of this prompt took; 0 when it has yet to begin.
        """
        size = self.most
        limit = max(STALL_S, STALL_STEPS * self.decode_s) / max(1, between)
        while between and size > LEAST_CHUNK and size * (token_s or self.token_s) > limit:
            size //= 2
        return size

    def took(self, tokens: Sequence[Sequence[int]], seconds: float) -> float:
        """A step of prompts has taken so long; gives the seconds of each token."""
        self.token_s = seconds / (len(tokens) * max(map(len, tokens)))
        return self.token_s
