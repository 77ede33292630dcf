"""Builds the output of one response from what the model generates, and the events that report it. Pure."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from api.chat.reader import CallDelta
from api.http.json_object import Json
from api.responses.items import item_id
from api.responses.schema import ResponseRequest
from node.core.generation import Sampling


@dataclass(slots=True)
class ResponseOutput:
    """Output items in the order in which they began; at most one is unfinished."""

    body: ResponseRequest
    model: str
    """As requested; the id of the opened model once that is known."""
    id: str
    created_at: int = field(default_factory=lambda: int(time.time()))
    items: list[Json] = field(default_factory=list)
    sampling: Sampling = field(default_factory=Sampling)
    """How the answer is sampled; the defaults until its model is ready."""
    begun: bool = False
    """Whether `created` and `in_progress` were reported."""
    _events: int = 0
    _growing: bool = False
    """Whether the last item is unfinished."""
    _status: str = "queued"
    _ended_at: int = 0
    _usage: Json | None = None
    _error: Json | None = None

    @property
    def ended(self) -> bool:
        return self._status not in ("queued", "in_progress")

    # --- changes; those that clients can follow yield the events that report them ------------------------------------

    def open(self, model: str, sampling: Sampling) -> Iterator[Json]:
        """Record that the model is ready, and how the answer is sampled."""
        self.model, self.sampling, self._status = model, sampling, "in_progress"
        if self.begun:
            yield self._event(self._status, response=self.response())

    def begin(self) -> Iterator[Json]:
        self.begun = True
        yield self._event("created", response=self.response())
        yield self._event(self._status, response=self.response())

    def text(self, delta: str, logprobs: list[Json]) -> Iterator[Json]:
        yield from self._open("message", "msg", role="assistant", content=[])
        item = self.items[-1]
        if not item["content"]:
            yield from self._open_part({"type": "output_text", "annotations": [], "logprobs": [], "text": ""})
        part = item["content"][0]
        part["text"] += delta
        part["logprobs"] += logprobs
        yield self._event("output_text.delta", **self._place(), **_FIRST, delta=delta, logprobs=_brief(logprobs))

    def reasoning(self, delta: str) -> Iterator[Json]:
        yield from self._open("reasoning", "rs", summary=[], content=[])
        item = self.items[-1]
        if not item["content"]:
            yield from self._open_part({"type": "reasoning_text", "text": ""})
        item["content"][0]["text"] += delta
        yield self._event("reasoning_text.delta", **self._place(), **_FIRST, delta=delta)

    def call(self, call: CallDelta) -> Iterator[Json]:
        """Begin a call, or append to its arguments."""
        kind, said, event, prefix = _CALLS[call.custom]
        if call.id:
            yield from self._close("completed")
            place = self.body.place_of(call.name)
            within = {} if place.namespace is None else {"namespace": place.namespace}
            yield from self._open(kind, prefix, call_id=call.id, name=place.name, **within, **{said: ""})
        if call.arguments:
            self.items[-1][said] += call.arguments
            yield self._event(f"{event}.delta", **self._place(), delta=call.arguments)
        if call.ended:  # whole, whatever comes of the response
            yield from self._close("completed")

    def finish(self, *, truncated: bool, usage: Json) -> Iterator[Json]:
        """End the response. `truncated`: the limit of tokens was reached."""
        self._usage = usage
        if not self.items:
            yield from self.text("", [])
        self._status = "incomplete" if truncated else "completed"
        self._ended_at = int(time.time())
        yield from self._close(self._status)
        yield self._event(self._status, response=self.response())

    def fail(self, code: str, message: str) -> Iterator[Json]:
        if not self.begun:
            yield from self.begin()
        yield from self._close("incomplete")
        self._status, self._error = "failed", {"code": code, "message": message}
        yield self._event("failed", response=self.response())

    def cancel(self) -> Iterator[Json]:
        yield from self._close("incomplete")
        self._status = "cancelled"
        yield self._event(self._status, response=self.response())

    # --- items --------------------------------------------------------------------------------------------------------

    def _open(self, kind: str, prefix: str, **fields: Any) -> Iterator[Json]:
        if self._growing and self.items[-1]["type"] == kind:
            return
        yield from self._close("completed")
        self.items.append({"id": item_id(prefix), "type": kind, "status": "in_progress", **fields})
        self._growing = True
        yield self._event("output_item.added", output_index=len(self.items) - 1, item=_copy(self.items[-1]))

    def _open_part(self, part: Json) -> Iterator[Json]:
        yield self._event("content_part.added", **self._place(), **_FIRST, part=_copy(part))
        self.items[-1]["content"].append(part)

    def _close(self, status: str) -> Iterator[Json]:
        if not self._growing:
            return
        self._growing = False
        item = self.items[-1]
        item["status"] = status
        for of_calls, text, event, _ in _CALLS.values():
            if item["type"] == of_calls:
                yield self._event(f"{event}.done", **self._place(), **{text: item[text]})
        for part in item.get("content", []):
            said = {"text": part["text"]} | ({"logprobs": _brief(part["logprobs"])} if "logprobs" in part else {})
            yield self._event(f"{part['type']}.done", **self._place(), **_FIRST, **said)
            yield self._event("content_part.done", **self._place(), **_FIRST, part=_copy(part))
        yield self._event("output_item.done", output_index=len(self.items) - 1, item=_copy(item))

    def _place(self) -> Json:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _event(self, name: str, **fields: Any) -> Json:
        number, self._events = self._events, self._events + 1
        return {"type": f"response.{name}", "sequence_number": number, **fields}

    # --- the whole ----------------------------------------------------------------------------------------------------

    def response(self) -> Json:
        """The response object in its current state."""
        body = self.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": self._status,
            "background": body.background,
            "completed_at": self._ended_at if self._status == "completed" else None,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "model": self.model,
            "output": [_copy(item) for item in self.items],
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "temperature": self.sampling.temperature,
            "text": {
                "format": body.text.format.model_dump(by_alias=True, exclude_none=True),
                "verbosity": body.text.verbosity,
            },
            "tool_choice": body.tool_choice,
            "tools": [
                {"parameters": None, "strict": False, **tool} if tool["type"] == "function" else tool
                for tool in body.tools
            ],
            "top_logprobs": body.top_logprobs,
            "top_p": self.sampling.top_p,
            "truncation": body.truncation,
            "usage": self._usage,
            "user": body.user,
            "metadata": body.metadata,
        }


_CALLS = {
    False: ("function_call", "arguments", "function_call_arguments", "fc"),
    True: ("custom_tool_call", "input", "custom_tool_call_input", "ctc"),
}
"""By `CallDelta.custom`: the type of a call's item, where it has its arguments, the name of their events, the prefix of its id."""
_FIRST = {"content_index": 0}
"""Items have a single content part here."""


def _brief(logprobs: list[Json]) -> list[Json]:
    """Log-probabilities in the format of events: without `bytes`."""
    return [
        {name: _brief(value) if name == "top_logprobs" else value for name, value in entry.items() if name != "bytes"}
        for entry in logprobs
    ]


def _copy(item: Json) -> Json:
    """Copy of an item that may still grow."""
    if "content" not in item:
        return dict(item)
    return {**item, "content": [dict(part) for part in item["content"]]}
