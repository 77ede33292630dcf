"""How likely a guess must be right, so that a step of guesses behind the certain one pays. Pure.

Where all stages take equally long, a wrong guess takes only time in which a stage would be idle. Else the right step may find a
stage, or the memory that it shares, busy with the wrong one. So the rounds are measured.
"""

from enum import Enum, auto

from node.ring.running_mean import RunningMean


class Round(Enum):
    """What was behind the step before, while it went round."""

    PLAIN = auto()
    WRONG = auto()
    """A guess that was wrong: the step began after it."""
    RIGHT = auto()
    """A right guess: the step itself."""


class GuessGain:
    """The rounds of sessions that have the ring to themselves: seconds from one token's return to the next one's."""

    def __init__(self, stages: int) -> None:
        """`stages`: of the ring, of which each takes equally long until right guesses tell."""
        self._stages = stages
        self._seconds = {kind: RunningMean() for kind in Round}
        self._next: Round | None = None

    def begin(self, kind: Round | None) -> None:
        """The next round begins at once; None: it does not, or is of another session."""
        self._next = kind

    def note(self, seconds: float) -> None:
        """The round has ended."""
        if (kind := self._next) is None:
            return
        self._seconds[kind].note(seconds)
        if kind is Round.PLAIN:
            plain = self._seconds[kind].value
            self._seconds[Round.WRONG].approach(plain)
            self._seconds[Round.RIGHT].approach(plain / self._stages)

    @property
    def least_rate(self) -> float:
        """Guesses that are less often right cost more time than they save; 0 if none do, or too little is known. Where only rounds without
        guesses are not, none is made until they are.
        """
        plain, wrong, right = (self._seconds[kind] for kind in Round)
        if not wrong.is_known:
            return 0.0
        if not plain.is_known:
            return 1.0
        lost = wrong.value - plain.value
        saved = plain.value - (right.value if right.is_known else plain.value / self._stages)
        return lost / (lost + max(0.0, saved)) if lost > 0 else 0.0
