"""The mean of what was measured lately. Pure."""

from dataclasses import dataclass

SMOOTHING = 0.1
"""Weight of the last value."""
LEAST = 4
"""Values from which on they count."""
LONGEST = 2.0
"""A value counts as at most so many times the mean: a busy machine has longer ones."""
FADING = 0.002
"""Share of the way by which a mean approaches what is expected, with each value of another kind: some time later it is tried again."""


@dataclass(slots=True)
class RunningMean:
    value: float = 0.0
    count: int = 0

    def note(self, value: float) -> None:
        self.count += 1
        value = min(value, LONGEST * self.value) if self.count > LEAST else value
        self.value += max(SMOOTHING, 1 / self.count) * (value - self.value)

    def approach(self, expected: float) -> None:
        """As nothing was measured this time."""
        self.value += (FADING if self.count else 1.0) * (expected - self.value)

    @property
    def is_known(self) -> bool:
        return self.count >= LEAST
