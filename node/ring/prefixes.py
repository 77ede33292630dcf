"""The prefixes that the stages keep for later sessions, as the driver accounts for them. Pure.

The KV itself is at the stages, under the prefix's number. Prefixes are compared as bytes: 15 comparisons find the
common prefix of two sequences of 32k tokens, so a list serves as well as a tree.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from node.core.frames import SequenceId

MIN_TOKENS = 16
"""A shorter prefix is not worth a copy of its KV."""
BYTES = array("I").itemsize
"""Of a packed token."""
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
        self._packed: OrderedDict[SequenceId, bytes] = OrderedDict()
        self._inherited: set[SequenceId] = set()

    @property
    def full(self) -> bool:
        return len(self._packed) >= MAX_PREFIXES

    def best(self, tokens: Sequence[int]) -> Match | None:
        """The prefix with the most of the first `tokens`; counts as its use."""
        wanted = pack(tokens)
        matches = []
        for number, packed in self._packed.items():
            common = common_tokens(packed, wanted)
            is_whole = common == _count(packed)
            if is_whole or self._trimmable:
                matches.append(Match(number, common, is_whole, number not in self._inherited))
        match = max(matches, key=lambda match: match.tokens, default=None)
        if match is None or match.tokens < MIN_TOKENS:
            return None
        self._packed.move_to_end(match.prefix)
        return match

    def add(self, number: SequenceId, tokens: Sequence[int]) -> list[SequenceId]:
        """Add a prefix and drop those that it continues. Returns the numbers of the dropped ones."""
        new = pack(tokens)
        needless = [number for number, packed in self._packed.items() if new.startswith(packed)]
        for other in needless:
            self.drop(other)
        self._packed[number] = new
        self.charged += self._charge(len(tokens))
        return needless

    def inherit(self, number: SequenceId, tokens: Sequence[int]) -> None:
        """Add a prefix of an earlier ring, of which some stages may have more tokens, and drop none."""
        self._packed[number] = pack(tokens)
        self._inherited.add(number)
        self.charged += self._charge(len(tokens))

    def all(self) -> dict[SequenceId, tuple[int, ...]]:
        """The tokens of each, in order of last use."""
        return {number: tuple(array("I", packed)) for number, packed in self._packed.items()}

    def worth_adding(self, tokens: Sequence[int]) -> bool:
        """Whether the sequence is long enough and not the beginning of a prefix."""
        new = pack(tokens)
        return len(tokens) >= MIN_TOKENS and not any(packed.startswith(new) for packed in self._packed.values())

    def evict_next(self, number: SequenceId) -> None:
        """Let the next `evict` drop this one."""
        self._packed.move_to_end(number, last=False)

    def evict(self, spared: Container[SequenceId] = ()) -> SequenceId | None:
        """Drop the least recently used one, those that are `spared` last, and give its number; None when there is none."""
        if not self._packed:
            return None
        oldest = next((number for number in self._packed if number not in spared), next(iter(self._packed)))
        self.drop(oldest)
        return oldest

    def drop(self, number: SequenceId) -> None:
        self._inherited.discard(number)
        self.charged -= self._charge(_count(self._packed.pop(number)))


def pack(tokens: Sequence[int]) -> bytes:
    """The form in which sequences are compared."""
    return array("I", tokens).tobytes()


def _count(packed: bytes) -> int:
    return len(packed) // BYTES


def common_tokens(one: bytes, other: bytes) -> int:
    """Number of tokens with which both begin."""
    most = min(_count(one), _count(other))
    # Before the first of the lengths at which they differ.
    return bisect_left(range(1, most + 1), True, key=lambda end: one[: end * BYTES] != other[: end * BYTES])
