"""A step of one lane, as the scheduler decides it and the ring runs it."""

from dataclasses import dataclass

from node.core.frames import CacheOp
from node.ring.reading import Reading
from node.ring.session import Slot


@dataclass(frozen=True, slots=True)
class Step:
    """Do `ops`, then run `tokens`, one row for each slot; `samples` when each row yields its session's next token.

    Rows of a step of prompts may differ in length.
    """

    lane: int
    ops: tuple[CacheOp, ...]
    rows: tuple[Slot, ...]
    tokens: tuple[tuple[int, ...], ...]
    samples: bool

    @property
    def readings(self) -> list[Reading]:
        """The evaluations that it is a step of, one for each row; empty when its rows are to be drawn from."""
        return [slot.reading for slot in self.rows if slot.reading]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the rows, if they differ."""
        lengths = tuple(map(len, self.tokens))
        return lengths if len(set(lengths)) > 1 else ()
