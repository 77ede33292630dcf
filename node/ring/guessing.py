"""What a driver needs to guess tokens, beside what its sessions know: a draft model, or the model's MTP layer, if there is one."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from node.core.clock import now
from node.core.frames import Tensor
from node.core.guesses import PassageMemory
from node.core.row_family import RowFamily
from node.engine.compute import Compute
from node.engine.draft import DraftFailed
from node.engine.sampling import Draw
from node.engine.verdict import Verdict
from node.ring.flight import Step
from node.ring.scheduler import Scheduler
from node.ring.session import Session

log = logging.getLogger(__name__)

_MOST_RESULTS = 16
"""Results of steps that wait until they are told with the next guess."""
Result = tuple[list[int], int, tuple[Tensor, ...], int]
"""The arguments of GuessSource.observe."""


class GuessSource(Protocol):
    """Guesses a session's tokens on the driver, in the compute thread: node.engine.draft.DraftModel, or MtpGuesser."""

    kv_bytes: int
    max_context: int
    """Most tokens of a session that it can follow."""
    observes: bool
    """Whether it needs what the last stage computes."""
    beyond: int
    """Tokens that it should guess beyond the steps that may be in flight: the job that finds the first guess right can begin
    the step of the last one. Worth it if a guess is as good then as later.
    """
    is_catching_up: bool
    """Why its last guess was None: it has yet to compute some of the tokens. Otherwise it can't guess now."""

    def observe(self, tokens: Sequence[int], end: int, tensors: Sequence[Tensor], count: int) -> None:
        """The last stage's result of a step of a session, of which its first `count` tokens are verified, or all for 0. They are
        those before position `end`. `tokens`: all of the session that are verified.
        """

    def guess(self, tokens: Sequence[int], verified: int, draw: Draw) -> int | None:
        """The token after these, of which the first `verified` are certain. Raises DraftFailed."""

    def clear(self) -> None:
        """Free all KV."""


@dataclass(slots=True)
class Guessing:
    source: GuessSource | None = None
    is_wire_slow: Callable[[], bool] = lambda: False
    """See Flight.wire_is_slow. It is asked once a second, as paths change."""
    family: Callable[[RowFamily | None], RowFamily] = lambda _: RowFamily()
    """What all stages have proven of the rows of a step. It is asked at the first request, when all of them are ready; and with
    its answer at each later one, as the costs of the first measurement may be wrong.
    """
    is_watched: Callable[[], bool] = lambda: False
    """See Filling.watched. It is asked at each request."""
    memory: PassageMemory = field(default_factory=PassageMemory)
    """What was said in this ring; or in all of the node, so that it outlives rings."""
    failure: str = ""
    """Why the source that there was to be does not guess."""
    drew_at: float = 0.0
    """When the source last drew a token, or computed a part of a prompt."""
    _results: list[Result] = field(default_factory=list[Result])
    """Not told yet."""

    @property
    def kv_bytes(self) -> int:
        return self.source.kv_bytes if self.source else 0

    def wants_all(self, step: Step, scheduler: Scheduler) -> bool:
        """Whether the hidden states of all tokens of a step are needed, which is about to be sent."""
        return self.follows(step, scheduler) and len(step.tokens[0]) > 1 and not step.unverified

    def follows(self, step: Step, scheduler: Scheduler) -> bool:
        """Whether the source is to observe a step's hidden states."""
        is_one = len(step.rows) == 1 and not step.evaluations
        is_of_use = self.source is not None and self.source.observes and scheduler.filling.ever_guesses
        return is_of_use and is_one and scheduler.leads(step.rows[0])

    def observe(
        self,
        compute: Compute,
        step: Step,
        tensors: tuple[Tensor, ...],
        verdict: Verdict,
        scheduler: Scheduler,
        *,
        every: bool,
    ) -> None:
        """A step has landed that is certain. `tensors`: the last stage's result, of `every` token of a prompt's step, or of those
        from the first certain one on.
        """
        is_known = bool(verdict.results) or not step.samples
        if not (self.source and tensors and is_known and self.follows(step, scheduler)):
            return
        (slot,) = step.rows
        end = len(slot.session.tokens) - 1 if step.samples else step.begin + len(step.tokens[0])
        count = 0 if every else len(verdict.results)
        self._results.append((list(slot.session.tokens), end, tensors, count))
        if every or len(self._results) > _MOST_RESULTS:
            observed = compute.queue(_observe, self.source, self._results)
            observed.add_done_callback(lambda done: done.cancelled() or done.exception())  # it ends the ring by itself
            self._results = []

    async def guess(self, compute: Compute, scheduler: Scheduler) -> bool:
        """Have the source draw a token that a session may draw next, or compute a part of a prompt, while nothing else is due.
        Returns whether it should be asked again at once.
        """
        asked = scheduler.to_draft(self.source.max_context, self.source.beyond) if self.source else None
        if not (self.source and asked):
            return False
        is_made = await self._draw(compute, *asked)
        return is_made or (self.source is not None and self.source.is_catching_up)

    async def fill(self, compute: Compute, scheduler: Scheduler) -> bool:
        """Have the source draw a token for which the next step is to wait, or compute a part of a prompt. Returns whether it has
        drawn one, so that it should be asked again before the step is sent.
        """
        asked = scheduler.to_fill() if self.source and not compute.waiting else None
        if asked is None:
            scheduler.filling.fade()
            return False
        began = now()
        is_made = await self._draw(compute, *asked)
        scheduler.waited(self.drew_at - began, drawn=is_made)
        if self.source is None:
            scheduler.filling.context = 0
        return is_made

    async def _draw(self, compute: Compute, session: Session, guessed: Sequence[int]) -> bool:
        """Have the source draw the token after these guesses. It goes if it fails. Returns whether it has drawn one."""
        assert self.source
        verified, tokens, draw = len(session.tokens), [*session.tokens, *guessed], session.draw(guessed)
        # Without log-probabilities, which nobody reads, and without the grammar, which the verifying draw follows.
        draw = replace(draw, sampling=replace(draw.sampling, logprobs=None), constraint=None)
        results, self._results = self._results, []
        try:
            token = await compute.run(_guess, self.source, results, tokens, verified, draw)
        except DraftFailed as error:
            log.warning("the ring of %s goes on without its guesses: %s", session.request.model, error)
            await self.clear(compute)
            self.source, self.failure = None, str(error)
            return False
        finally:
            self.drew_at = now()
        if token is not None:
            session.add_draft(tokens, verified, token)
        return token is not None

    async def clear(self, compute: Compute) -> None:
        """Free the source's KV."""
        self._results = []
        if self.source:
            await compute.run(self.source.clear)


def _observe(source: GuessSource, results: Sequence[Result]) -> None:
    for result in results:
        source.observe(*result)


def _guess(
    source: GuessSource, results: Sequence[Result], tokens: Sequence[int], verified: int, draw: Draw
) -> int | None:
    _observe(source, results)
    return source.guess(tokens, verified, draw)
