"""Requests at a ring's driver: each becomes a session, and its caller gets the session's events."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace

from node.core.errors import BadRequest, ModelUnsupported, PippinError
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.generation import GenerateRequest, PromptProgress, TokenEvent
from node.ring.driver import Driver
from node.ring.session import Session
from node.text.grammars import Grammars


async def generate(
    driver: Driver, grammars: Grammars, request: GenerateRequest
) -> AsyncGenerator[TokenEvent | PromptProgress, None]:
    """Yields each new token once, in order; before the first one, how far the prompt is. Closing it cancels the session.

    Raises BadRequest, ContextExceeded, Overloaded, RingLost when the ring ends or is replaced.
    """
    vocabulary = driver.runner.plan.vocabulary
    axes = driver.runner.axes(request.pictures, request.prompt) if request.pictures else None
    words = (token for token in request.prompt if token < vocabulary) if request.pictures else request.prompt
    _check(driver, (*words, *request.resume, *(request.thinking.closing if request.thinking else ())))
    if max(request.prediction, default=0) >= vocabulary:
        request = replace(request, prediction=())  # of a tokenizer with more tokens than the model
    constraint = None
    if request.grammar:
        constraints, client = driver.runner.constraints, request.client
        constraint = await grammars.begin(constraints, request.grammar, request.resume, client=client)
    with closing(constraint) if constraint else nullcontext():
        session = Session(request, constraint, vocabulary, axes)
        driver.submit(session)
        try:
            while True:
                match await session.events.get():
                    case PippinError() as error:
                        raise error
                    case PromptProgress() as progress:
                        yield progress
                    case TokenEvent() as event:
                        yield event
                        if event.finish:
                            return
        finally:
            driver.finish(session, keep=True)  # after a stop string or a hang-up: the client may ask again


async def evaluate(driver: Driver, request: EvaluateRequest) -> Evaluation:
    """Cancelling it cancels the session.

    Raises ModelUnsupported for a model without embeddings, and the errors of `generate`.
    """
    if request.top is None and not request.among and not driver.runner.plan.embeds:
        raise ModelUnsupported(f"The architecture of {request.model} gives no embeddings.")
    _check(driver, request.prompt + request.among)
    session = Session.of_evaluation(request)
    driver.submit(session)
    try:
        event = await session.events.get()
        if isinstance(event, PippinError):
            raise event
        assert isinstance(event, Evaluation)
        return event
    finally:
        driver.finish(session, keep=False)


def _check(driver: Driver, tokens: Sequence[int]) -> None:
    vocabulary = driver.runner.plan.vocabulary
    if not 0 <= min(tokens, default=0) <= max(tokens, default=0) < vocabulary:
        raise BadRequest(f"A token of the prompt is outside the model's vocabulary of {vocabulary}.")
