"""How many tokens a stream gets in the time of a stage, against the formula: with frames of several tokens, in rings of any
length, and guesses that are right as often as one likes. Counted in steps, not in seconds.
"""

import itertools
import random
from collections import deque
from collections.abc import Sequence

import pytest

from node.core.frames import Frame
from node.core.generation import GenerateRequest
from node.core.rings import Fence
from node.core.row_family import RowFamily
from node.engine.sampling import Sampled
from node.engine.verdict import Verdict
from node.ring.flight import Step
from node.ring.frame_rows import speed
from node.ring.lane import FIRST_NUMBER
from node.ring.limits import RingLimits
from node.ring.scheduler import Scheduler
from node.ring.session import Session
from tests.sim.test_scheduler import Traits, right_ones

TOKENS = 3000


class Ring:
    """Each stage takes one unit of time for a step, whatever its tokens. The answer is known, so nothing is computed."""

    def __init__(self, stages: int, tokens: int, answer: Sequence[int]) -> None:
        family = RowFamily(((tokens, 1.0),))
        limits = RingLimits(context=TOKENS + 10, max_sessions=1, max_queue=1, max_rows=1, chunk=64)
        self.scheduler = Scheduler(limits, Traits(), itertools.count(FIRST_NUMBER), stages)
        self.scheduler.keep_to(family)
        self.answer = answer
        self.free_at = [0.0] * stages
        self.now = 0.0
        self.in_flight: deque[tuple[Step, float]] = deque()

    def send(self, step: Step) -> None:
        end = self.now
        for stage, free_at in enumerate(self.free_at):
            end = self.free_at[stage] = max(end, free_at) + 1
        self.in_flight.append((step, end))

    def land(self) -> None:
        step, self.now = self.in_flight.popleft()
        if (following := self.scheduler.returned(step)) is None:
            return
        begin = step.rows[0].session.generated
        tokens = self.answer[begin : begin + 1 + len(step.guesses)]
        right = right_ones(step, tokens, following.guesses)
        follows = right > len(step.guesses)
        begins = bool(following.next_guesses) if follows else following.chain
        verdict = Verdict(
            [Sampled(token) for token in tokens[: right + 1]],
            right,
            Frame("r", Fence(1, 1), 0) if begins else None,
            following.next_guesses if begins and follows else (),
        )
        if begun := self.scheduler.landed(step, verdict, 0.01):
            self.send(begun)

    def pace(self, session: Session) -> float:
        """Tokens in the time of a stage."""
        self.scheduler.admission.submit(session)
        while not session.finished:
            while not self.scheduler.flight.is_full and (step := self.scheduler.next() or self.scheduler.guess()):
                self.send(step)
            self.land()
        return session.generated / self.now


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 2, 4])
@pytest.mark.parametrize("tau", [2, 4, 9, None])
def test_the_pace_is_that_of_the_formula(stages: int, tokens: int, tau: int | None) -> None:
    chosen = random.Random(7)
    answer = [chosen.randrange(5000) for _ in range(TOKENS)]
    wrong = [tau is not None and chosen.random() < 1 / tau for _ in answer]
    prediction = tuple(5000 + token if miss else token for token, miss in zip(answer, wrong, strict=True))
    session = Session(GenerateRequest("x", "m", (1, 2, 3), TOKENS, prediction=prediction))
    found = Ring(stages, tokens, answer).pace(session)
    assert session.tokens[3:] == answer
    rate = 1 - sum(wrong) / len(wrong)
    assert found * stages == pytest.approx(speed(tokens, 1.0, right=rate, stages=stages, in_flight=stages), rel=0.03)
