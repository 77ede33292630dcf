"""The prefixes that the stages keep for later sessions, as the driver accounts for them. Pure.

The KV itself is at the stages, under the prefix's number. Prefixes are compared as bytes: 15 comparisons find the
common prefix of two sequences of 32k tokens, so a list serves as well as a tree.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.core.frames import SequenceId

MIN_TOKENS = 16
"""A shorter prefix is not worth a copy of its KV."""
BYTES = array("I").itemsize
"""Of a packed token."""
MAX_REST = 8192
"""Tokens of a prefix that may tell how an answer goes on."""
MAX_PREFIXES = 1024
"""Bounds the caches at the stages, and the comparisons for each new prompt."""


@dataclass(frozen=True, slots=True)
class Match:
    prefix: SequenceId
    tokens: int
    """How many of the prefix's first tokens match."""
    whole: bool
    """Whether all of them do."""
    exact: bool
    """Whether no stage has more tokens of it."""


class Prefixes:
    """Ordered by last use. `charged` is the sum of their charges.

    `charge`: see RingLimits. `trimmable`: whether the caches can go back to an earlier position.
    """

    def __init__(self, charge: Callable[[int], int], *, trimmable: bool) -> None:
        self.charged = 0
        self._charge = charge
        self._trimmable = trimmable
        self._held: OrderedDict[SequenceId, bytes] = OrderedDict()
        self._inherited: set[SequenceId] = set()

    @property
    def full(self) -> bool:
        return len(self._held) >= MAX_PREFIXES

    def best(self, tokens: Sequence[int]) -> Match | None:
        """The prefix with the most of the first `tokens`; counts as its use."""
        wanted = pack(tokens)
        matches = [self._match(number, wanted) for number in self._held]
        if not self._trimmable:
            matches = [match for match in matches if match.whole]
        match = max(matches, key=lambda match: match.tokens, default=None)
        if match is None or match.tokens < MIN_TOKENS:
            return None
        self._held.move_to_end(match.prefix)
        return match

    def rest(self, match: Match) -> tuple[int, ...]:
        """What follows in the prefix, such as an earlier answer to the same prompt; at most MAX_REST tokens."""
        begin = match.tokens * BYTES
        return tuple(array("I", self._held[match.prefix][begin : begin + MAX_REST * BYTES]))

    def _match(self, number: SequenceId, wanted: bytes) -> Match:
        prefix = self._held[number]
        tokens = common_tokens(prefix, wanted)
        return Match(number, tokens, tokens == _count(prefix), number not in self._inherited)

    def add(self, number: SequenceId, tokens: Sequence[int]) -> list[SequenceId]:
        """Add a prefix and drop those that it continues. Returns the numbers of the dropped ones."""
        new = pack(tokens)
        needless = [number for number, held in self._held.items() if new.startswith(held)]
        for other in needless:
            self.drop(other)
        self._held[number] = new
        self.charged += self._charge(len(tokens))
        return needless

    def inherit(self, number: SequenceId, tokens: Sequence[int]) -> None:
        """Add a prefix of an earlier ring, of which some stages may have more tokens, and drop none."""
        self._held[number] = pack(tokens)
        self._inherited.add(number)
        self.charged += self._charge(len(tokens))

    def all(self) -> dict[SequenceId, tuple[int, ...]]:
        """The tokens of each, in order of last use."""
        return {number: tuple(array("I", held)) for number, held in self._held.items()}

    def worth_adding(self, tokens: Sequence[int]) -> bool:
        """Whether the sequence is long enough and not the beginning of a prefix."""
        new = pack(tokens)
        return len(tokens) >= MIN_TOKENS and not any(held.startswith(new) for held in self._held.values())

    def evict_next(self, number: SequenceId) -> None:
        """Let the next `evict` drop this one."""
        self._held.move_to_end(number, last=False)

    def evict(self) -> SequenceId | None:
        """Drop the least recently used one and give its number; None when there is none."""
        oldest = next(iter(self._held), None)
        if oldest is not None:
            self.drop(oldest)
        return oldest

    def drop(self, number: SequenceId) -> None:
        self._inherited.discard(number)
        self.charged -= self._charge(_count(self._held.pop(number)))


def pack(tokens: Sequence[int]) -> bytes:
    """The form in which sequences are compared."""
    return array("I", tokens).tobytes()


def _count(packed: bytes) -> int:
    return len(packed) // BYTES


def common_tokens(one: bytes, other: bytes) -> int:
    """Number of tokens with which both begin."""
    low, high = 0, min(_count(one), _count(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * BYTES] == other[: middle * BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
