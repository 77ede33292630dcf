"""A chat message: validated as OpenAI does, and converted to the form that chat templates expect."""

import json
from contextlib import suppress
from itertools import count
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from api.chat.pictures import KINDS as PICTURES
from api.chat.pictures import data_url, picture_bytes
from api.http.json_object import parse_json
from api.http.limits import MAX_CALLS, MAX_PARTS
from node.core.errors import BadRequest
from node.core.limits import MAX_NAME_CHARS

MEDIA = {
    **dict.fromkeys(("input_audio", "audio_url"), ("audio", "a transcript")),
    "video_url": ("a video", "a description in words"),
    **dict.fromkeys(("file", "input_file", "document", "container_upload"), ("a file", "its text as a text part")),
}
"""What a content part of each of these types is, and what to send instead."""


def media_refusal(kind: str) -> str:
    """Why a content part of a type in MEDIA is refused: continues "Part 0 "."""
    what, instead = MEDIA[kind]
    return (
        f"is {what} ({kind}), and models get only text and pictures here, also those made for more: leave it out, or send "
        f"{instead}"
    )


def read_parts(content: Any) -> Any:
    """Join the text parts of a content, without a separator, unless there are pictures: then a list of texts, and of the pictures'
    files. A content may also be a text.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PydanticCustomError("content", "Input should be a string or a list of content parts")
    if len(content) > MAX_PARTS:
        raise PydanticCustomError("content", f"Input should have at most {MAX_PARTS} parts, not {len(content)}")
    parts = [_part(index, part) for index, part in enumerate(content)]
    return parts if any(isinstance(part, bytes) for part in parts) else "".join(map(str, parts))


def join_parts(content: Any) -> Any:
    """As `read_parts`, where only text can be."""
    text = read_parts(content)
    if isinstance(text, list):
        raise PydanticCustomError("unsupported", "There can be no pictures here, only text")
    return text


def part_kind(part: Any) -> str | None:
    """The type of a content part, or of anything else in its place; None if it has none."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None


def _part(index: int, part: Any) -> str | bytes:
    kind = part_kind(part)
    if kind in PICTURES:
        try:
            return picture_bytes(data_url(part))
        except BadRequest as error:
            why = {"index": index, "refusal": error.message}
            raise PydanticCustomError("unsupported", "Part {index} {refusal}", why) from error
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


NUMBER = "number"
"""Of a picture in the request, from 0: a key of its content part for templates, which look for none of this name."""


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
    content: Annotated[str | list[str | bytes] | None, BeforeValidator(read_parts)] = None
    """A text; with pictures, texts and the pictures' files."""
    name: Name | None = None
    tool_calls: list[ToolCall] | None = Field(default=None, max_length=MAX_CALLS, fail_fast=True)
    function_call: FunctionCall | None = None
    tool_call_id: Name | None = None
    reasoning_content: str | None = Field(default=None, validation_alias=AliasChoices("reasoning_content", "thinking"))

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self.function_call)):
            raise PydanticCustomError("content", "A message of role {role} needs content", {"role": self.role})
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError("tool_call_id", "A message of role tool needs a tool_call_id")
        return self

    @property
    def pictures(self) -> list[bytes]:
        return [part for part in self.content if isinstance(part, bytes)] if isinstance(self.content, list) else []

    @property
    def calls(self) -> list[FunctionCall]:
        """Calls of `tool_calls`, then the older `function_call`; templates get the first kind that is present."""
        older = [self.function_call] if self.function_call else []
        return [*(call.function for call in self.tool_calls or ()), *older]

    def for_template(self, first_picture: int = 0) -> dict[str, Any]:
        """The message as templates expect it: with `tool_calls` and the role `tool` instead of their older names. Its pictures have
        numbers from the first one on.
        """
        message = self.model_dump(exclude={"content"}, exclude_none=True)
        if isinstance(self.content, list):
            numbers = count(first_picture)
            message["content"] = [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", NUMBER: next(numbers)}
                for part in self.content
            ]
        elif self.content is not None:
            message["content"] = self.content
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
