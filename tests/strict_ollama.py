"""Checks answers of Ollama's API against the types of the `ollama` package: no missing and no unknown fields."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ollama import (
    ChatResponse,
    EmbedResponse,
    GenerateResponse,
    ListResponse,
    ProcessResponse,
    ProgressResponse,
    ShowResponse,
)
from ollama._types import BaseGenerateResponse, EmbeddingsResponse, Logprob, Message, ModelDetails, TokenLogprob
from pydantic import BaseModel, ConfigDict, TypeAdapter


class Version(BaseModel):
    model_config = ConfigDict(extra="allow")

    version: str


ANSWERS: Mapping[tuple[str, str], type[BaseModel]] = {
    ("POST", "/api/chat"): ChatResponse,
    ("POST", "/api/generate"): GenerateResponse,
    ("POST", "/api/embed"): EmbedResponse,
    ("POST", "/api/embeddings"): EmbeddingsResponse,
    ("POST", "/api/pull"): ProgressResponse,
    ("POST", "/api/show"): ShowResponse,
    ("GET", "/api/tags"): ListResponse,
    ("GET", "/api/ps"): ProcessResponse,
    ("GET", "/api/version"): Version,
}
COUNTS = frozenset({"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"})
COUNTS |= {"eval_count", "eval_duration"}
ALWAYS: Mapping[type[BaseModel], frozenset[str]] = {
    ChatResponse: frozenset({"model", "created_at", "message", "done"}),
    GenerateResponse: frozenset({"model", "created_at", "response", "done"}),
    Message: frozenset({"role", "content"}),
    EmbedResponse: frozenset({"model", "embeddings", "total_duration", "load_duration", "prompt_eval_count"}),
    ListResponse.Model: frozenset({"model", "modified_at", "digest", "size", "details"}),
    ProcessResponse.Model: frozenset({"model", "name", "digest", "size", "size_vram", "details", "expires_at"}),
    ShowResponse: frozenset(
        {"template", "details", "model_info", "capabilities", "modified_at", "parameters", "modelfile"}
    ),
    ModelDetails: frozenset(ModelDetails.model_fields),
    ProgressResponse: frozenset({"status"}),
}
"""Fields that Ollama always sends: in the package's types nearly all may be missing."""
EXTRAS: Mapping[type[BaseModel], frozenset[str]] = {
    ListResponse.Model: frozenset({"name"}),
    Message.ToolCall: frozenset({"id"}),
    Message.ToolCall.Function: frozenset({"index"}),
    TokenLogprob: frozenset({"bytes"}),
    Logprob: frozenset({"bytes"}),
}
"""Fields of Ollama's documentation that the package's types lack."""
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def check_answer(method: str, path: str, status: int, content_type: str, body: bytes) -> None:
    """Check any answer: plain, error or whole stream."""
    if status >= 400:
        assert content_type.startswith("application/json"), content_type
        if method != "HEAD":
            _check_error(json.loads(body))
    elif status == 200 and path == "/api/delete":
        assert body == b""
    elif content_type.startswith("application/x-ndjson"):
        check_stream(path, body)
    elif status == 200 and method != "HEAD":
        assert content_type.startswith("application/json"), content_type
        data = json.loads(body)
        kind = ANSWERS[method, path]
        strictly(kind, data)
        if issubclass(kind, BaseGenerateResponse) and kind is not EmbedResponse:
            _check_end(data)


def check_stream(path: str, body: bytes) -> None:
    """Check all lines of a stream that ended normally or with an error."""
    *lines, end = body.split(b"\n")
    assert end == b"", "the last line is not complete"
    assert all(len(line.decode().splitlines()) == 1 for line in lines), "a line is one line for all who split lines"
    *told, last = [json.loads(line) for line in lines]
    kind = ANSWERS["POST", path]
    for data in told:
        strictly(kind, data)
        assert not data.get("done"), "only the last line is done"
        assert not COUNTS & set(data)
    assert len({data.get("model") for data in told}) <= 1
    if set(last) == {"error"}:
        _check_error(last)
        return
    strictly(kind, last)
    if kind is ProgressResponse:
        assert last == {"status": "success"}
    else:
        _check_end(last)


def strictly(kind: type[BaseModel], data: Any) -> None:
    """Validate `data`, decoded from JSON, without conversions and without unknown fields."""
    _check_fields(TypeAdapter(kind).validate_json(json.dumps(data), strict=True), data)


def _check_error(error: Any) -> None:
    assert set(error) == {"error"}
    assert isinstance(error["error"], str)
    assert error["error"]


def _check_end(last: dict[str, Any]) -> None:
    """Check the end of an answer, or the answer to a request that loads or unloads a model."""
    assert last["done"] is True
    assert last["done_reason"] in ("stop", "length", "load", "unload")
    assert set(last) >= COUNTS or last["done_reason"] in ("load", "unload")
    spent = [last[name] for name in ("load_duration", "prompt_eval_duration", "eval_duration") if name in last]
    assert all(each >= 0 for each in spent)
    assert sum(spent) <= last.get("total_duration", 0)


def _check_fields(made: Any, data: Any) -> None:
    if isinstance(made, BaseModel):
        kind = type(made)
        names = {field.alias or name: name for name, field in kind.model_fields.items()}
        unknown = set(data) - set(names) - EXTRAS.get(kind, frozenset())
        assert not unknown, f"{kind.__name__} has no {sorted(unknown)}"
        missing = ALWAYS.get(kind, frozenset()) - set(data)
        assert not missing, f"{kind.__name__} needs {sorted(missing)}"
        assert TIME.fullmatch(data.get("created_at", "2000-01-01T00:00:00.000000Z"))
        for name in set(data) & set(names):
            assert data[name] is not None, f"{name} is null, where Ollama leaves it out"
            _check_fields(getattr(made, names[name]), data[name])
    elif isinstance(made, Sequence) and not isinstance(made, str):
        for one, other in zip(made, data, strict=True):
            _check_fields(one, other)
