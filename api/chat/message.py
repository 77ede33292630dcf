"""A chat message: validated as OpenAI does, and converted to the form that chat templates expect."""

import json
from contextlib import suppress
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from api.http.json_object import parse_json
from api.http.limits import MAX_CALLS, MAX_PARTS
from node.core.errors import BadRequest
from node.core.limits import MAX_NAME_CHARS

_DESCRIBED = "a description in words"
MEDIA = {
    **dict.fromkeys(("image_url", "image", "input_image"), ("an image", _DESCRIBED)),
    **dict.fromkeys(("input_audio", "audio_url"), ("audio", "a transcript")),
    "video_url": ("a video", _DESCRIBED),
    **dict.fromkeys(("file", "input_file", "document", "container_upload"), ("a file", "its text as a text part")),
}
"""What a content part of each of these types is, and what to send instead."""


def media_refusal(kind: str) -> str:
    """Why a content part of a type in MEDIA is refused: continues "Part 0 "."""
    what, instead = MEDIA[kind]
    return (
        f"is {what} ({kind}), and models get only text here, also those made for more: leave it out, or send {instead}"
    )


def join_parts(content: Any) -> Any:
    """Join the text parts of a content, without a separator; a content may also be a text."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PydanticCustomError("content", "Input should be a string or a list of content parts")
    if len(content) > MAX_PARTS:
        raise PydanticCustomError("content", f"Input should have at most {MAX_PARTS} parts, not {len(content)}")
    return "".join(_part_text(index, part) for index, part in enumerate(content))


def part_kind(part: Any) -> str | None:
    """The type of a content part, or of anything else in its place; None if it has none."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None


def _part_text(index: int, part: Any) -> str:
    kind = part_kind(part)
    if kind in MEDIA:
        why = {"index": index, "refusal": media_refusal(kind)}
        raise PydanticCustomError("unsupported", "Part {index} {refusal}", why)
    text = part.get(kind) if kind in ("text", "refusal") else None
    if not isinstance(text, str):
        raise PydanticCustomError("content", 'Part {index} should be {"type": "text", "text": "..."}', {"index": index})
    return text


Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
"""Some clients write whole numbers like 40.0, which other servers take."""


class StrictModel(BaseModel):
    """Converts no types: a number is not a string."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class WithoutNulls(StrictModel):
    """Fields that are null are as if they were not given."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_given(cls, value: Any) -> Any:
        return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value


INPUT = "input"
"""The one argument of the function as which a model sees a custom tool."""


class FunctionCall(StrictModel):
    name: Name
    arguments: str


class ToolCall(StrictModel):
    id: Name
    type: Literal["function"] = "function"
    function: FunctionCall

    @model_validator(mode="before")
    @classmethod
    def _custom_as_function(cls, value: Any) -> Any:
        """A call of a custom tool as the model sees it."""
        match value:
            case {"type": "custom", "custom": {"name": name, "input": str(text)}, **more}:
                arguments = json.dumps({INPUT: text}, ensure_ascii=False)
                return {**more, "function": {"name": name, "arguments": arguments}}
        return value


class Message(StrictModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | None, BeforeValidator(join_parts)] = None
    name: Name | None = None
    tool_calls: list[ToolCall] | None = Field(default=None, max_length=MAX_CALLS, fail_fast=True)
    function_call: FunctionCall | None = None
    tool_call_id: Name | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self.function_call)):
            raise PydanticCustomError("content", "A message of role {role} needs content", {"role": self.role})
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError("tool_call_id", "A message of role tool needs a tool_call_id")
        return self

    @property
    def calls(self) -> list[FunctionCall]:
        """Calls of `tool_calls`, then the older `function_call`; templates get the first kind that is present."""
        older = [self.function_call] if self.function_call else []
        return [*(call.function for call in self.tool_calls or ()), *older]

    def for_template(self) -> dict[str, Any]:
        """The message as templates expect it: with `tool_calls` and the role `tool` instead of their older names."""
        message = self.model_dump(exclude_none=True)
        if function_call := message.pop("function_call", None):
            message.setdefault("tool_calls", [{"id": "call_0", "type": "function", "function": function_call}])
        for call in message.get("tool_calls", []):
            # Templates expect an object, where OpenAI's clients send its JSON text.
            with suppress(BadRequest):
                arguments = parse_json(call["function"]["arguments"].encode() or b"{}")
                if isinstance(arguments, dict):
                    call["function"]["arguments"] = arguments
        if message["role"] == "function":
            message["role"] = "tool"
        return {"content": "", **message}
