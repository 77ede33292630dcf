"""What all handlers use: the gateway, and a request's model and stream."""

import time
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from aiohttp import web

from api.chat.schema import GenerationRequest
from api.http.body import Bodies
from api.http.callers import CLIENT
from api.http.stream import EventStream, StreamTiming
from node.core.errors import ModelNotFound, NotReady
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.models import ModelEntry
from node.gateway.gateway import Gateway
from node.text.sandboxed_encoder import OpenModel

STREAM = web.RequestKey("stream", EventStream)
"""The request's stream; the error middleware writes errors into it."""


class TokenCounter(Protocol):
    """Counts for operators."""

    def count_first_token(self, model: str, seconds: float) -> None:
        """`seconds`: since the request was sent to a ring."""

    def count_tokens(self, model: str, **counts: int) -> None:
        """`counts`: by kind: "prompt", "cached", "answer"."""


@dataclass(frozen=True, slots=True)
class Env:
    """Dependencies of all handlers."""

    gateway: Gateway
    meter: TokenCounter
    timing: StreamTiming
    bodies: Bodies

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Score or embed a text, and count its tokens. Raises what Router.evaluate raises."""
        evaluation = await self.gateway.router.evaluate(request)
        self.meter.count_tokens(request.model, prompt=len(request.prompt))
        return evaluation


def known_model(env: Env, name: str) -> ModelEntry:
    """The model that a name means. Raises ModelNotFound."""
    if model := env.gateway.models.known(name):
        return model
    raise ModelNotFound(f"The model '{name}' does not exist.", param="model")


async def open_model(env: Env, request: web.Request, body: GenerationRequest) -> OpenModel:
    """Wait until the model is ready. A stream is kept alive meanwhile, and therefore may wait longer.

    Raises what OpenModels.open raises.
    """
    if not body.stream:
        return await env.gateway.open_models.open(body.model, request[CLIENT])
    if STREAM not in request:  # a surface with a format of its own has made it
        request[STREAM] = EventStream(request, env.timing, partial(env.gateway.open_models.loading, body.model))
    events = request[STREAM]
    deadline = time.monotonic() + env.timing.loading_s
    async with events.kept_alive():
        while True:
            try:
                return await env.gateway.open_models.open(body.model, request[CLIENT])
            except NotReady:
                # Before the first keep-alive comment a plain 503 is better: clients retry by themselves.
                if not events.response.prepared or time.monotonic() > deadline:
                    raise
