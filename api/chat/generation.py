"""The choices of a response: their requests to the model, and running them concurrently."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from api.chat.answer import Answer, Delta
from api.chat.echo import Echo
from api.chat.env import Env
from api.chat.reader import Reader
from api.chat.schema import SEEDS, GenerationRequest
from node.core.errors import BadRequest, ContextExceeded, PippinError
from node.core.generation import GenerateRequest, Sampling
from node.text.sandboxed_encoder import OpenModel

MAX_CONCURRENT = 16
"""Choices of one request that run concurrently: enough to fill a batch, without filling a queue."""

T = TypeVar("T")
Emit = Callable[[int, Delta], Awaitable[None]]
"""Callback (choice index, delta)."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What all choices of one request share."""

    id: str
    client: str
    """Name of the client, used to share a ring fairly among clients."""
    model: OpenModel
    body: GenerationRequest
    sampling: Sampling
    max_tokens: int | None
    """Maximum tokens of an answer; None: as many as fit in the context."""
    param: str
    """Name of the request's parameter that holds the prompt."""
    prediction: tuple[int, ...] | None = None
    """What the client expects of each answer; None if it has not said."""
    grammar: str = ""
    """Grammar that each answer must follow; empty: none."""
    control_logprobs: bool = False
    """Whether log-probabilities of control tokens are reported, too."""

    def choices(
        self,
        prompt: Sequence[int],
        *,
        first: int = 0,
        echo: Echo | None = None,
        reader: Callable[[], Reader | None] = lambda: None,
    ) -> list["Choice"]:
        """Create the choices of one prompt, numbered from `first`. Copy k gets the request's seed plus k.

        `reader`: creates the reader of one choice. Raises BadRequest, ContextExceeded.
        """
        check_tokens(self.model, self.sampling.logit_bias, param="logit_bias")
        request = self._request(prompt)
        return [
            Choice(
                index=first + copy,
                request=replace(
                    request,
                    id=f"{self.id}-{first + copy}",
                    sampling=replace(self.sampling, seed=(self.sampling.seed + copy) % SEEDS),
                ),
                answer=Answer(
                    self.model.tokenizer,
                    self.body.stop,
                    logprobs=self.sampling.logprobs is not None,
                    control_logprobs=self.control_logprobs,
                    offset=len(echo.text) if echo else 0,
                    reader=reader(),
                ),
                echo=echo,
                is_predicted=self.prediction is not None,
            )
            for copy in range(self.body.copies)
        ]

    def _request(self, prompt: Sequence[int]) -> GenerateRequest:
        return GenerateRequest(
            id=self.id,
            model=self.model.id,
            prompt=tuple(prompt),
            max_tokens=self.max_new_tokens(prompt),
            # After a complete grammar only EOS can come, so `ignore_eos` has no effect.
            stop_tokens=frozenset() if self.body.ignore_eos and not self.grammar else self.model.tokenizer.eos,
            sampling=self.sampling,
            grammar=self.grammar,
            client=self.client,
            revision=self.model.revision,
            prediction=self.prediction or (),
        )

    def max_new_tokens(self, prompt: Sequence[int]) -> int:
        """Maximum number of tokens that can be generated for a prompt.

        Raises ContextExceeded if the prompt leaves no room, before anything is computed.
        """
        context = self.model.context
        room = context - len(prompt)
        if room < (0 if self.max_tokens == 0 else 1):
            raise ContextExceeded(
                f"This model's maximum context length is {context} tokens, but the prompt has {len(prompt)} tokens"
                f"{'' if room else ', which leaves no room for an answer'}.",
                param=self.param,
            )
        return room if self.max_tokens is None else min(self.max_tokens, room)


@dataclass(slots=True)
class Choice:
    index: int
    request: GenerateRequest
    answer: Answer
    echo: Echo | None = None
    is_predicted: bool = False
    """The client has sent a prediction."""
    first_at: float = 0.0
    """Time of the first token, by `time.monotonic`."""

    async def run(self, env: Env, emit: Emit) -> None:
        before = await self.echo.read(env) if self.echo else Delta()
        if self.request.max_tokens == 0:
            await emit(self.index, replace(before, finish="length"))
            return
        model, answer, begun = self.request.model, self.answer, time.monotonic()
        try:
            async with aclosing(env.gateway.router.generate(self.request)) as events:
                async for event in events:
                    if not answer.completion_tokens:
                        self.first_at = time.monotonic()
                        env.meter.count_first_token(model, self.first_at - begun)
                    delta = answer.take(event)
                    if delta != Delta():
                        text, tokens = before.text + delta.text, before.tokens + delta.tokens
                        await emit(self.index, replace(delta, text=text, tokens=tokens))
                        before = Delta()
                    if delta.finish:
                        return
        finally:
            if made := answer.completion_tokens:
                counts = {"prompt": len(self.request.prompt), "cached": answer.cached_tokens, "answer": made}
                env.meter.count_tokens(model, **counts)
        raise PippinError("The generation ended before its last token.")


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


async def run_all(env: Env, choices: Sequence[Choice], emit: Emit) -> None:
    await run_concurrently([partial(choice.run, env, emit) for choice in choices])


async def run_concurrently(works: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run these concurrently, at most MAX_CONCURRENT at a time; results in order. The first failure cancels the rest."""
    slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def do(work: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await work()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(do(work)) for work in works]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def best(choices: Sequence[Choice], body: GenerationRequest) -> list[Choice]:
    """For each prompt, the `n` choices with the highest mean log-probability per token, best first."""
    if body.copies == body.n:
        return list(choices)

    def mean_logprob(choice: Choice) -> float:
        return choice.answer.logprob / max(choice.answer.completion_tokens, 1)

    groups = [choices[first : first + body.copies] for first in range(0, len(choices), body.copies)]
    return [choice for group in groups for choice in sorted(group, key=mean_logprob, reverse=True)[: body.n]]


async def read_prediction(model: OpenModel, body: GenerationRequest, max_tokens: int | None) -> tuple[int, ...] | None:
    """The client's prediction, cut to `max_tokens`. Raises BadRequest, and the encoder's errors."""
    if body.prediction is None:
        return None
    most = model.context if max_tokens is None else min(max_tokens, model.context)
    content = body.prediction.content
    if isinstance(content, str):
        return tuple(await model.encoder.encode_prediction(content, most=most))
    check_tokens(model, content, param="prediction")
    return tuple(content[:most])


def check_tokens(model: OpenModel, tokens: Sequence[int] | Mapping[int, float], *, param: str) -> None:
    size = model.tokenizer.vocab_size
    for token in (min(tokens, default=0), max(tokens, default=0)):
        if not 0 <= token < size:
            raise BadRequest(f"Invalid '{param}': the model has no token {token}, only 0 to {size - 1}.", param=param)


def usage(choices: Sequence[Choice], per_prompt: int) -> dict[str, Any]:
    """Token usage as OpenAI reports it.

    Each prompt counts once, however many choices it has; its cached tokens are those of its first choice.
    """
    firsts = choices[::per_prompt]
    prompt_tokens = sum(len(choice.request.prompt) for choice in firsts)
    completion_tokens = sum(choice.answer.completion_tokens for choice in choices)
    reasoning_tokens = sum(choice.answer.reasoning_tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(choice.answer.cached_tokens for choice in firsts)},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens, **_prediction_usage(choices)},
    }


def _prediction_usage(choices: Sequence[Choice]) -> dict[str, int]:
    """How many tokens of the client's prediction the answers have and lack; empty if it sent none."""
    predicted = [choice for choice in choices if choice.is_predicted]
    if not predicted:
        return {}
    accepted = sum(choice.answer.accepted_prediction_tokens for choice in predicted)
    sent = sum(len(choice.request.prediction) for choice in predicted)
    return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": sent - accepted}
