"""Messages of Anthropic's API: their content blocks, and their conversion to chat messages."""

import json
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from pydantic_core import PydanticCustomError

from api.chat.message import MEDIA, Name, StrictModel, media_refusal, part_kind
from api.chat.pictures import data_url, url_part
from api.chat.schema import parse
from api.http.errors import Unsupported
from api.http.json_object import Json
from api.http.limits import MAX_MESSAGES, MAX_PARTS
from node.core.errors import BadRequest

BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
"""A line at the beginning of Claude Code's system prompt, which is meant for Anthropic's accounting. It differs between
conversations, in some versions between requests, so with it no prompt could reuse the KV of an earlier one.
"""


class Text(StrictModel):
    text: str


class Image(StrictModel):
    part: Json
    """Of chat."""


class Thinking(StrictModel):
    """Earlier reasoning of the model, given to chat templates that support it."""

    thinking: str


class RedactedThinking(StrictModel):
    """Reasoning that only Anthropic can read; it is left out."""


class ToolUseBlock(StrictModel):
    id: Name
    name: Name
    input: dict[str, Any]


class ToolResult(StrictModel):
    tool_use_id: Name
    content: Any = ""
    is_error: bool = False


Block = Text | Image | Thinking | RedactedThinking | ToolUseBlock | ToolResult
Kinds = Mapping[str, type[Block]]
Message = tuple[str, list[Block]]
"""Role and blocks."""

TEXT: Kinds = {"text": Text}
SHOWN: Kinds = {**TEXT, "image": Image}
KINDS: Mapping[str, Kinds] = {
    "user": {**SHOWN, "tool_result": ToolResult},
    "assistant": {**TEXT, "thinking": Thinking, "redacted_thinking": RedactedThinking, "tool_use": ToolUseBlock},
    "system": TEXT,
}
"""The blocks of each role's messages."""


def system_text(given: Any) -> str:
    """The text of the request's `system`: a string or text blocks. Raises BadRequest."""
    return _text_of(_blocks("system", given, TEXT), BILLING)


def chat_messages(given: Any) -> list[Json]:
    """Convert the request's `messages` to those of a chat. Consecutive messages of one role are one turn.

    Of the result, only the first may be of role system. Raises BadRequest and PydanticCustomError.
    """
    if not isinstance(given, list) or not given:
        raise PydanticCustomError("messages", "Input should be a non-empty list of messages")
    if len(given) > MAX_MESSAGES:
        raise PydanticCustomError("messages", f"Input should have at most {MAX_MESSAGES} messages, not {len(given)}")
    messages: list[Message] = []
    for index, message in enumerate(given):
        role, param = message.get("role") if isinstance(message, dict) else None, f"messages[{index}]"
        if not isinstance(role, str) or role not in KINDS:
            raise BadRequest(f"Invalid '{param}.role': it should be user or assistant.", param=f"{param}.role")
        messages.append((role, _blocks(f"{param}.content", message.get("content"), KINDS[role])))
    turns = _turns(_without_late_system(messages))
    return [message for role, blocks in turns for message in _turn(role, blocks)]


def _turns(messages: Iterable[Message]) -> list[Message]:
    """Join consecutive messages of one role. Thoughts alone are no turn: templates could not show them."""
    turns = [
        (role, [block for _, blocks in turn for block in blocks]) for role, turn in groupby(messages, itemgetter(0))
    ]
    said = [
        (role, blocks)
        for role, blocks in turns
        if role != "assistant" or any(isinstance(block, Text | ToolUseBlock) for block in blocks)
    ]
    return turns if len(said) == len(turns) else _turns(said)


def _without_late_system(messages: Iterable[Message]) -> Iterator[Message]:
    """System messages after the beginning become reminders in the user's turn.

    Many templates refuse them there, and moved to the beginning they would change a prompt that was already computed.
    """
    begun = False
    for role, blocks in messages:
        begun = begun or role != "system"
        if role != "system" or not begun:
            yield role, blocks
        elif text := _text_of(blocks):
            yield "user", [Text(text=f"<system-reminder>\n{text}\n</system-reminder>")]


def _blocks(param: str, given: Any, kinds: Kinds) -> list[Block]:
    """Validate a content: a text, or a list of blocks. Raises BadRequest."""
    if isinstance(given, str):
        return [Text(text=given)]
    if not isinstance(given, list):
        raise BadRequest(f"Invalid '{param}': it should be a string or a list of content blocks.", param=param)
    if len(given) > MAX_PARTS:
        raise BadRequest(f"Invalid '{param}': it has {len(given)} blocks; the maximum is {MAX_PARTS}.", param=param)
    return [_block(f"{param}[{index}]", block, kinds) for index, block in enumerate(given)]


def _block(param: str, given: Any, kinds: Kinds) -> Block:
    kind = part_kind(given)
    if kind is None:
        raise BadRequest(f"Invalid '{param}': it should be an object with a type.", param=param)
    if kind in MEDIA:
        raise Unsupported(f"Invalid '{param}': it {media_refusal(kind)}.", param=param)
    if kind not in kinds:
        known = ", ".join(kinds)
        raise Unsupported(
            f"Invalid '{param}': blocks of type {reprlib.repr(kind)} are not supported here, only {known}.", param=param
        )
    try:
        if kind == "image":
            return Image(part=url_part(data_url(given)))
    except BadRequest as error:
        raise Unsupported(f"Invalid '{param}': it {error.message}.", param=param) from error
    try:
        block = parse(kinds[kind], given)
        if isinstance(block, ToolResult):
            block.content = _content_of(_blocks("content", block.content, SHOWN))
    except BadRequest as error:
        where = f"{param}.{error.param}"
        message = error.message.replace(f"'{error.param}", f"'{where}", 1)
        raise type(error)(message, param=where) from error
    return block


def _turn(role: str, blocks: Sequence[Block]) -> list[Json]:
    if role == "assistant":
        return [_assistant_message(blocks)]
    results = [_tool_message(block) for block in blocks if isinstance(block, ToolResult)]
    content = _content_of(blocks)
    return [*results, {"role": role, "content": content}] if content or not results else results


def _tool_message(result: ToolResult) -> Json:
    content = result.content
    # Templates have no place for `is_error`.
    if result.is_error and isinstance(content, list):
        content = [{"type": "text", "text": "Error: "}, *content]
    elif result.is_error and content[:5].lower() != "error":
        content = f"Error: {content}"
    return {"role": "tool", "tool_call_id": result.tool_use_id, "content": content}


def _assistant_message(blocks: Sequence[Block]) -> Json:
    """Thoughts, text and calls of one turn."""
    message: Json = {"role": "assistant"}
    if thoughts := [block.thinking for block in blocks if isinstance(block, Thinking) and block.thinking]:
        message["reasoning_content"] = "\n".join(thoughts)
    if any(isinstance(block, Text) for block in blocks):
        message["content"] = _text_of(blocks)
    if uses := [block for block in blocks if isinstance(block, ToolUseBlock)]:
        message["tool_calls"] = [
            {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": json.dumps(use.input)}}
            for use in uses
        ]
    return message


def _content_of(blocks: Sequence[Block]) -> str | list[Json]:
    """The text; with pictures, content parts of chat in the blocks' order."""
    if not any(isinstance(block, Image) for block in blocks):
        return _text_of(blocks)
    parts: list[Json] = []
    for block in blocks:
        if isinstance(block, Image):
            parts.append(block.part)
        elif isinstance(block, Text):
            if parts and parts[-1]["type"] == "text":
                parts[-1]["text"] += "\n" + block.text
            else:
                parts.append({"type": "text", "text": block.text})
    return parts


def _text_of(blocks: Iterable[Block], without: re.Pattern[str] | None = None) -> str:
    """Each block begins a line of its own, as clients send separate texts in them: reminders, then the user's words."""
    texts = (block.text for block in blocks if isinstance(block, Text))
    return "\n".join(filter(None, (without.sub("", text) if without else text for text in texts)))
