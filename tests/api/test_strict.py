"""tests/strict.py refuses everything that OpenAI would not send."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.strict import check_answer, check_stream

CHAT = "/v1/chat/completions"
JSON = "application/json; charset=utf-8"
BASE = {"id": "chatcmpl-1", "created": 1, "model": "m"}
ANSWER = {
    **BASE,
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
DELTAS = [({"role": "assistant", "content": ""}, None), ({"content": "Hi"}, None), ({}, "stop")]
CHUNKS = [
    {
        **BASE,
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
    for delta, finish in DELTAS
]
ERROR = {"error": {"message": "No.", "type": "invalid_request_error", "param": None, "code": None}}


def events(*chunks: Any, end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + end


def test_what_openai_sends_passes() -> None:
    check_answer("POST", CHAT, 200, JSON, json.dumps(ANSWER).encode())
    check_answer("POST", CHAT, 400, JSON, json.dumps(ERROR).encode())
    check_answer("POST", CHAT, 200, "text/event-stream", b": keep-alive\n\n" + events(*CHUNKS))
    check_stream(CHAT.removeprefix("/v1"), events(*CHUNKS[:2], ERROR, end=b""))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda answer: answer.pop("created"),
        lambda answer: answer.update(created="1"),
        lambda answer: answer.update(created=1.5),
        lambda answer: answer.update(object="chat.completion.chunk"),
        lambda answer: answer.update(made_up=1),
        lambda answer: answer["choices"][0].pop("logprobs"),
        lambda answer: answer["choices"][0].update(finish_reason="eos"),
        lambda answer: answer["choices"][0].update(finish_reason=None),
        lambda answer: answer["choices"][0]["message"].pop("refusal"),
        lambda answer: answer["choices"][0]["message"].update(content=["Hi"]),
        lambda answer: answer["choices"][0]["message"].update(thoughts="Hm"),
        lambda answer: answer["usage"].update(total_tokens=True),
    ],
)
def test_a_spoilt_answer_is_found(spoil: Callable[[Any], Any]) -> None:
    answer = copy.deepcopy(ANSWER)
    spoil(answer)
    with pytest.raises((AssertionError, ValueError)):
        check_answer("POST", CHAT, 200, JSON, json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/plain", b"No."),
        (JSON, b"[]"),
        (JSON, b'{"error": "No."}'),
        (JSON, b'{"error": {"message": "No.", "type": "x", "param": null}}'),
        (JSON, b'{"error": {"message": "No.", "type": "x", "param": null, "code": 400}}'),
        (JSON, b'{"error": {"message": "No.", "type": "x", "param": null, "code": null}, "detail": 1}'),
    ],
)
def test_a_spoilt_error_is_found(content_type: str, body: bytes) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check_answer("POST", CHAT, 400, content_type, body)


@pytest.mark.parametrize(
    "body",
    [
        events(*CHUNKS, end=b""),
        events(*CHUNKS, end=b"data: [DONE]\n"),
        events(*CHUNKS) + b"data: [DONE]\n\n",
        events(*CHUNKS[:2]),
        events(*CHUNKS[1:]),
        events(CHUNKS[0], CHUNKS[0], *CHUNKS[1:]),
        events(*CHUNKS, CHUNKS[1]),
        events(*CHUNKS[:2], {**CHUNKS[2], "id": "chatcmpl-2"}),
        events(*CHUNKS[:2], {**CHUNKS[2], "usage": ANSWER["usage"]}),
        events({**CHUNKS[0], "choices": [], "usage": ANSWER["usage"]}, *CHUNKS),
        events(*CHUNKS).replace(b"data: {", b"event: chunk\ndata: {"),
        events(*CHUNKS).replace(b'"delta"', b'"message"'),
    ],
)
def test_a_spoilt_stream_is_found(body: bytes) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check_stream("/chat/completions", body)
