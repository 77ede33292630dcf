"""A lane as the driver keeps it: which sessions step together, and what must happen before they step again."""

from collections.abc import Callable
from dataclasses import dataclass, field

from node.core.frames import CacheOp, Drop, Filter, Keep, Merge
from node.serving.session import Seat

KeepAs = Callable[[Seat], int | None]
"""The number under which a seat's KV shall be kept; None to let it go."""


@dataclass(slots=True)
class Lane:
    """The rows at the stages are those of `rows`, which changes only by `prepare`, whose operations tell the stages."""

    number: int
    rows: list[Seat] = field(default_factory=list)
    joining: list[tuple[Seat, int]] = field(default_factory=list)
    """Seats whose prompt is done, and the lanes in which it was done."""
    coming: list[Seat] = field(default_factory=list)
    """Seats that are to join once their prompt is done."""
    busy: bool = False
    """A step is under way."""

    def seats(self) -> list[Seat]:
        """All that count towards its size, in the order in which they came."""
        return [seat for seat in (*self.rows, *(seat for seat, _ in self.joining), *self.coming) if not seat.gone]

    @property
    def idle(self) -> bool:
        """Nothing is under way, so its rows may change."""
        return not self.busy and bool(self.rows or self.joining)

    @property
    def ready(self) -> bool:
        """Idle, with rows that want another step."""
        return self.idle and not all(seat.gone for seat in (*self.rows, *(seat for seat, _ in self.joining)))

    def prepare(self, keep_as: KeepAs) -> list[CacheOp]:
        """Let those go that are gone, and let those join that wait."""
        ops: list[CacheOp] = []
        staying = [row for row, seat in enumerate(self.rows) if not seat.gone]
        if len(staying) < len(self.rows):
            for row, seat in enumerate(self.rows):
                ops += keep(seat, self.number, row, keep_as)
            ops.append(Filter(self.number, tuple(staying)) if staying else Drop(self.number))
            self.rows = [self.rows[row] for row in staying]
        for seat, source in self.joining:
            if seat.gone:
                ops += [*keep(seat, source, 0, keep_as), Drop(source)]
            else:
                ops.append(Merge(self.number, source))
                self.rows.append(seat)
        self.joining = []
        return ops


def keep(seat: Seat, lane: int, row: int, keep_as: KeepAs) -> list[CacheOp]:
    """Keep the KV of a seat that is gone, if that is wanted."""
    number = keep_as(seat) if seat.gone and seat.keep else None
    return [] if number is None else [Keep(lane, row, number)]
