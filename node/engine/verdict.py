"""What the driver asks of the job that computes a step's results, and what the job answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from node.core.errors import PippinError
from node.core.evaluation import ChunkResult
from node.core.frames import Frame
from node.engine.sampling import Sampled


class StepFailed(PippinError):
    """MLX could not compute a step."""

    code = "step_failed"


RowResult = Sampled | ChunkResult | PippinError
"""The result of one row of a step, or the error that ended only this row."""


@dataclass(frozen=True, slots=True)
class Following:
    """What may follow a step in its lane, as the driver knows it when the step comes back."""

    guesses: Sequence[int] = ()
    """Tokens of the guesses in flight; only in lanes of one row."""
    next_guess: int | None = None
    """The guess after these. Its step begins if the first of these is right."""
    chain: bool = False
    """The step of the drawn tokens begins if it is not in flight and no session ends."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the job of a step's results has found, and what it has begun. Nobody else compares a guess with a token."""

    results: Sequence[RowResult] = ()
    """One for each row; none for a chunk of a prompt before its last one."""
    right: int = 0
    """1 if the first guess in flight is right: it is certain from now on, and those behind it stay guesses. 0: all are wrong."""
    begun: Frame | None = None
    """The lane's next step, for the next stage."""
    guess: int | None = None
    """The token of that step if it is a guess; None if its tokens are those of `results`."""
