"""Builds a message from what the model generates, and the events that report it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from api.anthropic.schema import MessagesRequest
from api.chat.answer import Delta
from api.chat.generation import Choice
from api.chat.reader import CallDelta
from api.http.json_object import generated_object
from api.http.stream import Sse

Json = dict[str, Any]

SIGNATURE = "unsigned"
"""Signature of thoughts. Nobody checks it here, but some clients leave out thoughts without one."""


class Events(Sse):
    """Events named by their type. A quiet stream has pings."""

    def event(self, data: Json, name: str = "") -> bytes:
        return super().event(data, data["type"])

    def waiting(self, awaited: str) -> bytes:
        return self.event({"type": "ping"})


@dataclass(slots=True)
class MessageOutput:
    """Content blocks in the order in which they began; at most the last one is unfinished."""

    body: MessagesRequest
    id: str
    model: str
    choice: Choice
    """Its counts of tokens are the message's usage."""
    content: list[Json] = field(default_factory=list)
    _begun: bool = False
    _growing: bool = False
    """Whether the last block is unfinished."""
    _input: list[str] = field(default_factory=list)
    """The JSON of the unfinished call's input, in pieces."""
    _stop_reason: str | None = None
    _stop_sequence: str | None = None

    def grow(self, delta: Delta) -> Iterator[Json]:
        """Add an increment of the answer. Yields the events that report it."""
        if not self._begun:
            self._begun = True
            yield {"type": "message_start", "message": self.message()}
        if self.body.max_tokens:  # else the answer's one token is not wanted
            yield from self._think(delta.reasoning)
            yield from self._say(delta.text)
            for call in delta.calls:
                yield from self._call(call)
        if delta.finish:
            yield from self._close()
            self._stop_reason, self._stop_sequence = self._ending(delta)
            ending = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
            yield {"type": "message_delta", "delta": ending, "usage": self._usage()}
            yield {"type": "message_stop"}

    def message(self) -> Json:
        """The message in its current state."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": list(self.content),
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": {**self._usage(), "service_tier": "standard"},
        }

    def _think(self, thoughts: str) -> Iterator[Json]:
        if not thoughts:
            return
        yield from self._open({"type": "thinking", "thinking": "", "signature": ""})
        if self.body.thinking.display == "summarized":
            self.content[-1]["thinking"] += thoughts
            yield self._delta({"type": "thinking_delta", "thinking": thoughts})

    def _say(self, text: str) -> Iterator[Json]:
        if not text:
            return
        yield from self._open({"type": "text", "text": ""})
        self.content[-1]["text"] += text
        yield self._delta({"type": "text_delta", "text": text})

    def _call(self, call: CallDelta) -> Iterator[Json]:
        """Begin a call (its id and name are set), or append to its arguments."""
        if call.id:
            yield from self._close()
            own_id = f"toolu_{call.id.removeprefix('call_')}"
            yield from self._open({"type": "tool_use", "id": own_id, "name": call.name, "input": {}})
        if call.arguments:
            self._input.append(call.arguments)
            yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def _open(self, block: Json) -> Iterator[Json]:
        """Begin a block, unless the unfinished one is of its type."""
        if self._growing and self.content[-1]["type"] == block["type"]:
            return
        yield from self._close()
        self.content.append(block)
        self._growing = True
        yield {"type": "content_block_start", "index": len(self.content) - 1, "content_block": dict(block)}
        if len(self.content) == 1:
            yield {"type": "ping"}

    def _close(self) -> Iterator[Json]:
        if not self._growing:
            return
        self._growing = False
        block = self.content[-1]
        if block["type"] == "thinking":
            block["signature"] = SIGNATURE
            yield self._delta({"type": "signature_delta", "signature": SIGNATURE})
        elif block["type"] == "tool_use":
            block["input"], self._input = _input_of("".join(self._input)), []
        yield {"type": "content_block_stop", "index": len(self.content) - 1}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}

    def _ending(self, delta: Delta) -> tuple[str, str | None]:
        """The reason for the end, and the stop sequence that was the reason."""
        match delta.finish:
            case "tool_calls":
                return "tool_use", None
            case "length":
                full = self.choice.answer.completion_tokens < self.body.max_tokens
                return "model_context_window_exceeded" if full else "max_tokens", None
            case _:
                # An adapter's stop strings end a turn.
                named = delta.stop if delta.stop in self.body.stop_sequences else None
                return "end_turn" if named is None else "stop_sequence", named

    def _usage(self) -> Json:
        """Tokens so far. Unlike OpenAI, Anthropic does not count cached tokens as input."""
        answer = self.choice.answer
        return {
            "input_tokens": len(self.choice.request.prompt) - answer.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": answer.cached_tokens,
            "output_tokens": min(answer.completion_tokens, self.body.max_tokens),
            "output_tokens_details": {"thinking_tokens": answer.reasoning_tokens},
        }


def _input_of(arguments: str) -> Json:
    """The input of a call. What `max_tokens` truncated is completed, as Anthropic's clients complete that of a stream.

    It is empty if no parser takes it: models may write lone surrogates in it, or nest it very deeply.
    """
    whole = generated_object(arguments)
    if whole is not None:
        return whole
    try:
        begun = from_json(arguments.encode(errors="replace"), allow_partial=True, allow_inf_nan=False)
    except ValueError:
        begun = None
    return begun if isinstance(begun, dict) else {}
