"""Numbers of tokens of one session that a step may have, such that no bit of a token's result depends on the others."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowFamily:
    """What a stage, or a whole ring, has proven: kernels differ by the number of rows, so not all numbers give equal bits."""

    costs: tuple[tuple[int, float], ...] = ((1, 1.0),)
    """For each such number of tokens, ascending, the time of a step, in that of a step of one token."""
