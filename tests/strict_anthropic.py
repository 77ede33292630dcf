"""Checks output of the Anthropic surface against the types of Anthropic's package, and the order of a stream's events."""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from anthropic.types import (
    InputJSONDelta,
    Message,
    MessageDeltaUsage,
    MessageTokensCount,
    ModelInfo,
    RawMessageStreamEvent,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
    Usage,
)
from anthropic.types.raw_message_delta_event import Delta
from anthropic.types.shared.error_type import ErrorType
from pydantic import BaseModel, ConfigDict

from tests.strictly import Strictness

Json = dict[str, Any]


class _Allowing(BaseModel):
    """Accepts unknown fields, so that they can be named."""

    model_config = ConfigDict(extra="allow")


class _Models(_Allowing):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


class _ErrorObject(_Allowing):
    """`request_too_large` is in Anthropic's documentation, but not in the package."""

    type: ErrorType | Literal["request_too_large"]
    message: str


class _Error(_Allowing):
    type: Literal["error"]
    error: _ErrorObject


ANSWERS: Mapping[tuple[str, str], Any] = {
    ("POST", r"/messages"): Message,
    ("POST", r"/messages/count_tokens"): MessageTokensCount,
    ("GET", r"/models"): _Models,
    ("GET", r"/models/.+"): ModelInfo,
}
ENDING = frozenset({"stop_reason", "stop_sequence"})
COUNTS = frozenset({"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"})
STRICTNESS = Strictness({Message: ENDING, Delta: ENDING, Usage: COUNTS, MessageDeltaUsage: COUNTS}, {})
DELTAS: Mapping[str, tuple[type[BaseModel], ...]] = {
    "text": (TextDelta,),
    "thinking": (ThinkingDelta, SignatureDelta),
    "tool_use": (InputJSONDelta,),
}
"""The deltas of each kind of block."""
STATUSES: Mapping[str, range] = {
    "overloaded_error": range(503, 504),
    "rate_limit_error": range(429, 430),
    "authentication_error": range(401, 402),
    "permission_error": range(403, 404),
    "not_found_error": range(404, 405),
    "timeout_error": range(408, 409),
    "request_too_large": range(413, 414),
    "api_error": range(500, 600),
    "invalid_request_error": range(400, 500),
}


def strictly(kind: Any, data: Any) -> Any:
    return STRICTNESS.check(kind, data)


def is_of_anthropic(path: str, body: bytes) -> bool:
    """Whether an answer is of this surface: by its path, without `/v1`, or else by its form."""
    if path.startswith("/messages"):
        return True
    return path.startswith("/models") and re.match(rb'\{"(type": "(error|model)"|data":)', body) is not None


def check_answer(method: str, path: str, status: int, content_type: str, body: bytes) -> None:
    """Check any answer of this surface: plain, error or whole stream."""
    if content_type.startswith("text/event-stream"):
        check_stream(body)
    elif status >= 400 and method != "HEAD":
        assert content_type.startswith("application/json"), content_type
        error = strictly(_Error, json.loads(body)).error
        assert status in STATUSES[error.type], (status, error)
    elif status == 200 and body:
        (kind,) = (kind for (of, pattern), kind in ANSWERS.items() if of == method and re.fullmatch(pattern, path))
        message = strictly(kind, json.loads(body))
        if isinstance(message, Message):
            assert message.stop_reason is not None
            assert (message.stop_sequence is not None) == (message.stop_reason == "stop_sequence")


def check_stream(body: bytes) -> None:
    """Check all events of a stream that ended normally or with an error."""
    *blocks, end = body.split(b"\n\n")
    assert end == b"", "the last event lacks its blank line"
    events = [_event(block) for block in blocks]
    told = [event for event in events if event != {"type": "ping"}]
    if told and told[-1]["type"] == "error":
        strictly(_Error, told.pop())
        ended = False
    else:
        ended = True
    _check_order(told, ended=ended)


def _event(block: bytes) -> Json:
    name, data = block.split(b"\n")
    event: Json = json.loads(data.removeprefix(b"data: "))
    assert name == b"event: " + event["type"].encode(), block
    assert len(data.decode().splitlines()) == 1, "an event is one line, for all who split lines"
    return event


def _check_order(events: list[Json], *, ended: bool) -> None:
    """Each block's events are together, and the blocks come in the order of their indexes."""
    made = [strictly(RawMessageStreamEvent, event) for event in events]
    kinds = [event.type.removeprefix("content_").removeprefix("block_") for event in made]
    pattern = r"(message_start )((start (delta )*stop )*)(message_delta message_stop )"
    if not ended:
        pattern = r"((message_start )(start (delta )*stop )*(start (delta )*)?)?"
    assert re.fullmatch(pattern, "".join(f"{kind} " for kind in kinds)), kinds
    index, block = -1, ""
    for event in made:
        match event.type:
            case "message_start":
                assert (event.message.content, event.message.stop_reason) == ([], None)
            case "content_block_start":
                index, block, text = index + 1, event.content_block.type, ""
            case "content_block_delta":
                assert isinstance(event.delta, DELTAS[block]), event
                text += getattr(event.delta, "partial_json", "")
            case "message_delta":
                assert event.delta.stop_reason is not None
                if event.delta.stop_reason == "tool_use" and block == "tool_use":
                    assert isinstance(json.loads(text or "{}"), dict)
        assert getattr(event, "index", index) == index
