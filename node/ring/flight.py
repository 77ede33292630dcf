"""The steps that a driver has sent: which of them are certain, which are guesses, and how many more may follow. Pure.

A step begins its life when it is sent. It comes back to the driver, its results are computed, and it lands. Where a
session has its lane to itself, guesses at its next tokens may follow a certain token in the same step, and more of them in
steps behind it, which are guesses themselves: they are sent before the token of the step before them is drawn. When that
step lands, the verdict says how many guesses are right, up to the first one of the step behind: then this step is certain
from then on, else all steps behind are wrong. A wrong one still comes back, and lands nowhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from node.core.axes import Span
from node.core.evaluation import ChunkRequest
from node.core.frames import CacheOp, SequenceId
from node.engine.sampling import Draw
from node.engine.tower import Seen
from node.engine.verdict import RowResult
from node.ring.session import PartialEvaluation, Slot


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Apply `ops`, then run `tokens`, one row for each slot, which may differ in length in a step of prompts. In a step that
    samples and has `unverified` tokens, those after the first are guesses.
    """

    lane: SequenceId
    ops: tuple[CacheOp, ...]
    rows: tuple[Slot, ...]
    tokens: tuple[tuple[int, ...], ...]
    """Empty if the job of the step before it has begun it with the tokens that it drew."""
    samples: bool
    """Whether each row yields its session's next token."""
    begin: int = 0
    """Of a step of prompts: the position of each row's first token."""
    of_prompt: bool = False
    ahead: int = 0
    """If not 0, the stage may run so many steps of the lane, this one included, and begins one more."""
    unverified: int = 0
    """See Frame.unverified."""
    padding: int = 0
    """So many of the tokens, the last ones, nobody guessed: they only make the step as long as it has to be. They are wrong
    whatever is drawn, and no step follows them.
    """

    @property
    def guesses(self) -> tuple[int, ...]:
        """Those behind the step's first token."""
        return self.tokens[0][1 : len(self.tokens[0]) - self.padding] if self.unverified else ()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the rows; empty if they are equal."""
        lengths = tuple(map(len, self.tokens))
        return lengths if len(set(lengths)) > 1 else ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """See Frame.spans."""
        axes = self.rows[0].session.axes if len(self.rows) == 1 and self.of_prompt else None
        return axes.spans(self.begin, self.begin + len(self.tokens[0])) if axes else ()

    @property
    def shifts(self) -> tuple[int, ...]:
        """See Frame.shifts: of text behind all pictures."""
        axes = (slot.session.axes for slot in self.rows)
        shifts = tuple(each.shift if each else 0 for each in axes)
        return shifts if any(shifts) and not self.spans else ()

    @property
    def seen(self) -> Seen | None:
        """The embeddings of a picture in a prompt, which is the only row then."""
        seen = self.rows[0].seen if self.rows and self.of_prompt else None
        return seen.at(self.begin) if seen else None

    @property
    def evaluations(self) -> list[PartialEvaluation]:
        """One for each row of a step of evaluations; empty when the rows are sampled."""
        return [slot.evaluation for slot in self.rows if slot.evaluation]

    def draws(self) -> list[Draw]:
        """The sampler's inputs, one for each row, or for each token of a step with guesses; empty when the step yields no
        tokens.
        """
        if not self.samples:
            return []
        later = [self.rows[0].session.draw(self.guesses[: k + 1]) for k in range(len(self.guesses))]
        return [slot.session.draw() for slot in self.rows] + later

    def pairs(self, results: Sequence[RowResult]) -> list[tuple[Slot, RowResult]]:
        """The slot of each result."""
        rows = self.rows * len(results) if self.guesses else self.rows
        return list(zip(rows, results, strict=bool(results)))

    def chunk_requests(self) -> list[ChunkRequest]:
        """One for each row of a step of evaluations."""
        evaluations = self.evaluations
        pairs = zip(evaluations, self.tokens, strict=True) if evaluations else ()
        return [evaluation.request(len(tokens)) for evaluation, tokens in pairs]


class Flight:
    """A queue of sent steps for each lane. A step of guesses is certain once it is the first of its lane."""

    def __init__(self, stages: int) -> None:
        """`stages`: number of the ring's stages."""
        self._stages = stages
        self.wire_is_slow = False
        """Frames are on the wire for so long, against the time of a stage, that one more step may be in flight for guesses."""
        self._lanes: dict[SequenceId, list[Step]] = {}
        self._landing: set[Step] = set()
        """Steps that have come back, and whose results are being computed."""
        self._wrong: set[Step] = set()
        """Wrong guesses that have yet to come back."""

    # --- events ---

    def sent(self, step: Step) -> None:
        self._lanes.setdefault(step.lane, []).append(step)

    def returned(self, step: Step) -> bool:
        """A step came back. Returns whether its results are wanted: not if it was a wrong guess."""
        if step in self._wrong:
            self._wrong.remove(step)
            return False
        self._landing.add(step)
        return True

    def landed(self, step: Step, right: int = 0, begun: Step | None = None) -> int:
        """The lane's first step has its results. `right`: as in Verdict. `begun`: the next step of the lane,
        begun with the results. Returns the number of guessed tokens that are wrong.
        """
        first, *behind = self._lanes.pop(step.lane)
        assert first is step
        self._landing.discard(step)
        behind += [begun] if begun else []
        own = len(step.guesses)
        wrong = [] if right > own else [each for each in behind if each.unverified]
        self._wrong.update(wrong)
        if left := [each for each in behind if each not in wrong]:
            self._lanes[step.lane] = left
        return max(0, own - right) + step.padding + sum(len(each.tokens[0]) for each in wrong)

    # --- a lane, or a step ---

    def is_certain(self, step: Step) -> bool:
        """Whether the results of a step in flight are needed."""
        return step in self._lanes.get(step.lane, ()) and step not in self._guesses(step.lane)

    def is_busy(self, lane: SequenceId) -> bool:
        """Whether a step of the lane is in flight, so that its rows must not change."""
        return lane in self._lanes

    def is_landing(self, lane: SequenceId) -> bool:
        """Whether a step of the lane has come back, and its results are being computed: the next one may begin with them."""
        return not self._landing.isdisjoint(self._lanes.get(lane, ()))

    def guesses(self, lane: SequenceId) -> list[int]:
        """The guessed tokens in flight."""
        certain = self._lanes.get(lane, ())[:1]
        own = [token for step in certain for token in step.guesses]
        return own + [token for step in self._guesses(lane) for token in (step.tokens[0][0], *step.guesses)]

    def own_guesses(self, lane: SequenceId) -> int:
        """Number of those in the lane's certain step, which need no step of their own."""
        return sum(len(step.guesses) for step in self._lanes.get(lane, ())[:1])

    def is_padded(self, lane: SequenceId) -> bool:
        """Whether the lane's last step in flight has tokens that nobody guessed."""
        return any(step.padding for step in self._lanes.get(lane, ())[-1:])

    def _guesses(self, lane: SequenceId) -> list[Step]:
        return [step for step in self._lanes.get(lane, ())[1:] if step.unverified]

    # --- how many more ---

    @property
    def is_full(self) -> bool:
        """One step more is on its way than there are stages: where a long step follows a short one, none waits for it."""
        return self._certain - len(self._landing) > self._stages

    @property
    def has_idle_stage(self) -> bool:
        return self._certain - len(self._landing) < self._stages

    @property
    def _certain(self) -> int:
        return sum(map(len, self._lanes.values())) - self.guessed

    @property
    def guessed(self) -> int:
        """Number of steps of guesses in flight that may be right."""
        return sum(len(self._guesses(lane)) for lane in self._lanes)

    @property
    def most_guessed(self) -> int:
        """Number of steps of guesses that may be in flight beside the certain ones."""
        return self._stages + self.wire_is_slow - self._certain

    @property
    def free_stages(self) -> int:
        """Number of further steps of guesses for which a stage is idle or will be. The next step of a lane that lands comes first."""
        return self.most_guessed - self.guessed - len(self._wrong)
