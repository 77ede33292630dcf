"""How a model family marks what is no plain answer, its thoughts and its tool calls: what mlx-lm knows of it, and gpt-oss.

An answer is in one channel at a time, and strings of the family's own, its markers, lead from one to another. The channels
have mlx-lm's names: `normal` is what a reader sees, `reasoning` its thoughts, `tool` a call; any other is seen by nobody.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from node.text import harmony

START = "normal"


class Call(NamedTuple):
    """A tool call as the model wrote it; the arguments are a JSON object."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dialect:
    """`turns`: for each channel its markers, and the channel that each leads to. `begins`: where an answer begins."""

    turns: Mapping[str, Sequence[tuple[str, str]]]
    begins: str
    think_start: Sequence[int]
    think_end: Sequence[int]
    parser: Callable[[str, Any], Any] | None
    opening: str = ""
    """What the model would write before an answer that begins at once; its template leaves that to it."""

    @classmethod
    def of(cls, wrapper: Any) -> "Dialect":
        """From mlx-lm's tokenizer wrapper, by the rules of its own server (`mlx_lm.generate.make_text_state_machine`)."""
        vocabulary = wrapper.get_vocab()
        if all(control in vocabulary for control in harmony.CONTROLS):
            return cls(harmony.TURNS, "header", (), (), harmony.parse_tool_call, harmony.OPENING)
        turns: dict[str, list[tuple[str, str]]] = {START: []}
        if wrapper.has_thinking:
            turns[START].append((wrapper.think_start, "reasoning"))
            turns["reasoning"] = [(wrapper.think_end, START)]
        if wrapper.has_tool_calling:
            # A family with headers says there where calls begin.
            if not any(to == "tool" for edges in wrapper.response_transitions.values() for _, to in edges):
                turns[START].append((wrapper.tool_call_start, "tool"))
            if wrapper.has_thinking:
                turns["reasoning"].append((wrapper.tool_call_start, "tool"))
            # Mistral's calls end where the next one begins, or the answer does.
            end, after = (wrapper.tool_call_end, START) if wrapper.tool_call_end else (wrapper.tool_call_start, "tool")
            turns["tool"] = [(end, after)]
        turns[START] += [(marker, START) for marker in wrapper.structural_markers]
        for channel, edges in wrapper.response_transitions.items():
            turns.setdefault(channel, []).extend(edges)
        return cls(
            turns,
            wrapper.response_initial_state or START,
            wrapper.think_start_tokens or (),
            wrapper.think_end_tokens or (),
            wrapper.tool_parser if wrapper.has_tool_calling else None,
        )

    def markers(self, *, tools: bool) -> dict[str, list[tuple[str, str]]]:
        """The turns that an answer can take, with `tools` or without."""
        return {
            channel: [(marker, to) for marker, to in edges if tools or to != "tool"]
            for channel, edges in self.turns.items()
            if tools or channel != "tool"
        }

    def channel_after(self, prompt: Sequence[int]) -> str:
        """Where the answer to a prompt begins: some templates have opened the thoughts already."""
        begun, ended = _last(prompt, self.think_start), _last(prompt, self.think_end)
        return "reasoning" if begun > ended else self.begins

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]]) -> list[Call]:
        """The calls of a text between the markers. Raises ValueError when it is none."""
        if self.parser is None:
            raise ValueError("this family has no calls")
        try:
            parsed = self.parser(text, tools)
            return [_call(each) for each in (parsed if isinstance(parsed, list) else [parsed])]
        except (
            TypeError,
            LookupError,
            AttributeError,
            SyntaxError,
            ArithmeticError,
            RecursionError,
            MemoryError,
        ) as error:
            # mlx-lm's parsers are made for what their models write, and stumble over the rest in many ways.
            raise ValueError(f"no call: {error}") from error


def _call(parsed: Any) -> Call:
    name = parsed["name"]
    # Llama's models say "parameters"; a call without any may leave them out.
    arguments = parsed.get("arguments", parsed.get("parameters"))
    if isinstance(arguments, str):
        arguments = json.loads(arguments or "{}")
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        raise TypeError("a call needs a name and an object of arguments")
    return Call(name, arguments or {})


def _last(tokens: Sequence[int], part: Sequence[int]) -> int:
    """Where the last occurrence of `part` begins; -1 if there is none."""
    size = len(part)
    starts = range(len(tokens) - size, -1, -1) if size else ()
    return next((start for start in starts if tuple(tokens[start : start + size]) == tuple(part)), -1)
