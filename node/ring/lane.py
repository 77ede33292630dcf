"""A lane as the driver keeps it: which sessions step together, and what must happen before they step again."""

from collections.abc import Callable
from dataclasses import dataclass, field

from node.core.frames import CacheOp, Drop, Filter, Keep, Merge
from node.ring.session import Seat

KeepAs = Callable[[Seat], int | None]
"""The number under which a seat's KV shall be kept; None to let it go. It may add operations, so all go into one list."""


@dataclass(slots=True)
class Lane:
    """The rows at the stages are those of `rows`, which changes only by `prepare`, whose operations tell the stages."""

    number: int
    rows: list[Seat] = field(default_factory=list)
    joining: list[tuple[list[Seat], int]] = field(default_factory=list)
    """Seats whose prompts are done, and the lanes in which they are the rows."""
    coming: list[Seat] = field(default_factory=list)
    """Seats that are to join once their prompt is done."""
    busy: bool = False
    """A step is under way."""

    def seats(self) -> list[Seat]:
        """All that count towards its size, in the order in which they came."""
        return [seat for seat in (*self._present(), *self.coming) if not seat.gone]

    def kept(self) -> list[Seat]:
        """Those that are gone and whose KV is worth keeping, until that is done."""
        return [seat for seat in (*self._present(), *self.coming) if seat.gone and seat.keep]

    def _present(self) -> list[Seat]:
        return [*self.rows, *(seat for seats, _ in self.joining for seat in seats)]

    @property
    def idle(self) -> bool:
        """Nothing is under way, so its rows may change."""
        return not self.busy and bool(self.rows or self.joining)

    @property
    def ready(self) -> bool:
        """Idle, with rows that want another step."""
        return self.idle and not all(seat.gone for seat in self._present())

    @property
    def crowded(self) -> bool:
        """Rows are there of seats that are gone."""
        return any(seat.gone for seat in self._present())

    def arrive(self, seats: list[Seat], source: int) -> None:
        """Their prompts are done in lane `source`: they join with the next step."""
        self.coming = [seat for seat in self.coming if seat not in seats and not seat.gone]
        self.joining.append((seats, source))

    def prepare(self, ops: list[CacheOp], keep_as: KeepAs) -> None:
        """Let those go that are gone, and let those join that wait."""
        self.rows = part(self.rows, self.number, ops, keep_as)
        for seats, source in self.joining:
            staying = part(seats, source, ops, keep_as)
            ops += [Merge(self.number, source)] if staying else []
            self.rows += staying
        self.joining = []


def part(rows: list[Seat], lane: int, ops: list[CacheOp], keep_as: KeepAs) -> list[Seat]:
    """Let those rows of a lane go that are gone, their KV kept if that is wanted. Gives those that stay."""
    staying = [row for row, seat in enumerate(rows) if not seat.gone]
    if len(staying) == len(rows):
        return rows
    for row, seat in enumerate(rows):
        number = keep_as(seat) if seat.gone and seat.keep else None
        ops += [] if number is None else [Keep(lane, row, number)]
    ops.append(Filter(lane, tuple(staying)) if staying else Drop(lane))
    return [rows[row] for row in staying]
