"""Conversation items of the Responses API, and their conversion to chat messages."""

import reprlib
import uuid
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import PydanticCustomError

from api.chat.message import MEDIA, Name, StrictModel, media_refusal, part_kind
from api.chat.pictures import KINDS as PICTURES
from api.chat.pictures import data_url, url_part
from api.http.errors import Unsupported
from api.http.json_object import Json
from api.http.limits import MAX_MESSAGES, MAX_PARTS
from api.responses.tools import Place, flat_name
from node.core.errors import BadRequest
from node.core.limits import MAX_NAME_CHARS


class InputMessage(StrictModel):
    role: Literal["user", "system", "developer", "assistant"]
    content: str | list[Any]

    def item(self) -> Json:
        """The item as OpenAI stores it: content is a list of parts."""
        kind = "output_text" if self.role == "assistant" else "input_text"
        more: Json = {"annotations": [], "logprobs": []} if self.role == "assistant" else {}
        content = [
            {"type": kind, "text": part, **more} if isinstance(part, str) else part for part in _parts(self.content)
        ]
        return {"type": "message", "role": self.role, "status": "completed", "content": content}


class FunctionCallItem(StrictModel):
    call_id: Name
    name: Name
    namespace: Name | None = None
    arguments: str

    def item(self) -> Json:
        return {"type": "function_call", "status": "completed", **self.model_dump(exclude_none=True)}


class FunctionOutputItem(StrictModel):
    call_id: Name
    output: str | list[Any]

    def item(self) -> Json:
        parts = _parts(self.output)
        output: str | list[Json] = "".join(part for part in parts if isinstance(part, str))
        if any(isinstance(part, dict) for part in parts):
            output = [part if isinstance(part, dict) else {"type": "input_text", "text": part} for part in parts]
        return {"type": "function_call_output", "status": "completed", "call_id": self.call_id, "output": output}


class CustomCallItem(StrictModel):
    call_id: Name
    name: Name
    input: str

    def item(self) -> Json:
        return {"type": "custom_tool_call", "status": "completed", **self.model_dump()}


class CustomOutputItem(FunctionOutputItem):
    def item(self) -> Json:
        return {**super().item(), "type": "custom_tool_call_output"}


class ReasoningItem(StrictModel):
    """Earlier reasoning of the model, given to chat templates that support it."""

    summary: list[Any] = Field(default=[])
    content: list[Any] | None = None

    def item(self) -> Json:
        content = [{"type": "reasoning_text", "text": text} for text in map(_text, _bounded(self.content or []))]
        return {"type": "reasoning", "summary": self.summary, "content": content, "status": "completed"}


class Reference(StrictModel):
    """Refers to an item of a response that is stored here."""

    id: Name

    def item(self) -> Json:
        return {"type": "item_reference"}


_Kind = InputMessage | FunctionCallItem | FunctionOutputItem | CustomCallItem | ReasoningItem | Reference
KINDS: dict[str, tuple[type[_Kind], str]] = {
    "message": (InputMessage, "msg"),
    "function_call": (FunctionCallItem, "fc"),
    "function_call_output": (FunctionOutputItem, "fco"),
    "custom_tool_call": (CustomCallItem, "ctc"),
    "custom_tool_call_output": (CustomOutputItem, "ctco"),
    "reasoning": (ReasoningItem, "rs"),
    "item_reference": (Reference, "ref"),
}

_CALLS = ("function_call", "custom_tool_call")

Item = Any
"""A validated item, as JSON."""


def item_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def items_of(value: Any) -> list[Item]:
    """Validate the request's `input`, and give each item an id. A string is a message of the user."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("input", "Input should be a text or a non-empty list of items")
    if len(value) > MAX_MESSAGES:
        raise PydanticCustomError("input", f"Input should have at most {MAX_MESSAGES} items, not {len(value)}")
    return [read_item(f"input[{index}]", item) for index, item in enumerate(value)]


def read_item(param: str, given: Any) -> Item:
    """Validate an item, and give it an id. Raises BadRequest, which names `param`."""
    if not isinstance(given, dict):
        raise BadRequest(f"Invalid '{param}': an item must be an object.", param=param)
    kind = given.get("type") or "message"
    if not isinstance(kind, str) or kind not in KINDS:
        raise Unsupported(f"Invalid '{param}': items of type {reprlib.repr(kind)} are not supported.", param=param)
    schema, prefix = KINDS[kind]
    try:
        known = schema.model_validate({name: item for name, item in given.items() if item is not None})
        item = known.item()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join([param, *(str(part) for part in first["loc"][:1])])
        raise BadRequest(f"Invalid '{where}': {first['msg']}.", param=where) from error
    except BadRequest as error:
        raise type(error)(f"Invalid '{param}': {error.message}", param=param) from error
    own = given.get("id")
    return {"id": own if isinstance(own, str) and 0 < len(own) <= MAX_NAME_CHARS else item_id(prefix), **item}


def _parts(content: str | list[Any]) -> list[str | Json]:
    """The texts of a content, and the parts of its pictures."""
    if isinstance(content, str):
        return [content]
    return [_picture(part) if part_kind(part) in PICTURES else _text(part) for part in _bounded(content)]


def _bounded(parts: list[Any]) -> list[Any]:
    if len(parts) > MAX_PARTS:
        raise BadRequest(f"it has {len(parts)} parts; the maximum is {MAX_PARTS}.")
    return parts


def _picture(part: Any) -> Json:
    try:
        url = data_url(part)
    except BadRequest as error:
        raise Unsupported(f"a part {error.message}.") from error
    return {"type": "input_image", "image_url": url, "detail": part.get("detail") or "auto"}


def _text(part: Any) -> str:
    kind = part_kind(part)
    if kind in MEDIA:
        raise Unsupported(f"a part {media_refusal(kind)}.")
    if kind not in ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"):
        raise BadRequest(f"there is no part of type {reprlib.repr(kind)}.")
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise BadRequest("a part has no text.")
    return text


def messages_of(instructions: str | None, items: Iterable[Item]) -> list[Json]:
    """Convert items to chat messages. Reasoning, text and calls of one assistant turn become one message."""
    messages: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
    turn: Json | None = None
    """The assistant message that further items may be added to."""
    for item in items:
        kind = item["type"]
        if kind in ("reasoning", *_CALLS) or item.get("role") == "assistant":
            if turn is None or (kind not in _CALLS and ("tool_calls" in turn or "content" in turn)):
                turn = {"role": "assistant"}
                messages.append(turn)
            _add(turn, item)
            continue
        turn = None
        if kind in ("function_call_output", "custom_tool_call_output"):
            content = _content(item["output"])
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        else:
            messages.append({"role": item["role"], "content": _content(item["content"])})
    # Reasoning alone is not a message.
    return [message for message in messages if "content" in message or "tool_calls" in message]


def _add(turn: Json, item: Item) -> None:
    match item["type"]:
        case "reasoning":
            thoughts = "".join(part["text"] for part in item["content"])
            turn["reasoning_content"] = turn.get("reasoning_content", "") + thoughts
        case "function_call":
            call = {"name": flat_name(Place(item.get("namespace"), item["name"])), "arguments": item["arguments"]}
            turn.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": call})
        case "custom_tool_call":
            custom = {"name": item["name"], "input": item["input"]}
            turn.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "custom", "custom": custom})
        case _:
            turn["content"] = _content(item["content"])


def _content(parts: str | list[Json]) -> str | list[Json]:
    """The content of a chat message: the joined text, or parts if there are pictures."""
    if isinstance(parts, str) or not any(part["type"] == "input_image" for part in parts):
        return parts if isinstance(parts, str) else "".join(part["text"] for part in parts)
    return [
        url_part(part["image_url"]) if part["type"] == "input_image" else {"type": "text", "text": part["text"]}
        for part in parts
    ]
