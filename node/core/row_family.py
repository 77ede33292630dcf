"""Numbers of tokens of one session that a step may have, such that no bit of a token's result depends on the others."""

from collections.abc import Hashable
from dataclasses import dataclass

Groups = tuple[tuple[int, ...], ...]
"""Numbers of tokens of one session in a step, ascending, in groups that give equal bits."""
LayerKind = Hashable
"""The same kernels compute the layers of one kind: what is proven of one is proven of all."""


def equal_in_both(one: Groups, other: Groups) -> Groups:
    return tuple(both for left in one for right in other if (both := tuple(n for n in left if n in right)))


@dataclass(frozen=True, slots=True)
class RowFamily:
    """What a stage, or a whole ring, has proven: kernels differ by the number of rows, so not all numbers give equal bits."""

    costs: tuple[tuple[int, float], ...] = ((1, 1.0),)
    """For each such number of tokens, ascending, the time of a step, in that of a step of one token."""
