"""How likely a guess must be right, so that a step of guesses behind the certain one pays. Pure.

Where all stages take equally long, a wrong guess takes only time in which a stage would be idle. Else the right step may find a
stage, or the memory that it shares, busy with the wrong one. So the rounds are measured.
"""

from enum import Enum, auto

SMOOTHING = 0.1
"""Weight of the last round of its kind."""
LEAST = 4
"""Rounds of a kind from which on they count."""
LONGEST = 2.0
"""A round counts as at most so many times the mean: a busy machine has longer ones."""
FADING = 0.002
"""Share by which guesses are taken to cost less, and to save more, with each round without them: some time later they are tried again."""


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
        self._mean_s = dict.fromkeys(Round, 0.0)
        self._count = dict.fromkeys(Round, 0)
        self._next: Round | None = None

    def begin(self, kind: Round | None) -> None:
        """The next round begins at once; None: it does not, or is of another session."""
        self._next = kind

    def note(self, seconds: float) -> None:
        """The round has ended."""
        if (kind := self._next) is None:
            return
        mean, count = self._mean_s[kind], self._count[kind] + 1
        self._count[kind] = count
        seconds = min(seconds, LONGEST * mean) if count > LEAST else seconds
        self._mean_s[kind] += max(SMOOTHING, 1 / count) * (seconds - mean)
        if kind is Round.PLAIN:
            plain = self._mean_s[Round.PLAIN]
            for other, best in ((Round.WRONG, plain), (Round.RIGHT, plain / self._stages)):
                self._mean_s[other] += FADING * (best - self._mean_s[other])

    @property
    def least_rate(self) -> float:
        """Guesses that are less often right cost more time than they save; 0 if none do, or too little is known. Where only rounds without
        guesses are not, none is made until they are.
        """
        if self._count[Round.WRONG] < LEAST:
            return 0.0
        if self._count[Round.PLAIN] < LEAST:
            return 1.0
        plain, wrong, right = (self._mean_s[kind] for kind in Round)
        lost = wrong - plain
        saved = plain - (right if self._count[Round.RIGHT] >= LEAST else plain / self._stages)
        return lost / (lost + max(0.0, saved)) if lost > 0 else 0.0
