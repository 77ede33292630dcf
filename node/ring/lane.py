"""A lane as the driver keeps it: which sessions step together, and what must happen before they step again."""

from collections.abc import Callable
from dataclasses import dataclass, field

from node.core.frames import CacheOp, Drop, Filter, Keep, Merge
from node.ring.session import Slot

KeepAs = Callable[[Slot], int | None]
"""The number under which a slot's KV shall be kept; None to let it go. It may add operations, so all go into one list."""


@dataclass(slots=True)
class Lane:
    """The rows at the stages are those of `rows`, which changes only by `prepare`, whose operations tell the stages."""

    number: int
    rows: list[Slot] = field(default_factory=list)
    joining: list[tuple[list[Slot], int]] = field(default_factory=list)
    """Slots whose prompts are done, and the lanes in which they are the rows."""
    coming: list[Slot] = field(default_factory=list)
    """Slots that are to join once their prompt is done."""
    busy: bool = False
    """A step is under way."""

    def slots(self) -> list[Slot]:
        """All that count towards its size, in the order in which they came."""
        return [slot for slot in (*self._present(), *self.coming) if not slot.gone]

    def kept(self) -> list[Slot]:
        """Those that are gone and whose KV is worth keeping, until that is done."""
        return [slot for slot in (*self._present(), *self.coming) if slot.gone and slot.keep]

    def _present(self) -> list[Slot]:
        return [*self.rows, *(slot for slots, _ in self.joining for slot in slots)]

    @property
    def idle(self) -> bool:
        """Nothing is under way, so its rows may change."""
        return not self.busy and bool(self.rows or self.joining)

    @property
    def ready(self) -> bool:
        """Idle, with rows that want another step."""
        return self.idle and not all(slot.gone for slot in self._present())

    @property
    def crowded(self) -> bool:
        """Rows are there of slots that are gone."""
        return any(slot.gone for slot in self._present())

    def arrive(self, slots: list[Slot], source: int) -> None:
        """Their prompts are done in lane `source`: they join with the next step."""
        self.coming = [slot for slot in self.coming if slot not in slots and not slot.gone]
        self.joining.append((slots, source))

    def prepare(self, ops: list[CacheOp], keep_as: KeepAs) -> None:
        """Let those go that are gone, and let those join that wait."""
        self.rows = part(self.rows, self.number, ops, keep_as)
        for slots, source in self.joining:
            staying = part(slots, source, ops, keep_as)
            ops += [Merge(self.number, source)] if staying else []
            self.rows += staying
        self.joining = []


def part(rows: list[Slot], lane: int, ops: list[CacheOp], keep_as: KeepAs) -> list[Slot]:
    """Let those rows of a lane go that are gone, their KV kept if that is wanted. Gives those that stay."""
    staying = [row for row, slot in enumerate(rows) if not slot.gone]
    if len(staying) == len(rows):
        return rows
    for row, slot in enumerate(rows):
        number = keep_as(slot) if slot.gone and slot.keep else None
        ops += [] if number is None else [Keep(lane, row, number)]
    ops.append(Filter(lane, tuple(staying)) if staying else Drop(lane))
    return [rows[row] for row in staying]
