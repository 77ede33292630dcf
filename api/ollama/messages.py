"""Ollama's chat messages, and their conversion to those of chat."""

import json
from collections.abc import Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field

from api.chat.message import Name, StrictModel
from api.chat.pictures import url_part
from api.http.json_object import Json
from api.http.limits import MAX_CALLS, MAX_PICTURES

Images = Annotated[
    list[str], Field(max_length=MAX_PICTURES, fail_fast=True), BeforeValidator(lambda value: value or [])
]
"""Files of pictures in base64."""


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
    images: Images = Field(default=[])
    tool_calls: list[OllamaCall] | None = Field(default=None, max_length=MAX_CALLS, fail_fast=True)
    tool_name: Name | None = None
    tool_call_id: Name | None = None


def for_chat(messages: Sequence[OllamaMessage]) -> list[Json]:
    """The messages as chat has them. Calls get ids; a result belongs to the first call of its tool that has none."""
    made: list[Json] = []
    waiting: list[tuple[str, str]] = []
    """Name and id of each call without a result."""
    for index, message in enumerate(messages):
        chat: Json = {"role": message.role, "content": content_of(message.content or "", message.images)}
        if message.thinking:
            chat["reasoning_content"] = message.thinking
        if message.tool_calls:
            chat["tool_calls"], waiting = [], []
            for place, call in enumerate(message.tool_calls):
                name, call_id = call.function.name, call.id or f"call_{index}_{place}"
                arguments = json.dumps(call.function.arguments or {}, ensure_ascii=False)
                function = {"name": name, "arguments": arguments}
                chat["tool_calls"].append({"id": call_id, "type": "function", "function": function})
                waiting.append((name, call_id))
        if message.role == "tool":
            chat["tool_call_id"] = message.tool_call_id or _call_of(waiting, message.tool_name)
            if message.tool_name:
                chat["name"] = message.tool_name
        made.append(chat)
    return made


def content_of(text: str, images: Sequence[str]) -> str | list[Json]:
    """The content of a chat message. Pictures come first, as in Ollama."""
    if not images:
        return text
    parts = [url_part(image if image.startswith("data:") else f"data:;base64,{image}") for image in images]
    return [*parts, {"type": "text", "text": text}] if text else parts


def _call_of(waiting: list[tuple[str, str]], tool: str | None) -> str:
    """Id of the call that a result belongs to, which then waits no longer."""
    if not waiting:
        return "call_0"
    found = next((call for call in waiting if call[0] == tool), waiting[0])
    waiting.remove(found)
    return found[1]
