"""What all handlers use: the backend, and a request's model and stream."""

import time
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from api.chat.backend import Backend, Inference
from api.chat.schema import GenerationRequest
from api.http.body import Bodies
from api.http.callers import CLIENT
from api.http.stream import EventStream, StreamTiming
from node.core.errors import ModelNotFound, NotReady
from node.core.models import ModelEntry
from node.text.sandboxed_encoder import OpenModel

STREAM = web.RequestKey("stream", EventStream)
"""The request's stream; the error middleware writes errors into it."""


@dataclass(frozen=True, slots=True)
class Env:
    """Dependencies of all handlers."""

    backend: Backend
    inference: Inference
    """Generation and evaluation by the backend, with their tokens counted."""
    timing: StreamTiming
    bodies: Bodies


def known_model(env: Env, name: str) -> ModelEntry:
    """The model that a name means. Raises ModelNotFound."""
    if model := env.backend.known(name):
        return model
    raise ModelNotFound(f"The model '{name}' does not exist.", param="model")


async def open_model(env: Env, request: web.Request, body: GenerationRequest) -> OpenModel:
    """Wait until the model is ready. A stream is kept alive meanwhile, and therefore may wait longer.

    Raises what `Backend.open` raises.
    """
    if not body.stream:
        return await env.backend.open(body.model, request[CLIENT])
    if STREAM not in request:  # a surface with a format of its own has made it
        request[STREAM] = EventStream(request, env.timing, partial(env.backend.loading, body.model))
    events = request[STREAM]
    deadline = time.monotonic() + env.timing.loading_s
    async with events.kept_alive():
        while True:
            try:
                return await env.backend.open(body.model, request[CLIENT])
            except NotReady:
                # Before the first keep-alive comment a plain 503 is better: clients retry by themselves.
                if not events.response.prepared or time.monotonic() > deadline:
                    raise
