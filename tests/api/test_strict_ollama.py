"""tests/strict_ollama.py refuses everything that Ollama would not send."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.strict import check_answer

CHAT = "/api/chat"
JSON = "application/json; charset=utf-8"
LINES = "application/x-ndjson"
BASE = {"model": "m", "created_at": "2026-11-23T12:00:00.000001Z"}
COUNTS = {
    "total_duration": 9,
    "load_duration": 1,
    "prompt_eval_count": 5,
    "prompt_eval_duration": 2,
    "eval_count": 7,
    "eval_duration": 6,
}
LAST = {**BASE, "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop", **COUNTS}
CALL = {"id": "call_1", "function": {"index": 0, "name": "f", "arguments": {}}}
PARTS = [
    {**BASE, "message": {"role": "assistant", "content": "", "thinking": "Hm"}, "done": False},
    {**BASE, "message": {"role": "assistant", "content": "Hi", "tool_calls": [CALL]}, "done": False},
]
ERROR = {"error": "No."}


def lines(*parts: Any) -> bytes:
    return b"".join(json.dumps(part).encode() + b"\n" for part in parts)


def test_what_ollama_sends_passes() -> None:
    check_answer("POST", CHAT, 200, JSON, lines(LAST))
    check_answer("POST", CHAT, 404, JSON, lines(ERROR))
    check_answer("POST", CHAT, 200, LINES, lines(*PARTS, LAST))
    check_answer("POST", CHAT, 200, LINES, lines(*PARTS, ERROR))
    check_answer("POST", "/api/pull", 200, LINES, lines({"status": "pulling x", "total": 2}, {"status": "success"}))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda answer: answer.pop("created_at"),
        lambda answer: answer.update(created_at="2026-11-23T12:00:00+01:00"),
        lambda answer: answer.update(created_at=1),
        lambda answer: answer.update(made_up=1),
        lambda answer: answer.update(logprobs=None),
        lambda answer: answer.update(done="true"),
        lambda answer: answer.update(done=False),
        lambda answer: answer.update(done_reason="tool_calls"),
        lambda answer: answer.pop("eval_count"),
        lambda answer: answer.update(eval_duration=-1),
        lambda answer: answer.update(eval_duration=7),
        lambda answer: answer["message"].pop("content"),
        lambda answer: answer["message"].update(content=["Hi"]),
        lambda answer: answer["message"].update(tool_calls=[{"function": {"name": "f", "arguments": "{}"}}]),
        lambda answer: answer["message"].update(tool_calls=[{**CALL, "type": "function"}]),
    ],
)
def test_a_spoilt_answer_is_found(spoil: Callable[[Any], Any]) -> None:
    answer = copy.deepcopy(LAST)
    spoil(answer)
    with pytest.raises((AssertionError, ValueError)):
        check_answer("POST", CHAT, 200, JSON, lines(answer))


@pytest.mark.parametrize(
    ("content_type", "body"),
    [("text/plain", b"No."), (JSON, b'{"error": {"message": "No."}}'), (JSON, b'{"error": ""}'), (JSON, b"{}")],
)
def test_a_spoilt_error_is_found(content_type: str, body: bytes) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check_answer("POST", CHAT, 400, content_type, body)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/event-stream", lines(*PARTS, LAST)),
        (LINES, lines(*PARTS)),
        (LINES, lines(*PARTS, LAST).removesuffix(b"\n")),
        (LINES, lines(*PARTS, LAST, PARTS[1])),
        (LINES, lines(LAST, LAST)),
        (LINES, lines({**PARTS[0], **COUNTS}, LAST)),
        (LINES, lines(PARTS[0], {**PARTS[1], "model": "other"}, LAST)),
        (LINES, lines(*PARTS, {**ERROR, "done": True})),
    ],
)
def test_a_spoilt_stream_is_found(content_type: str, body: bytes) -> None:
    with pytest.raises((AssertionError, ValueError, KeyError)):
        check_answer("POST", CHAT, 200, content_type, body)
