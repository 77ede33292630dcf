"""Builds a message from what the model generates, and the events that report it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic_core import from_json

from api.anthropic.schema import MessagesRequest
from api.chat.answer import Delta
from api.chat.generation import Choice
from api.chat.reader import CallDelta
from api.http.json_object import Json, generated_object
from api.http.stream import Sse

SIGNATURE = "unsigned"
"""Signature of thoughts. Nobody checks it here, but some clients leave out thoughts without one."""


class Events(Sse):
    """A quiet stream has pings."""

    def waiting(self, awaited: str) -> bytes:
        return self.event({"type": "ping"})


@dataclass(slots=True)
class MessageOutput:
    """Content blocks (see `Output`) in the order in which they began; at most the last one is unfinished."""

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
    _ending: Json = field(default_factory=lambda: {"stop_reason": None, "stop_sequence": None})

    def grow(self, _: int, delta: Delta) -> Iterator[Json]:
        if not self._begun:
            self._begun = True
            yield {"type": "message_start", "message": self.whole()}
        if self.body.max_tokens:  # else the answer's one token is not wanted
            if delta.reasoning:
                yield from self._open({"type": "thinking", "thinking": "", "signature": ""})
                if self.body.thinking.display == "summarized":
                    self.content[-1]["thinking"] += delta.reasoning
                    yield self._delta({"type": "thinking_delta", "thinking": delta.reasoning})
            if delta.text:
                yield from self._open({"type": "text", "text": ""})
                self.content[-1]["text"] += delta.text
                yield self._delta({"type": "text_delta", "text": delta.text})
            for call in delta.calls:
                yield from self._call(call)
        if delta.finish:
            yield from self._close()
            self._ending = self._end(delta)
            yield {"type": "message_delta", "delta": self._ending, "usage": self._usage()}
            yield {"type": "message_stop"}

    def whole(self) -> Json:
        """The message in its current state."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": list(self.content),
            **self._ending,
            "usage": {**self._usage(), "service_tier": "standard"},
        }

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

    def _end(self, delta: Delta) -> Json:
        """The reason for the end, and the stop sequence if that was the reason."""
        reason = "end_turn"
        if delta.finish == "tool_calls":
            reason = "tool_use"
        elif delta.finish == "length":
            made = self.choice.answer.completion_tokens
            full = self.choice.request.max_tokens <= made < self.body.max_tokens
            reason = "model_context_window_exceeded" if full else "max_tokens"
        elif delta.stop in self.body.stop_sequences:  # an adapter's stop strings end a turn
            return {"stop_reason": "stop_sequence", "stop_sequence": delta.stop}
        return {"stop_reason": reason, "stop_sequence": None}

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
    if (whole := generated_object(arguments)) is not None:
        return whole
    try:
        begun = from_json(arguments.encode(errors="replace"), allow_partial=True, allow_inf_nan=False)
    except ValueError:
        begun = None
    return begun if isinstance(begun, dict) else {}
