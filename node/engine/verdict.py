"""What the driver asks of the job that computes a step's results, and what the job answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from node.core.errors import PippinError
from node.core.evaluation import ChunkResult
from node.core.frames import Frame, Tensor
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
    """Those of the step itself, then those in flight behind it; only in lanes of one row."""
    next_guesses: Sequence[int] = ()
    """The guesses after these. Their step begins if the step's own are right, and the first one behind it."""
    chain: bool = False
    """The step of the drawn tokens begins if it is not in flight and no session ends."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the job of a step's results has found, and what it has begun. Nobody else compares a guess with a token."""

    results: Sequence[RowResult] = ()
    """One for each row; none for a chunk of a prompt before its last one. Of a step with guesses, one for its first token and
    for each guess that is right: the tokens that its session gets.
    """
    right: int = 0
    """Number of guesses that are right, of the step's own and of the first one behind it. If that one is, its step is certain
    from now on, and the guesses behind it stay guesses; else all that are not counted here are wrong.
    """
    begun: Frame | None = None
    """The lane's next step, for the next stage."""
    guesses: Sequence[int] = ()
    """The tokens of that step if they are guesses; else it has the last ones of `results`."""
    again: bool = False
    """The result after these is not finite, and guesses follow its token in the step. Attention multiplies what they give by 0,
    so that may be why: the token is to be computed again, without guesses.
    """
    hidden: tuple[Tensor, ...] = ()
    """What the layers have made of the step, of a ring of one stage whose driver asked for it."""
