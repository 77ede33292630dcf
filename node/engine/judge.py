"""The judge of a driver's steps: reads the tokens that were drawn, compares them with the guesses, and says which rows failed.

Runs in the compute thread. Nobody else compares a guess with a token: see Verdict.
"""

from collections.abc import Sequence

import mlx.core as mx

from node.core.errors import PippinError
from node.core.evaluation import ChunkRequest, ChunkResult
from node.core.frames import NonFiniteRow
from node.engine.evaluate import evaluate, is_finite
from node.engine.sampling import NO_TOKEN, Draw, Drawn, Sampled, begin_draw
from node.engine.stage import Stage
from node.engine.verdict import StepFailed


class Judge:
    def __init__(self, stage: Stage) -> None:
        """`stage`: the driver's."""
        self._stage = stage

    def read(
        self, drawn: Drawn, draws: Sequence[Draw], faults: Sequence[NonFiniteRow] = (), first: int = 0
    ) -> list[Sampled | PippinError]:
        """The token of each row, or why it has none. `first`: number of the first row."""
        return [
            (draw.constraint and draw.constraint.error)
            or (self._not_finite(row, faults) if sampled.token == NO_TOKEN else sampled)
            for row, (sampled, draw) in enumerate(zip(drawn.read(), draws, strict=True), first)
        ]

    def judge(
        self,
        logits: mx.array,
        draws: Sequence[Draw],
        guesses: Sequence[int],
        faults: Sequence[NonFiniteRow] = (),
        beside: Sequence[mx.array] = (),
    ) -> tuple[list[Sampled | PippinError], int]:
        """Draw the token after each token of a step of one session, as long as the guesses at them are right.

        `draws`: each after the guesses before it, so it is of use only if these are right, and then it has the session's
        true history. `guesses`: those of the step, and those in flight behind it. Returns the results, of which only the
        last one is not what was guessed, if any; and how many guesses are right, the first one behind the step included. If
        that is why there are no more results, the next one is not finite: see Verdict.again.
        """
        results: list[Sampled | PippinError] = []
        # A grammar has to be told each token before it allows the next one.
        size = 1 if draws[0].constraint else len(draws)
        for begin in range(0, len(draws), size):
            drawn = begin_draw(logits[begin : begin + size], draws[begin : begin + size], beside)
            for result in self.read(drawn, draws[begin : begin + size], faults, begin):
                right = len(results)
                if isinstance(result, StepFailed) and right < len(draws) - 1:
                    return results, right
                results.append(result)
                token = token_of(result)
                is_right = right < len(guesses) and token == guesses[right]
                if not is_right or draws[right].ends(token):
                    return results, right
        return results, len(results)

    def read_and_draw(
        self, logits: mx.array, drawn: Drawn, draws: Sequence[Draw], beside: Sequence[mx.array]
    ) -> tuple[list[Sampled | PippinError], list[Draw], Drawn]:
        """Read the tokens of a step and draw those of the next one, which has these logits: first, unless they depend on the
        tokens. Returns what was read, and the next step's draws.
        """
        if any(draw.needs_tokens for draw in draws):
            mx.async_eval(logits, beside)  # type: ignore[no-untyped-call]
            results = self.read(drawn, draws)
            following = [draw.next(token_of(each)) for draw, each in zip(draws, results, strict=True)]
            for draw in following:
                if draw.constraint:
                    draw.constraint.forced = []  # what it forces next is not looked for
            return results, following, begin_draw(logits, following)
        following = [draw.next() for draw in draws]
        begun = begin_draw(logits, following, beside)
        return self.read(drawn, draws), following, begun

    def evaluated(
        self, hidden: Sequence[mx.array], chunks: Sequence[ChunkRequest], faults: Sequence[NonFiniteRow] = ()
    ) -> list[ChunkResult | StepFailed]:
        results = [evaluate(self._stage, hidden, row, chunk) for row, chunk in enumerate(chunks)]
        return [each if is_finite(each) else self._not_finite(row, faults) for row, each in enumerate(results)]

    def _not_finite(self, row: int, faults: Sequence[NonFiniteRow]) -> StepFailed:
        """The failure of a single row; it does not affect the others."""
        layers = next((f"layers {fault.start}-{fault.end - 1}" for fault in faults if fault.row == row), "")
        is_whole = self._stage.end == self._stage.plan.layers
        where = layers or (
            f"layers 0-{self._stage.end - 1} or the LM head" if is_whole else "the final norm or the LM head"
        )
        return StepFailed(
            f"The output of {where} is not finite (NaN or infinity), so no token can be sampled.",
            hint="The weights may be damaged, or too large for their dtype: fetch the model again, or use another.",
        )


def token_of(result: Sampled | PippinError) -> int:
    """NO_TOKEN for a row that has failed."""
    return result.token if isinstance(result, Sampled) else NO_TOKEN


def ends(results: Sequence[Sampled | PippinError], draws: Sequence[Draw]) -> bool:
    """Whether a session ends with its result."""
    pairs = zip(results, draws, strict=False)
    return any(isinstance(each, PippinError) or draw.ends(each.token) for each, draw in pairs)


def look_ahead(results: Sequence[Sampled | PippinError], draws: Sequence[Draw]) -> None:
    """Have each grammar find what it forces after its session's last token: a step with guesses may have drawn several."""
    last = {draw.constraint: (draw, result) for draw, result in zip(draws, results, strict=False)}
    for constraint, (draw, result) in last.items():
        if constraint and isinstance(result, Sampled) and not draw.ends(result.token):
            constraint.look_ahead(result.token)
