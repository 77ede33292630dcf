"""The choices of a response: their requests to the model, running them concurrently, and sending what comes."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from aiohttp import web

from api.chat.answer import Answer, Delta
from api.chat.echo import Echo
from api.chat.env import STREAM, Env
from api.chat.reader import Reader
from api.chat.schema import SEEDS, CompletionRequest, GenerationRequest
from api.http.callers import CLIENT
from api.http.json_object import Json
from api.http.limits import MAX_PIXEL_BYTES
from api.http.stream import EventStream
from node.core.errors import BadRequest, ContextExceeded, PippinError
from node.core.generation import GenerateRequest, PromptProgress, Sampling, ThinkingBudget
from node.core.pictures import Picture
from node.core.rate import Rate
from node.text.sandboxed_encoder import OpenModel

MAX_CONCURRENT = 16
"""Choices of one request that run concurrently: enough to fill a batch, without filling a queue. Fewer with pictures that have
more than MAX_PIXEL_BYTES together, as each choice takes them to the driver.
"""

T = TypeVar("T")


class Output(Protocol):
    """An answer in the format of its surface."""

    def grow(self, index: int, delta: Delta) -> Iterable[Json]:
        """Add an increment of a choice. Yields the events of a stream that report it."""

    def whole(self) -> Json:
        """The plain answer."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What all choices of one request share."""

    id: str
    client: str
    """Name of the client, used to share a ring fairly among clients."""
    model: OpenModel
    body: GenerationRequest
    sampling: Sampling
    prediction: tuple[int, ...] | None
    """What the client expects of each answer, cut to its length; None if it has not said."""
    grammar: str = ""
    """Grammar that each answer must follow; empty: none."""

    @classmethod
    async def of(
        cls, request: web.Request, model: OpenModel, body: GenerationRequest, answer_id: str, grammar: str = ""
    ) -> "Prepared":
        """Raises BadRequest, and the encoder's errors."""
        prediction: tuple[int, ...] | None = None
        content = body.prediction.content if body.prediction else None
        most = model.context if body.answer_tokens is None else min(body.answer_tokens, model.context)
        if isinstance(content, str):
            prediction = tuple(await model.encoder.encode_prediction(content, most=most))
        elif content is not None:
            check_tokens(model, content, param="prediction")
            prediction = tuple(content[:most])
        return cls(answer_id, request[CLIENT], model, body, body.sampling(model.sampling), prediction, grammar)

    def choices(
        self,
        prompt: Sequence[int],
        *,
        first: int = 0,
        echo: Echo | None = None,
        reader: Callable[[], Reader | None] = lambda: None,
        thinking: ThinkingBudget | None = None,
        control_logprobs: bool = False,
        pictures: tuple[Picture, ...] = (),
    ) -> list["Choice"]:
        """Create the choices of one prompt, numbered from `first`. Copy k gets the request's seed plus k.

        `reader`: creates the reader of one choice. `control_logprobs`: see Answer. `pictures`: see GenerateRequest. Raises BadRequest, ContextExceeded.
        """
        model, body = self.model, self.body
        silent, ends = self._ends()
        self._check_tokens(ends)
        request = GenerateRequest(
            id=self.id,
            model=model.id,
            prompt=tuple(prompt),
            max_tokens=self.max_new_tokens(prompt),
            stop_tokens=ends,
            sampling=replace(self.sampling, late=tuple(sorted(ends)) if body.min_tokens else ()),
            grammar=self.grammar,
            client=self.client,
            revision=model.revision,
            prediction=self.prediction or (),
            pictures=pictures,
            thinking=thinking,
        )
        choices = []
        for index in range(first, first + body.copies):
            seeded = replace(request.sampling, seed=(self.sampling.seed + index - first) % SEEDS)
            answer = Answer(
                model.tokenizer,
                body.stop,
                logprobs=seeded.logprobs is not None,
                control_logprobs=control_logprobs,
                offset=len(echo.text) if echo else 0,
                reader=reader(),
                silent=silent,
            )
            numbered = replace(request, id=f"{self.id}-{index}", sampling=seeded)
            choices.append(Choice(index, numbered, answer, echo, self.prediction is not None))
        return choices

    def _ends(self) -> tuple[frozenset[int], frozenset[int]]:
        """The tokens that end the middle of a text, which are not shown, and all that end an answer."""
        body, tokenizer = self.body, self.model.tokenizer
        silent = tokenizer.fim.ends if body.is_middle and tokenizer.fim else frozenset[int]()
        # After a complete grammar only EOS can come, so `ignore_eos` has no effect.
        eos = frozenset() if body.ignore_eos and not self.grammar else tokenizer.eos | silent
        return silent, eos | frozenset(body.stop_token_ids)

    def _check_tokens(self, ends: frozenset[int]) -> None:
        body = self.body
        check_tokens(self.model, body.logit_bias, param="logit_bias")
        check_tokens(self.model, body.stop_token_ids, param="stop_token_ids")
        check_tokens(self.model, body.allowed_token_ids, param="allowed_token_ids")
        if body.allowed_token_ids and self.grammar:
            both = "a form of the answer, or with calls that follow a schema"
            raise BadRequest(f"'allowed_token_ids' can't be combined with {both}.", param="allowed_token_ids")
        if body.allowed_token_ids and body.min_tokens and ends.issuperset(body.allowed_token_ids):
            raise BadRequest(
                "'allowed_token_ids' has no token that does not end the answer.", param="allowed_token_ids"
            )

    def max_new_tokens(self, prompt: Sequence[int]) -> int:
        """Maximum number of tokens that can be generated. Raises ContextExceeded if the prompt leaves no room."""
        context, wanted = self.model.context, self.body.answer_tokens
        room = context - len(prompt)
        if room < (0 if wanted == 0 else 1):
            raise ContextExceeded(
                f"This model's maximum context length is {context} tokens, but the prompt has {len(prompt)} tokens"
                f"{'' if room else ', which leaves no room for an answer'}.",
                param="prompt" if isinstance(self.body, CompletionRequest) else "messages",
            )
        return room if wanted is None else min(wanted, room)


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
    is_told: bool = False
    """The output has the last increment."""

    async def run(self, env: Env, output: Output, events: EventStream | None) -> None:
        """Have the choice generated, and its increments added to the output; `events`: None for a plain answer."""
        before = await self.echo.read(env) if self.echo else Delta()
        if self.request.max_tokens == 0:
            await send(events, output.grow(self.index, replace(before, finish="length")))
            return
        model, answer, begun, rate = self.request.model, self.answer, time.monotonic(), Rate()
        try:
            async with aclosing(env.gateway.router.generate(self.request)) as tokens:
                async for token in tokens:
                    if isinstance(token, PromptProgress):
                        if events:
                            await events.tell(token.told(rate.at(token.done)))
                        continue
                    if not answer.completion_tokens:
                        self.first_at = time.monotonic()
                        env.metrics.first_token.labels(model).observe(self.first_at - begun)
                    delta = answer.take(token)
                    if delta != Delta():
                        text, spelled = before.text + delta.text, before.tokens + delta.tokens
                        await send(events, output.grow(self.index, replace(delta, text=text, tokens=spelled)))
                        before = Delta()
                    if delta.finish:
                        self.is_told = True
                        return
        finally:
            if made := answer.completion_tokens:
                counts = {"prompt": len(self.request.prompt), "cached": answer.cached_tokens, "answer": made}
                env.metrics.count_tokens(model, **counts)
        raise PippinError("The generation ended before its last token.")


async def send(stream: EventStream | None, events: Iterable[Json]) -> None:
    """Send events as they are made; a plain answer (None) only makes them."""
    for event in events:
        if stream:
            await stream.send(event)


async def respond(env: Env, request: web.Request, choices: Sequence[Choice], output: Output) -> web.StreamResponse:
    """Generate the choices, and answer the request: plainly, or with its stream."""
    events: EventStream | None = request.get(STREAM)
    try:
        async with events.kept_alive() if events else nullcontext():
            await run_all(env, choices, output, events)
    except asyncio.CancelledError:  # the client is gone, which it may be once it has been told all
        if events is None or not all(choice.is_told for choice in choices):
            raise
    return events.response if events else web.json_response(output.whole())


async def run_all(env: Env, choices: Sequence[Choice], output: Output, events: EventStream | None = None) -> None:
    pixel_bytes = sum(len(picture.pixels) for picture in choices[0].request.pictures) if choices else 0
    at_once = MAX_CONCURRENT if not pixel_bytes else min(MAX_CONCURRENT, max(1, MAX_PIXEL_BYTES // pixel_bytes))
    await run_concurrently([partial(choice.run, env, output, events) for choice in choices], at_once)


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


async def run_concurrently(works: Sequence[Callable[[], Awaitable[T]]], at_once: int = MAX_CONCURRENT) -> list[T]:
    """Run these concurrently, so many at a time; results in order. The first failure cancels the rest."""
    slots = asyncio.Semaphore(at_once)

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


def check_tokens(model: OpenModel, tokens: Sequence[int] | Mapping[int, float], *, param: str) -> None:
    size = model.tokenizer.vocab_size
    for token in (min(tokens, default=0), max(tokens, default=0)):
        if not 0 <= token < size:
            raise BadRequest(f"Invalid '{param}': the model has no token {token}, only 0 to {size - 1}.", param=param)


def usage(choices: Sequence[Choice], per_prompt: int = 1) -> Json:
    """Token usage as OpenAI reports it. Each prompt counts once; its cached tokens are those of its first choice."""
    firsts = choices[::per_prompt]
    prompt_tokens = sum(len(choice.request.prompt) for choice in firsts)
    completion_tokens = sum(choice.answer.completion_tokens for choice in choices)
    details = {"reasoning_tokens": sum(choice.answer.reasoning_tokens for choice in choices)}
    if predicted := [choice for choice in choices if choice.is_predicted]:
        accepted = sum(choice.answer.accepted_prediction_tokens for choice in predicted)
        sent = sum(len(choice.request.prediction) for choice in predicted)
        details |= {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": sent - accepted}
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(choice.answer.cached_tokens for choice in firsts)},
        "completion_tokens_details": details,
    }
