"""Lanes as the driver keeps them: which sessions step together, their steps, and the operations before a step. Pure."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from node.core.evaluation import ChunkRequest
from node.core.frames import CacheOp, Drop, Filter, Keep, Merge
from node.engine.runner import Draw
from node.ring.session import PartialEvaluation, Slot

KeepAs = Callable[[Slot], int | None]
"""Returns the number under which the stages are to keep a slot's KV, or None to free it. It may add operations, so all
operations go into one list."""


@dataclass(slots=True)
class Guess:
    """The token of a step that is sent before the token is drawn."""

    token: int
    right: bool | None = None
    """Whether it was drawn; None until then. A wrong one's step is void."""


@dataclass(frozen=True, slots=True)
class Step:
    """Apply `ops`, then run `tokens`, one row for each slot, which may differ in length in a step of prompts."""

    lane: int
    ops: tuple[CacheOp, ...]
    rows: tuple[Slot, ...]
    tokens: tuple[tuple[int, ...], ...]
    samples: bool
    """Whether each row yields its session's next token."""
    ahead: int = 0
    """If not 0, the stage may run so many steps of the lane, this one included, and begins one more."""
    guess: Guess | None = None
    unverified: int = 0
    """See Frame.unverified."""

    @property
    def is_due(self) -> bool:
        """Whether its result is certainly needed."""
        return self.guess is None or self.guess.right is True

    @property
    def is_void(self) -> bool:
        return self.guess is not None and self.guess.right is False

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the rows; empty if they are equal."""
        lengths = tuple(map(len, self.tokens))
        return lengths if len(set(lengths)) > 1 else ()

    @property
    def evaluations(self) -> list[PartialEvaluation]:
        """One for each row of a step of evaluations; empty when the rows are sampled."""
        return [slot.evaluation for slot in self.rows if slot.evaluation]

    def draws(self) -> list[Draw]:
        """The sampler's inputs, one for each row; empty when the step yields no tokens."""
        return [slot.session.draw() for slot in self.rows] if self.samples else []

    def chunk_requests(self) -> list[ChunkRequest]:
        """One for each row of a step of evaluations."""
        evaluations = self.evaluations
        pairs = zip(evaluations, self.tokens, strict=True) if evaluations else ()
        return [evaluation.request(len(tokens)) for evaluation, tokens in pairs]


@dataclass(slots=True)
class Lane:
    """Slots that step together. `rows` are the rows at the stages; only `prepare` and its operations change them."""

    number: int
    rows: list[Slot] = field(default_factory=list)
    joining: list[tuple[list[Slot], int]] = field(default_factory=list)
    """Slots whose prompts are done, and the lanes in which they are the rows."""
    prefilling: list[Slot] = field(default_factory=list)
    """Slots that will join once their prompt is done."""
    busy: bool = False
    """A step is in flight."""
    returned: bool = False
    """That step has come back: its result is being computed, and the next step may begin with it."""
    guesses: deque[Guess] = field(default_factory=deque[Guess])
    """Tokens of the steps in flight behind that one."""
    ahead: bool = False
    """The stage has begun the next step."""

    def slots(self) -> list[Slot]:
        """All slots that count towards the lane's size, in the order in which they came."""
        return [slot for slot in (*self._present(), *self.prefilling) if not slot.gone]

    def kept(self) -> list[Slot]:
        """Slots that are gone and whose KV is to be kept, until that is done."""
        return [slot for slot in (*self._present(), *self.prefilling) if slot.gone and slot.keep]

    def _present(self) -> list[Slot]:
        return [*self.rows, *(slot for slots, _ in self.joining for slot in slots)]

    @property
    def may_change(self) -> bool:
        """No step is in flight, so the rows may change."""
        return not self.busy and bool(self.rows or self.joining)

    @property
    def ready(self) -> bool:
        """Idle, with rows that need another step."""
        return self.may_change and not all(slot.gone for slot in self._present())

    @property
    def stale(self) -> bool:
        """Some rows belong to slots that are gone."""
        return any(slot.gone for slot in self._present())

    @property
    def may_guess(self) -> bool:
        """Whether a step of a guessed token may be sent behind the one in flight."""
        alone = len(self.rows) == 1 and not self.joining and not self.prefilling
        return alone and self.busy and not self.ahead and not self.rows[0].gone

    def guess(self) -> int | None:
        """The token that may come after the guesses in flight; None without one."""
        return self.rows[0].session.guess(self._guessed()) if self.may_guess else None

    def to_draft(self, most: int) -> list[int] | None:
        """See Session.guesses_to_draft_after."""
        return self.rows[0].session.guesses_to_draft_after(self._guessed(), most) if self.may_guess else None

    def _guessed(self) -> list[int]:
        """The guesses in flight."""
        return [guess.token for guess in self.guesses]

    def add_guess(self, token: int) -> Step:
        guess = Guess(token)
        self.guesses.append(guess)
        rows, unverified = tuple(self.rows), len(self.guesses)
        return Step(self.number, (), rows, ((token,),), samples=True, guess=guess, unverified=unverified)

    def land(self, *, right: bool) -> int:
        """A step landed. `right`: the first guess is the lane's next step. Else all guesses are wrong, and it returns how
        many there were.
        """
        self.busy, self.returned = right, False
        if right:
            self.guesses.popleft().right = True
            return 0
        for wrong in self.guesses:
            wrong.right = False
        count = len(self.guesses)
        self.guesses.clear()
        return count

    def join(self, slots: list[Slot], source: int) -> None:
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


def free_rows(rows: list[Slot], lane: int, ops: list[CacheOp], keep_as: KeepAs) -> list[Slot]:
    """Free the rows of a lane whose slots are gone; their KV is kept where wanted. Returns the slots that stay."""
    staying = [row for row, slot in enumerate(rows) if not slot.gone]
    if len(staying) == len(rows):
        return rows
    for row, slot in enumerate(rows):
        number = keep_as(slot) if slot.gone and slot.keep else None
        ops += [] if number is None else [Keep(lane, row, number, slot.sent)]
    ops.append(Filter(lane, tuple(staying)) if staying else Drop(lane))
    return [rows[row] for row in staying]
