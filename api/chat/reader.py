"""What a reader separates an answer into: text, reasoning and tool calls. Pure."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from api.chat.channels import Glyph


@dataclass(frozen=True, slots=True)
class CallDelta:
    """An increment of a tool call; the first one of a call has its `id` and `name`."""

    index: int
    arguments: str = ""
    """JSON, or the text of a custom tool."""
    id: str = ""
    name: str = ""
    ended: bool = False
    """Whether the call is complete."""
    custom: bool = False
    """Whether it is of a custom tool."""

    def grown(self, more: "CallDelta") -> "CallDelta":
        """This increment and the next one of the same call, joined."""
        return replace(self, arguments=self.arguments + more.arguments, ended=more.ended)


@dataclass(slots=True)
class Parts:
    """An increment of an answer, separated into text, reasoning and tool calls."""

    text: list[Glyph] = field(default_factory=list)
    reasoning: str = ""
    reasoning_tokens: int = 0
    """Number of tokens of reasoning, including the marker at its end."""
    calls: list[CallDelta] = field(default_factory=list)
    ended: bool = False
    """Whether the answer is complete, so that no more tokens are needed."""
    cut: bool = False
    """Whether the answer ended in the middle of a call."""

    def add(self, more: "Parts") -> None:
        """Append the next increment."""
        self.text += more.text
        self.reasoning += more.reasoning
        self.reasoning_tokens += more.reasoning_tokens
        self.calls += more.calls
        self.cut = more.cut

    def add_call(self, delta: CallDelta) -> None:
        """Append an increment of a call; consecutive increments of the same call are joined."""
        last = self.calls[-1] if self.calls else None
        if last and last.index == delta.index:
            self.calls[-1] = last.grown(delta)
        else:
            self.calls.append(delta)


class Reader(Protocol):
    """Incremental parser of an answer's glyphs."""

    def push(self, glyphs: Iterable[Glyph]) -> Parts: ...

    def finish(self, *, cut: bool = False) -> Parts:
        """What was held back. Called once. `cut`: the model did not end the answer itself."""


def new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
