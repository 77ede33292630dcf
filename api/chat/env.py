"""What all handlers use: the gateway, and a request's model and stream."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from api.chat.schema import GenerationRequest, Request, parse
from api.http.body import Bodies
from api.http.callers import CLIENT
from api.http.in_flight import IN_FLIGHT
from api.http.metrics import Metrics
from api.http.stream import EventStream, Sse, StreamFormat, StreamTiming
from node.core.errors import ModelNotFound, NotReady, ShuttingDown
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.models import ModelEntry
from node.gateway.disk import Pulled
from node.gateway.gateway import Gateway
from node.text.sandboxed_encoder import OpenModel

STREAM = web.RequestKey("stream", EventStream)
"""The request's stream; the error middleware writes errors into it."""


@dataclass(frozen=True, slots=True)
class Env:
    """Dependencies of all handlers."""

    gateway: Gateway
    metrics: Metrics
    timing: StreamTiming
    bodies: Bodies

    async def read(self, request: web.Request, schema: type[Request]) -> Request:
        """The validated body of a request. Raises what Bodies.read raises."""
        return await self.bodies.read(request, partial(parse, schema))

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Score or embed a text, and count its tokens. Raises what Router.evaluate raises."""
        evaluation = await self.gateway.router.evaluate(request)
        self.metrics.count_tokens(request.model, prompt=len(request.prompt))
        return evaluation


def known_model(env: Env, name: str) -> ModelEntry:
    """The model that a name means. Raises ModelNotFound."""
    if model := env.gateway.models.known(name):
        return model
    raise ModelNotFound(f"The model '{name}' does not exist.", param="model")


async def fetch_model(env: Env, request: web.Request, model: str) -> AsyncGenerator[Pulled, None]:
    """Fetch a model to this node's disk. Raises ShuttingDown when the node is stopping, and what Disk.pull raises."""
    async with aclosing(env.gateway.disk.pull(model, request[CLIENT])) as progress:
        async for each in progress:
            if request.app[IN_FLIGHT].stopping:
                raise ShuttingDown("This node is stopping.", hint="Fetch the model again later: what has come is kept.")
            yield each


async def open_model(
    env: Env, request: web.Request, body: GenerationRequest, form: StreamFormat | None = None
) -> OpenModel:
    """Wait until the model is ready. A stream is made and kept alive meanwhile, and therefore may wait longer.

    `form`: of the stream; None for OpenAI's. Raises what OpenModels.open raises.
    """
    if not body.stream:
        return await env.gateway.open_models.open(body.model, request[CLIENT])
    awaited = partial(env.gateway.open_models.loading, body.model)
    events = request[STREAM] = EventStream(request, env.timing, form or Sse(), awaited)
    deadline = time.monotonic() + env.timing.loading_s
    async with events.kept_alive():
        while True:
            try:
                return await env.gateway.open_models.open(body.model, request[CLIENT])
            except NotReady:
                # Before the first keep-alive comment a plain 503 is better: clients retry by themselves.
                if not events.response.prepared or time.monotonic() > deadline:
                    raise
