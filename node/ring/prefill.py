"""Prompts on their way into a lane: which of them run together, and how many of their tokens in one step. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from node.core.clock import now
from node.core.frames import SequenceId
from node.core.generation import PromptProgress
from node.core.rate import Rate
from node.ring.lane import Lane
from node.ring.session import Slot

STALL_S = 0.15
"""Maximum delay that a chunk causes to streams: a reader hardly sees it, and it is long beside a step of decoding."""
STALL_STEPS = 2
"""Where steps of decoding are slow, a chunk may take as long as so many of them: a shorter one would gain little."""
LONG_CHUNK_S = 3.0
"""Maximum time of a chunk of more than SHORT_CHUNK while nothing streams: another prompt may wait for it."""
TIMEOUT_SHARE = 0.1
"""Maximum share of --step-timeout that a chunk takes on the slowest stage: it waits there for others, and other work slows it down."""
SHORT_CHUNK = 512
"""Tokens with which every device is nearly at its full speed."""
MIN_CHUNK = 16
"""Tokens; a step of fewer takes as long."""
MAX_DIVISOR = 8
"""A full chunk divided by this is the shortest one that is made to keep all stages busy."""
GRID = 512
"""Tokens of each chunk where the answer depends on how a prompt is divided."""


@dataclass(slots=True, eq=False)
class Prefill:
    """A lane whose rows will join `home`: one prompt, run in chunks, or several short ones, run in a single step."""

    lane: SequenceId
    home: Lane
    slots: list[Slot]
    """One for each row of the lane."""
    cached: int
    """Tokens of each row that were there before; the same for all rows, so none is padded for it."""
    begun: bool = False
    token_s: float = 0.0
    """Seconds for each token of the last chunk; they grow with the position in the prompt."""
    most_alone: int = 0
    """Tokens of its chunks while it has the ring to itself. It stays, as times of chunks of different sizes can't be compared."""
    progress: PromptProgress = field(default_factory=lambda: PromptProgress(0, 0))
    """How far it is; of nothing before its first chunk is back, and if the first one is the last."""
    rate: Rate = field(default_factory=lambda: Rate(now))
    """Of its tokens, for who asks how far it is."""

    @property
    def gone(self) -> bool:
        return all(slot.gone for slot in self.slots)

    @property
    def ready(self) -> bool:
        return any(slot.unsent for slot in self.slots if not slot.gone)

    @property
    def is_blind(self) -> bool:
        """Whether it waits for the embeddings of a picture."""
        return self.slots[0].is_blind

    def fits(self, slot: Slot, most: int, *, pads: bool) -> bool:
        """Whether one more prompt can run in the same step: the whole prompt, within `most` tokens with the padding.

        Without `pads` all prompts must have the same length.
        """
        lengths = [slot.unsent, *(other.unsent for other in self.slots)]
        evaluated = {bool(other.evaluation) for other in (slot, *self.slots)}
        alike = not (slot.has_pictures or self.slots[0].has_pictures)
        alike = alike and self.cached == slot.cached and len(evaluated) == 1 and (pads or len(set(lengths)) == 1)
        return alike and not self.begun and len(lengths) * max(lengths) <= most

    def chunk(self, most: int, *, is_on_grid: bool) -> tuple[tuple[int, ...], ...]:
        """The tokens of the next step, a row for each slot: of a single prompt at most `most`, none of a picture that is not seen
        yet, and a whole picture if that may not be divided.

        `is_on_grid`: prompts are divided only at multiples of GRID, and generated tokens are replayed one by one.
        """
        is_single = len(self.slots) == 1
        rows = []
        for slot in self.slots:
            prompt, end = len(slot.session.request.prompt), len(slot.session.tokens)
            if is_on_grid:
                end = slot.sent + 1 if slot.sent >= prompt else min(slot.sent // GRID * GRID + GRID, prompt)
            elif is_single:
                end = min(slot.sent + most, end)
                end = slot.state_at if slot.sent < slot.state_at < end else end
            end = min(end, slot.sight)
            if slot.session.axes:
                end = slot.session.axes.whole_end(slot.sent, end)
            rows.append(tuple(slot.session.tokens[slot.sent : end]))
            slot.sent = end
        return tuple(rows)


@dataclass(slots=True)
class ChunkSize:
    """Tokens of a prompt that one step may run, from the time that earlier steps took."""

    most: int
    """Tokens with which the device reaches its full speed: the size when no stream would be delayed."""
    stages: int
    """Of the ring."""
    step_timeout_s: float = math.inf
    measured_s: float = 0.0
    """See RingLimits.token_s."""
    last_tokens: int = 0
    """Tokens of the last step of prompts."""
    last_s: float = 0.0
    """Seconds that it took."""
    decode_s: float = 0.0
    """Seconds of the last step of decoding."""

    def of(self, prefill: Prefill, decoding: int, *, is_alone: bool) -> int:
        """Tokens of the prompt's next step. `decoding`: lanes of streams; `is_alone`: nothing else runs or waits."""
        size, slot = self._tokens(self._between(decoding), prefill.token_s), prefill.slots[0]
        # Scores of a text are to be the same each time, to the last bit if possible.
        if self.stages == 1 or not is_alone or slot.evaluation:
            return size
        prefill.most_alone = prefill.most_alone or self._best_alone(slot.unsent)
        return min(size, prefill.most_alone)

    def shared(self, decoding: int) -> int:
        """Tokens of a step that several prompts share.

        In a ring it is as short as a step between those of streams: until the first one has gone round, stages are idle.
        """
        return self._tokens(self._between(decoding) or int(self.stages > 1))

    def _between(self, decoding: int) -> int:
        """Number of chunks that can come between two steps of a stream; 0 when there is no stream."""
        return max(1, self.stages - decoding) if decoding else 0

    def _tokens(self, between: int, token_s: float = 0.0) -> int:
        """`token_s`: seconds for each token of this prompt; 0 before its first chunk. Where not even one is measured, chunks are short."""
        token_s = token_s or self.token_s
        size = self.most if token_s else min(self.most, SHORT_CHUNK)
        least, limit = SHORT_CHUNK, LONG_CHUNK_S
        if between:
            least, limit = MIN_CHUNK, max(STALL_S, STALL_STEPS * self.decode_s) / between
        longest = TIMEOUT_SHARE * self.step_timeout_s
        while (size > least and size * token_s > limit) or (size > MIN_CHUNK and size * token_s > longest):
            size //= 2
        return size

    def _best_alone(self, unsent: int) -> int:
        """Tokens of each chunk with which a prompt that has the ring to itself is computed soonest.

        Chunks pass the stages like an assembly line: P of them take as long as P + stages - 1 of them on one stage. Each
        takes the time of a step of decoding, and each token adds to it; the sum is least with the P below.
        """
        if not (self.last_tokens and self.decode_s):
            return self.most
        added_s = max(0.0, self.last_s - self.decode_s) / self.last_tokens
        chunks = round(math.sqrt((self.stages - 1) * unsent * added_s / self.decode_s))
        return math.ceil(unsent / max(1, min(chunks, unsent * MAX_DIVISOR // self.most)))

    @property
    def token_s(self) -> float:
        """Seconds for each token of the last step of prompts; before the first, what was measured."""
        return self.last_s / self.last_tokens if self.last_tokens else self.measured_s

    def note(self, tokens: Sequence[Sequence[int]], seconds: float) -> float:
        """A step of prompts is done. Returns the seconds for each token."""
        self.last_tokens, self.last_s = len(tokens) * max(map(len, tokens)), seconds
        return seconds / self.last_tokens
