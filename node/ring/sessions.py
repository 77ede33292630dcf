"""The sessions of a ring as gateways see them: how they begin, get their tokens, and end."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace

from node.core.errors import BadRequest, ModelUnsupported, Overloaded, PippinError
from node.core.evaluation import EvaluateRequest, Evaluation, Findings
from node.core.generation import GenerateRequest, TokenEvent
from node.engine.runner import Runner
from node.engine.sampling import Sampled
from node.ring.scheduler import Scheduler
from node.ring.session import Slot, Session
from node.text.grammars import Grammars


class Sessions:
    """`generate` and `evaluate` may be called by any number of gateways; the rest is the driver's.

    `wake` is set whenever there may be something to do for the driver.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, wake: asyncio.Event, grammars: Grammars) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._wake = wake
        self._grammars = grammars
        self.closed: PippinError | None = None
        """Why no session can be had any more."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yields each new token once, in order. Closing it cancels the session.

        Raises BadRequest, ContextExceeded, Overloaded, RingLost when the ring ends or is replaced.
        """
        self._check(request.prompt + request.resume)
        constraint = None
        if request.grammar:
            constraint = await self._grammars.begin(self._runner.constraints, request.grammar, request.resume)
        with closing(constraint) if constraint else nullcontext():
            session = Session(request, constraint)
            self._submit(session)
            try:
                while True:
                    match await session.events.get():
                        case PippinError() as error:
                            raise error
                        case TokenEvent() as event:
                            yield event
                            if event.finish:
                                return
            finally:
                self.finish(session, keep=True)  # at a stop string, for one; who hung up may ask again

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Cancelling it frees the session.

        Raises ModelUnsupported for a model without embeddings, and what `generate` raises.
        """
        if request.top is None and not self._runner.embeds:
            raise ModelUnsupported(f"{request.model} is of an architecture that gives no embeddings.")
        self._check(request.prompt)
        session = Session.of_evaluation(request)
        self._submit(session)
        try:
            event = await session.events.get()
            if isinstance(event, PippinError):
                raise event
            assert isinstance(event, Evaluation)
            return event
        finally:
            self.finish(session, keep=False)

    def _check(self, tokens: Sequence[int]) -> None:
        if not 0 <= min(tokens, default=0) <= max(tokens, default=0) < self._runner.vocabulary:
            raise BadRequest(f"A token of the prompt is not among the model's {self._runner.vocabulary}.")

    def _submit(self, session: Session) -> None:
        if self.closed:
            raise self.closed
        if replaced := self._scheduler.submit(session):
            most = "The requests that wait are as many as may, and most of them are this client's."
            self.fail(replaced, Overloaded(most, hint="Try again in a moment, with fewer at once."))
        self._wake.set()

    # --- what comes back --------------------------------------------------------------------------------------------

    def take(self, slot: Slot, result: Sampled | Findings | PippinError) -> None:
        """The result of a step's row, or the error that it alone ended with."""
        if isinstance(result, PippinError):
            self.fail(slot.session, result)
        elif isinstance(result, Findings):
            self._note(slot, result)
        else:
            self._emit(slot, result)

    def _note(self, slot: Slot, findings: Findings) -> None:
        if slot.reading and (evaluation := slot.reading.add(findings)):
            slot.session.events.put_nowait(evaluation)
            # What was scored is often generated from next.
            self.finish(slot.session, keep=bool(evaluation.scores))

    def _emit(self, slot: Slot, sampled: Sampled) -> None:
        session = slot.session
        if session.constraint and session.constraint.error:
            self.fail(session, session.constraint.error)
            return
        event = replace(session.accept(sampled.token), logprob=sampled.logprob, top=sampled.top)
        session.events.put_nowait(event)
        if event.finish:
            self.finish(session, keep=True)

    # --- ending -----------------------------------------------------------------------------------------------------

    def finish(self, session: Session, *, keep: bool) -> None:
        """Free its place and its KV, now: at the end, when it failed, or when its gateway hung up."""
        if not session.finished:
            self._scheduler.finish(session, keep=keep)
            self._wake.set()

    def fail(self, session: Session, error: PippinError) -> None:
        if not session.finished:
            session.events.put_nowait(error)
        self.finish(session, keep=False)

    def fail_all(self, error: PippinError) -> None:
        for session in self._scheduler.sessions():
            self.fail(session, error)

    def close(self, reason: PippinError) -> None:
        """End all with `reason`, and those that come from now on."""
        self.closed = reason
        self.fail_all(reason)
        self._wake.set()
