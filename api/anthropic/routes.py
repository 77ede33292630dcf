"""/v1/messages: Anthropic's Messages API. Each request is converted to a chat request."""

import uuid
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from api.anthropic.output import Events, MessageOutput
from api.anthropic.schema import MessagesRequest, PromptRequest
from api.chat.answer import Delta
from api.chat.env import STREAM, Env
from api.chat.generation import run_all
from api.chat.param_names import renamed_params
from api.chat.prompt import encode_chat, prepare
from api.chat.request import ChatRequest
from api.chat.schema import parse
from api.http.limits import MAX_COUNTED
from api.http.stream import EventStream

Json = dict[str, Any]
Body = TypeVar("Body", bound=PromptRequest)

PARAMS = (
    (r"^messages\b.*", "messages"),
    (r"^max_completion_tokens$", "max_tokens"),
    (r"^response_format(\.json_schema)?", "output_config.format"),
    (r"^(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"^(tools\[\d+\])\.function", r"\1"),
    (r"^tool_choice\.function", "tool_choice"),
    (r"^reasoning_effort$", "output_config.effort"),
)
"""Patterns of chat's parameter names, and the names of the same parameters here."""


async def create(env: Env, request: web.Request) -> web.StreamResponse:
    body, chat = await env.bodies.read(request, partial(_parse, MessagesRequest))
    chat.stop = [*chat.stop, *body.stop_sequences]  # after its validation: Anthropic allows more of them than OpenAI
    if body.stream:
        request[STREAM] = EventStream(
            request, env.timing, partial(env.gateway.open_models.loading, body.model), Events()
        )
    with renamed_params(PARAMS):
        prepared, choices = await prepare(env, request, chat, f"msg_{uuid.uuid4().hex}")
    output = MessageOutput(body, prepared.id, prepared.model.id, choices[0])
    if body.stream:
        return await _stream(env, request, output)

    async def take(_: int, delta: Delta) -> None:
        for _event in output.grow(delta):
            pass

    await run_all(env, [output.choice], take)
    return web.json_response(output.message())


async def count(env: Env, request: web.Request) -> web.Response:
    """POST /v1/messages/count_tokens: the length of a prompt, with a model that may have to be loaded for it."""
    _, chat = await env.bodies.read(request, partial(_parse, PromptRequest))
    with renamed_params(PARAMS):
        _, prompt = await encode_chat(env, request, chat, most=MAX_COUNTED)
    return web.json_response({"input_tokens": len(prompt)})


async def _stream(env: Env, request: web.Request, output: MessageOutput) -> web.StreamResponse:
    events = request[STREAM]

    async def take(_: int, delta: Delta) -> None:
        for event in output.grow(delta):
            await events.send(event)

    async with events.kept_alive():
        await run_all(env, [output.choice], take)
    return events.response


def _parse(schema: type[Body], given: Json) -> tuple[Body, ChatRequest]:
    """The validated request, and the equivalent chat request."""
    body = parse(schema, given)
    with renamed_params(PARAMS):
        return body, parse(ChatRequest, body.for_chat(given))
