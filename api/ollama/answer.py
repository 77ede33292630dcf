"""Writes an answer as Ollama does: the lines of /api/chat and /api/generate, and the plain object."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from api.chat.answer import Delta, Ending, TokenText
from api.chat.logprobs import chat_logprobs
from api.chat.reader import CallDelta
from api.http.json_object import generated_object
from api.ollama.lines import timestamp
from node.text.tokenizer import Tokenizer

Json = dict[str, Any]


@dataclass(slots=True)
class Part:
    """A part of an answer, or all of it."""

    text: str = ""
    thinking: str = ""
    calls: list[Json] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    """Tokens whose log-probabilities are wanted."""

    def add(self, more: "Part") -> None:
        self.text += more.text
        self.thinking += more.thinking
        self.calls += more.calls
        self.tokens += more.tokens


class Calls:
    """Joins the increments of tool calls: Ollama tells each call as a whole."""

    def __init__(self) -> None:
        self._begun: list[CallDelta] = []
        """The increments of the unfinished call."""

    def take(self, delta: Delta) -> Part:
        """The increment of the answer with the calls that it completes.

        A call that is cut off, or whose arguments can't be read, becomes text.
        """
        part = Part(delta.text, delta.reasoning, tokens=list(delta.tokens))
        for call in delta.calls:
            self._begun.append(call)
            if call.ended:
                self._end(part)
        if delta.finish and self._begun:
            self._end(part)
        return part

    def _end(self, part: Part) -> None:
        """Add the unfinished call to the part. Its arguments are parsed only once: they may be as long as the context."""
        (call, *_), increments = self._begun, self._begun
        written, self._begun = "".join(each.arguments for each in increments), []
        ended = increments[-1].ended
        if ended and (arguments := generated_object(written)) is not None:
            part.calls.append(_call(call, arguments))
        else:
            part.text += f'{{"name": {json.dumps(call.name)}, "arguments": {written}{"}" if ended else ""}'


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the objects of one answer."""

    model: str
    """As requested."""
    chat: bool
    """For /api/chat; else for /api/generate."""

    def line(self, part: Part, tokenizer: Tokenizer | None = None, top_logprobs: int | None = None) -> Json:
        """An increment of the answer. `tokenizer`: needed only with `top_logprobs`."""
        line = self._head(part) | {"done": False}
        if tokenizer is not None and top_logprobs is not None and part.tokens:
            line["logprobs"] = _logprobs(tokenizer, part.tokens, top_logprobs)
        return line

    def quiet(self) -> Json:
        """A line without text, which keeps a stream alive."""
        return self.line(Part())

    def last(self, reason: str, counts: Json) -> Json:
        """The end of an answer. `counts`: numbers of tokens and nanoseconds; may be empty."""
        return self._head(Part()) | {"done": True, "done_reason": reason, **counts}

    def _head(self, part: Part) -> Json:
        said: Json = {"role": "assistant", "content": part.text} if self.chat else {"response": part.text}
        if part.thinking:
            said["thinking"] = part.thinking
        if part.calls:
            said["tool_calls"] = part.calls
        return {"model": self.model, "created_at": timestamp(), **({"message": said} if self.chat else said)}


def reason(finish: Ending | None) -> str:
    return "length" if finish == "length" else "stop"


def _call(call: CallDelta, arguments: Json) -> Json:
    return {"id": call.id, "function": {"index": call.index, "name": call.name, "arguments": arguments}}


def _logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenText], top: int) -> list[Json]:
    content: list[Json] = chat_logprobs(tokenizer, tokens, top)["content"]
    return [{name: value for name, value in entry.items() if name != "top_logprobs" or top} for entry in content]
