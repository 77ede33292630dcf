"""Ollama's chat messages, and their conversion to those of chat."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from api.chat.message import Name, StrictModel
from api.http.json_object import Json
from api.http.limits import MAX_CALLS


def _no_images(value: Any) -> None:
    if value:
        why = "Models get only text here, also those made for more: leave images out, or send a description in words"
        raise PydanticCustomError("unsupported", why)


NoImages = Annotated[None, BeforeValidator(_no_images)]


class OllamaFunction(StrictModel):
    name: Name
    arguments: Json | None = None


class OllamaCall(StrictModel):
    function: OllamaFunction
    id: Name | None = None


class OllamaMessage(StrictModel):
    role: Name
    content: str | None = None
    thinking: str | None = None
    images: NoImages = None
    tool_calls: list[OllamaCall] | None = Field(default=None, max_length=MAX_CALLS, fail_fast=True)
    tool_name: Name | None = None
    tool_call_id: Name | None = None


def for_chat(messages: Sequence[OllamaMessage]) -> list[Json]:
    """The messages as chat has them. Calls get ids; a result belongs to the first call of its tool that has none."""
    made: list[Json] = []
    waiting: list[tuple[str, str]] = []
    """Name and id of each call without a result."""
    for index, message in enumerate(messages):
        chat: Json = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            chat["reasoning_content"] = message.thinking
        if message.tool_calls:
            calls = [
                (call.id or f"call_{index}_{place}", call.function) for place, call in enumerate(message.tool_calls)
            ]
            chat["tool_calls"] = [_call(*call) for call in calls]
            waiting = [(function.name, call_id) for call_id, function in calls]
        if message.role == "tool":
            chat["tool_call_id"] = message.tool_call_id or _call_of(waiting, message.tool_name)
            if message.tool_name:
                chat["name"] = message.tool_name
        made.append(chat)
    return made


def _call(call_id: str, function: OllamaFunction) -> Json:
    arguments = json.dumps(function.arguments or {}, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": function.name, "arguments": arguments}}


def _call_of(waiting: list[tuple[str, str]], tool: str | None) -> str:
    """Id of the call that a result belongs to, which then waits no longer."""
    if not waiting:
        return "call_0"
    found = next((call for call in waiting if call[0] == tool), waiting[0])
    waiting.remove(found)
    return found[1]
