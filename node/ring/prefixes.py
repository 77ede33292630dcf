"""Which beginnings of sequences the stages still hold KV of. Pure; the KV itself is at the stages, under the same number.

Beginnings are compared as bytes: a common prefix of two sequences of 32k tokens is found by 15 comparisons of memory,
so a list serves as well as a tree and has no nodes to keep.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SHORTEST = 16
"""Tokens; less is not worth a copy of its KV."""
MOST = 1024
"""Prefixes, however short: stages bound theirs, and each new prompt is compared with all."""


@dataclass(frozen=True, slots=True)
class Match:
    prefix: int
    tokens: int
    """How many of the prefix's first tokens fit."""


class Prefixes:
    """Ordered by last use. `trimmable`: whether the caches can go back to an earlier position of what they hold.

    `charge` gives what a sequence of so many tokens takes of the budget; `charged` is the sum.
    """

    def __init__(self, charge: Callable[[int], int], *, trimmable: bool) -> None:
        self.charged = 0
        self._charge = charge
        self._trimmable = trimmable
        self._held: OrderedDict[int, bytes] = OrderedDict()

    @property
    def full(self) -> bool:
        return len(self._held) >= MOST

    def best(self, tokens: Sequence[int]) -> Match | None:
        """The prefix that spares the most of `tokens`; its use is noted."""
        wanted = _pack(tokens)
        matches = [Match(number, _common(held, wanted)) for number, held in self._held.items()]
        if not self._trimmable:
            matches = [match for match in matches if match.tokens == _count(self._held[match.prefix])]
        match = max(matches, key=lambda match: match.tokens, default=None)
        if match is None or match.tokens < SHORTEST:
            return None
        self._held.move_to_end(match.prefix)
        return match

    def add(self, number: int, tokens: Sequence[int]) -> list[int]:
        """Gives the numbers of those that it makes needless, being their continuation; they are let go."""
        new = _pack(tokens)
        needless = [number for number, held in self._held.items() if new.startswith(held)]
        for other in needless:
            self.drop(other)
        self.put(number, tokens)
        return needless

    def put(self, number: int, tokens: Sequence[int]) -> None:
        """Add it beside all others."""
        self._held[number] = _pack(tokens)
        self.charged += self._charge(len(tokens))

    def all(self) -> dict[int, tuple[int, ...]]:
        """The tokens of each, in order of last use."""
        return {number: tuple(array("I", held)) for number, held in self._held.items()}

    def worth_adding(self, tokens: Sequence[int]) -> bool:
        """Whether it is long enough and not the beginning of one that is held."""
        new = _pack(tokens)
        return len(tokens) >= SHORTEST and not any(held.startswith(new) for held in self._held.values())

    def use_last(self, number: int) -> None:
        """It is the first to be let go."""
        self._held.move_to_end(number, last=False)

    def evict(self) -> int | None:
        """Forget the one that was not used for longest; None when there is none."""
        oldest = next(iter(self._held), None)
        if oldest is not None:
            self.drop(oldest)
        return oldest

    def drop(self, number: int) -> None:
        self.charged -= self._charge(_count(self._held.pop(number)))


def _pack(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()


def _count(packed: bytes) -> int:
    return len(packed) // 4


def _common(one: bytes, other: bytes) -> int:
    """Tokens that both begin with."""
    low, high = 0, min(_count(one), _count(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * 4] == other[: middle * 4]:
            low = middle
        else:
            high = middle - 1
    return low
