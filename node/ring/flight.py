"""The steps that a driver has sent: which of them are certain, which are guesses, and how many more may follow. Pure.

A step begins its life when it is sent. It comes back to the driver, its results are computed, and it lands. A guess is
sent before the token of the step before it is drawn. When that step lands, the verdict says how many of the guesses
behind it are right: these are certain from then on, and the others are wrong. A wrong one still comes back, and lands
nowhere.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from node.core.evaluation import ChunkRequest
from node.core.frames import CacheOp, SequenceId
from node.engine.sampling import Draw
from node.ring.session import PartialEvaluation, Slot


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Apply `ops`, then run `tokens`, one row for each slot, which may differ in length in a step of prompts."""

    lane: SequenceId
    ops: tuple[CacheOp, ...]
    rows: tuple[Slot, ...]
    tokens: tuple[tuple[int, ...], ...]
    """Empty if the job of the step before it has begun it with the tokens that it drew."""
    samples: bool
    """Whether each row yields its session's next token."""
    ahead: int = 0
    """If not 0, the stage may run so many steps of the lane, this one included, and begins one more."""
    unverified: int = 0
    """See Frame.unverified: the step is a guess if it is not 0."""

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
class _Sent:
    step: Step
    certain: bool
    returned: bool = False
    """It has come back, and its results are being computed."""


class Flight:
    """A queue of sent steps for each lane: certain ones, then guesses."""

    def __init__(self, stages: int) -> None:
        """`stages`: number of the ring's stages."""
        self._stages = stages
        self.wire_is_slow = False
        """Frames are on the wire for so long, against the time of a stage, that one more step may be in flight for guesses."""
        self._lanes: dict[SequenceId, deque[_Sent]] = {}
        self._wrong = 0
        """Wrong guesses that have yet to come back."""

    # --- events ---

    def sent(self, step: Step) -> None:
        self._lanes.setdefault(step.lane, deque()).append(_Sent(step, certain=not step.unverified))

    def returned(self, step: Step) -> bool:
        """A step came back. Returns whether its results are wanted: not if it was a wrong guess."""
        sent = next((sent for sent in self._of(step.lane) if sent.step is step), None)
        if sent is None:
            self._wrong -= 1
            return False
        sent.returned = True
        return True

    def landed(self, step: Step, right: int = 0, begun: Step | None = None) -> int:
        """The lane's first step has its results. `right`: so many guesses behind it count. `begun`: the next step of the
        lane, begun with the results. Returns the number of guesses that are wrong.
        """
        lane = self._lanes[step.lane]
        assert lane.popleft().step is step
        if begun and begun.unverified:
            self.sent(begun)
        for sent in list(lane)[:right]:
            sent.certain = True
        wrong = 0
        while lane and not lane[-1].certain and not right:
            wrong += 1
            lane.pop()
        self._wrong += wrong
        if begun and not begun.unverified:
            self.sent(begun)
        if not lane:
            del self._lanes[step.lane]
        return wrong

    # --- a lane, or a step ---

    def is_certain(self, step: Step) -> bool:
        """Whether the results of a step in flight are needed."""
        return any(sent.certain for sent in self._of(step.lane) if sent.step is step)

    def is_busy(self, lane: SequenceId) -> bool:
        """Whether a step of the lane is in flight, so that its rows must not change."""
        return bool(self._of(lane))

    def is_landing(self, lane: SequenceId) -> bool:
        """Whether a step of the lane has come back, and its results are being computed: the next one may begin with them."""
        return any(sent.returned for sent in self._of(lane))

    def guesses(self, lane: SequenceId) -> list[int]:
        """The guessed tokens whose steps are in flight."""
        return [sent.step.tokens[0][0] for sent in self._of(lane) if not sent.certain]

    # --- how many more ---

    @property
    def is_full(self) -> bool:
        """One step more is in flight than there are stages: where a long step follows a short one, none waits for it."""
        return self._due > self._stages

    @property
    def has_idle_stage(self) -> bool:
        return self._due < self._stages

    @property
    def _due(self) -> int:
        """Number of certain steps that have yet to come back."""
        return sum(sent.certain and not sent.returned for lane in self._lanes.values() for sent in lane)

    @property
    def most_guesses(self) -> int:
        """Number of guesses that the ring has room for beside the certain steps."""
        certain = sum(sent.certain for lane in self._lanes.values() for sent in lane)
        return self._stages + self.wire_is_slow - certain

    @property
    def guessed(self) -> int:
        """Number of guesses in flight that may be right."""
        return sum(not sent.certain for lane in self._lanes.values() for sent in lane)

    @property
    def room(self) -> int:
        """Number of guesses for which a stage is idle or will be. The next step of a lane that is landing comes before any."""
        return self.most_guesses - self.guessed - self._wrong

    def _of(self, lane: SequenceId) -> Sequence[_Sent]:
        return self._lanes.get(lane, ())
