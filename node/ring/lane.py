"""Lanes as the driver keeps them: which sessions step together, and the operations before a step. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count

from node.core.frames import CacheOp, Drop, Filter, Merge, SequenceId
from node.core.nodes import NodeInfo
from node.ring.session import Slot

FIRST_NUMBER = 1 << 16
"""First number of prefixes and of lanes of prompts; decoding lanes have numbers below."""
KeepAs = Callable[[Slot, SequenceId, int], Sequence[CacheOp]]
"""Returns the operation by which the stages keep a slot's KV, which is in this row of this lane; none to free it. It may add
operations, so all operations go into one list."""


@dataclass(slots=True)
class Lane:
    """Slots that step together. `rows` are the rows at the stages; only `prepare` and its operations change them."""

    number: SequenceId
    rows: list[Slot] = field(default_factory=list)
    joining: list[tuple[list[Slot], SequenceId]] = field(default_factory=list)
    """Slots whose prompts are done, and the lanes in which they are the rows."""
    prefilling: list[Slot] = field(default_factory=list)
    """Slots that will join once their prompt is done."""
    ahead: bool = False
    """The stage has begun the next step."""
    again: bool = False
    """The next step repeats the last one, without its guesses: see Verdict."""

    def slots(self) -> list[Slot]:
        """All slots that count towards the lane's size, in the order in which they came."""
        return [slot for slot in (*self._present(), *self.prefilling) if not slot.gone]

    def kept(self) -> list[Slot]:
        """Slots that are gone and whose KV is to be kept, until that is done."""
        return [slot for slot in (*self._present(), *self.prefilling) if slot.gone and slot.keep]

    def _present(self) -> list[Slot]:
        return [*self.rows, *(slot for slots, _ in self.joining for slot in slots)]

    @property
    def is_live(self) -> bool:
        """It has rows that need another step."""
        return not all(slot.gone for slot in self._present())

    @property
    def is_stale(self) -> bool:
        """Some rows belong to slots that are gone."""
        return any(slot.gone for slot in self._present())

    @property
    def only(self) -> Slot | None:
        """The slot that has the lane to itself, if there is one."""
        alone = len(self.rows) == 1 and not self.joining and not self.prefilling and not self.rows[0].gone
        return self.rows[0] if alone else None

    def join(self, slots: list[Slot], source: SequenceId) -> None:
        """Add the rows of lane `source`, whose prompts are done, with the next step."""
        self.prefilling = [slot for slot in self.prefilling if slot not in slots and not slot.gone]
        self.joining.append((slots, source))

    def prepare(self, ops: list[CacheOp], keep_as: KeepAs) -> None:
        """Free the rows of slots that are gone, and merge those that are joining."""
        self.rows = free_rows(self.rows, self.number, ops, keep_as)
        self.ahead = self.ahead and bool(self.rows)
        for slots, source in self.joining:
            staying = free_rows(slots, source, ops, keep_as)
            ops += [Merge(self.number, source)] if staying else []
            self.rows += staying
        self.joining = []


def free_rows(rows: list[Slot], lane: SequenceId, ops: list[CacheOp], keep_as: KeepAs) -> list[Slot]:
    """Free the rows of a lane whose slots are gone; their KV is kept where wanted. Returns the slots that stay."""
    staying = [row for row, slot in enumerate(rows) if not slot.gone]
    if len(staying) == len(rows):
        return rows
    for row, slot in enumerate(rows):
        ops += keep_as(slot, lane, row) if slot.gone and slot.keep else ()
    ops.append(Filter(lane, tuple(staying)) if staying else Drop(lane))
    return [rows[row] for row in staying]


def sequence_numbers(info: NodeInfo) -> Iterator[SequenceId]:
    """Numbers for the sequences of all rings that a node's process drives.

    They begin at a hash of 62 bits, so that no two processes use the same: stages keep KV under numbers of earlier
    drivers.
    """
    digest = sha256(f"{info.id} {info.incarnation} {info.started_at}".encode()).digest()
    return count(max(FIRST_NUMBER, int.from_bytes(digest[:8]) >> 2))
