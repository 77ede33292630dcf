"""/v1/messages: Anthropic's Messages API. Each request is converted to a chat request."""

import uuid
from functools import partial
from typing import TypeVar

from aiohttp import web

from api.anthropic.output import Events, MessageOutput
from api.anthropic.schema import MessagesRequest, PromptRequest
from api.chat.env import Env
from api.chat.generation import respond
from api.chat.prompt import encode_chat, prepare
from api.chat.request import ChatRequest
from api.chat.schema import parse, renamed_params
from api.http.json_object import Json
from api.http.limits import MAX_COUNTED

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
    with renamed_params(PARAMS):
        prepared, choices = await prepare(env, request, chat, f"msg_{uuid.uuid4().hex}", Events())
    return await respond(env, request, choices, MessageOutput(body, prepared.id, prepared.model.id, choices[0]))


async def count(env: Env, request: web.Request) -> web.Response:
    """POST /v1/messages/count_tokens: the length of a prompt, with a model that may have to be loaded for it."""
    _, chat = await env.bodies.read(request, partial(_parse, PromptRequest))
    with renamed_params(PARAMS):
        _, (prompt, _), _ = await encode_chat(env, request, chat, most=MAX_COUNTED)
    return web.json_response({"input_tokens": len(prompt)})


def _parse(schema: type[Body], given: Json) -> tuple[Body, ChatRequest]:
    """The validated request, and the equivalent chat request."""
    body = parse(schema, given)
    return body, parse(ChatRequest, body.for_chat(given), PARAMS)
