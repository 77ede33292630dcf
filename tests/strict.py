"""Checks a server's output against the types of OpenAI's package: no missing and no additional fields.

`check_answer` takes any exchange; the fixtures of tests/api and tests/nodes call it with each of theirs. The other
surfaces have checkers of their own, which it calls.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from openai.types import Completion, CompletionChoice, CreateEmbeddingResponse, Embedding, ErrorObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage, ChatCompletionTokenLogprob
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall
from openai.types.chat.chat_completion_token_logprob import TopLogprob
from openai.types.completion_choice import Logprobs
from openai.types.responses import (
    InputTokenCountResponse,
    Response,
    ResponseCustomToolCall,
    ResponseCustomToolCallOutput,
    ResponseFailedEvent,
    ResponseItemList,
    ResponseStreamEvent,
)
from pydantic import BaseModel, ConfigDict

from tests import strict_anthropic, strict_ollama
from tests.strictly import Strictness


class _Allowing(BaseModel):
    """Accepts unknown fields, so that `strictly` can name them."""

    model_config = ConfigDict(extra="allow")


class _Models(_Allowing):
    object: Literal["list"]
    data: list[Model]


class _Error(_Allowing):
    error: ErrorObject


class _Deleted(_Allowing):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


# Types for the cases where the package's types are stricter than OpenAI's schema and answers.


class _EchoLogprobs(Logprobs):
    """The first token of an echoed prompt has no log-probability."""

    token_logprobs: list[float | None] | None = None  # type: ignore[assignment]
    top_logprobs: list[dict[str, float] | None] | None = None  # type: ignore[assignment]


class _CompletionChoice(CompletionChoice):
    logprobs: _EchoLogprobs | None = None


class _Completion(Completion):
    choices: list[_CompletionChoice]  # type: ignore[assignment]


class _CompletionChunkChoice(_CompletionChoice):
    """A chunk before the end has no finish reason."""

    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]


class _CompletionChunk(Completion):
    choices: list[_CompletionChunkChoice]  # type: ignore[assignment]


class _DeltaCustom(BaseModel):
    name: str | None = None
    input: str | None = None


class _DeltaCall(ChoiceDeltaToolCall):
    """OpenAI streams calls of custom tools, too."""

    type: Literal["function", "custom"] | None = None  # type: ignore[assignment]
    custom: _DeltaCustom | None = None


class _Delta(ChoiceDelta):
    tool_calls: list[_DeltaCall] | None = None  # type: ignore[assignment]


class _ChunkChoice(ChunkChoice):
    delta: _Delta


class ChatChunk(ChatCompletionChunk):
    choices: list[_ChunkChoice]  # type: ignore[assignment]


class _Cancelled(ResponseFailedEvent):
    """The package has no type for the end of a response that was cancelled."""

    type: Literal["response.cancelled"]  # type: ignore[assignment]


class _Embedding(Embedding):
    """A string if base64 was requested."""

    embedding: list[float] | str  # type: ignore[assignment]


class _Embeddings(CreateEmbeddingResponse):
    data: list[_Embedding]  # type: ignore[assignment]


ANSWERS: Mapping[tuple[str, str], Any] = {
    ("POST", r"/chat/completions"): ChatCompletion,
    ("POST", r"/completions"): _Completion,
    ("POST", r"/embeddings"): _Embeddings,
    ("GET", r"/models"): _Models,
    ("GET", r"/models/.+"): Model,
    ("POST", r"/responses"): Response,
    ("POST", r"/responses/input_tokens"): InputTokenCountResponse,
    ("GET", r"/responses/[^/]+"): Response,
    ("DELETE", r"/responses/[^/]+"): _Deleted,
    ("POST", r"/responses/[^/]+/cancel"): Response,
    ("GET", r"/responses/[^/]+/input_items"): ResponseItemList,
}
EVENTS: Mapping[str, Any] = {
    r"/chat/completions": ChatChunk,
    r"/completions": _CompletionChunk,
    r"/responses(/[^/]+)?": ResponseStreamEvent,
}

ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled", "error")

ALWAYS: Mapping[type[BaseModel], frozenset[str]] = {
    ChatCompletionMessage: frozenset({"content", "refusal"}),
    Choice: frozenset({"logprobs"}),
    ChoiceLogprobs: frozenset({"content", "refusal"}),
    ChunkChoice: frozenset({"finish_reason"}),
    CompletionChoice: frozenset({"logprobs"}),
    ChatCompletionTokenLogprob: frozenset({"bytes"}),
    TopLogprob: frozenset({"bytes"}),
    ErrorObject: frozenset({"code", "param"}),
    Response: frozenset({"error", "incomplete_details", "instructions", "metadata", "temperature", "top_p", "status"}),
}
"""Fields that OpenAI's schema requires, maybe as null, but that may be missing in the package's types."""

EXTRAS: Mapping[type[BaseModel], frozenset[str]] = {
    Model: frozenset({"max_model_len", "capabilities", "root"}),
    ChatCompletionMessage: frozenset({"reasoning_content"}),
    ChoiceDelta: frozenset({"reasoning_content"}),
    ResponseCustomToolCall: frozenset({"status"}),
    ResponseCustomToolCallOutput: frozenset({"status"}),
}
"""Fields that OpenAI does not have; docs/api.md explains them."""


STRICTNESS = Strictness(ALWAYS, EXTRAS)


def strictly(kind: Any, data: Any) -> Any:
    """Validate `data`, decoded from JSON, as OpenAI's type, without conversions and without additional fields."""
    return STRICTNESS.check(kind, data)


def check_answer(method: str, path: str, status: int, content_type: str, body: bytes) -> None:
    """Check any answer: plain, error or whole stream. `path` may have a query, and may lack `/v1`."""
    path = path.partition("?")[0].removeprefix("/v1")
    is_request = b"The HTTP request is invalid" not in body  # else its path is not known
    if path.startswith("/api/") and is_request:
        strict_ollama.check_answer(method, path, status, content_type, body)
        return
    if path.startswith("/cluster/") and status == 200:
        return  # OpenAI has nothing like it
    if strict_anthropic.is_of_anthropic(path, body) and is_request:
        strict_anthropic.check_answer(method, path, status, content_type, body)
    elif content_type.startswith("text/event-stream"):
        check_stream(path, body)
    elif status >= 400 and method != "HEAD" and path != "/health":  # its 503 has a body of its own
        assert content_type.startswith("application/json"), content_type
        assert isinstance(json.loads(body), dict)
        strictly(_Error, json.loads(body))
    elif status == 200:
        for (of, pattern), kind in ANSWERS.items():
            if of == method and re.fullmatch(pattern, path):
                strictly(kind, json.loads(body))


def check_stream(path: str, body: bytes) -> None:
    """Check all events of a stream that ended normally or with an error."""
    *blocks, end = body.split(b"\n\n")
    assert end == b"", "the last event lacks its blank line"
    events = [block for block in blocks if not block.startswith(b":")]
    assert events or path.startswith("/responses/"), "a stream without events"
    (kind,) = (kind for pattern, kind in EVENTS.items() if re.fullmatch(pattern, path))
    if kind is ResponseStreamEvent:
        _check_named(events, whole=path == "/responses")
        return
    *told, last = [_data(event) for event in events]
    if last != b"[DONE]":
        strictly(_Error, json.loads(last))
    chunks = [json.loads(data) for data in told]
    for chunk in chunks:
        strictly(kind, chunk)
    _check_chunks(chunks, ended=last == b"[DONE]", chat=kind is ChatChunk)


def _data(event: bytes) -> bytes:
    name, _, data = event.partition(b": ")
    assert name == b"data", event
    assert len(data.decode().splitlines()) == 1, "an event is one line, for all who split lines"
    return data


def _check_named(events: Sequence[bytes], *, whole: bool) -> None:
    """Check a stream of /v1/responses: each event has its type as its name, and a number. `whole`: the first one is 0."""
    numbers = []
    for event in events:
        name, data = event.split(b"\n")
        told = json.loads(_data(data))
        assert name == b"event: " + told["type"].encode()
        numbers.append(told["sequence_number"])
        strictly(_Cancelled if told["type"] == "response.cancelled" else ResponseStreamEvent, told)
    if whole or events:
        assert numbers == list(range(0 if whole else numbers[0], numbers[-1] + 1))
        assert told["type"] in ENDS


def _check_chunks(chunks: Sequence[dict[str, Any]], *, ended: bool, chat: bool) -> None:
    same = {tuple(chunk[name] for name in ("id", "created", "model", "object")) for chunk in chunks}
    assert len(same) <= 1, same
    begun: set[int] = set()
    finished: set[int] = set()
    for number, chunk in enumerate(chunks):
        if not chunk["choices"]:
            assert ended
            assert number == len(chunks) - 1, "usage is told last"
            assert chunk["usage"]
        else:
            assert chunk.get("usage") is None
        for choice in chunk["choices"]:
            index = choice["index"]
            assert index not in finished, "nothing comes after the reason to finish"
            if chat:
                _check_delta(choice, first=index not in begun)
            begun.add(index)
            finished |= {index} if choice["finish_reason"] else set()
    assert not ended or begun == finished, "each choice has a reason to finish"


def _check_delta(choice: dict[str, Any], *, first: bool) -> None:
    delta = choice["delta"]
    assert ("role" in delta) == first, "the first delta tells the role, and no other"
    assert "message" not in choice
    if choice["finish_reason"]:
        assert delta == {}
    if first:
        assert delta["role"] == "assistant"
        assert not delta.get("content")
