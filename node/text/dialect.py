"""The output format of a model family: markers of reasoning and tool calls, from mlx-lm, and from harmony.py for
gpt-oss.

An answer is in one channel at a time; markers, which are strings of the family, switch to another. Channels have
mlx-lm's names: `normal` is the text that users see, `reasoning` the reasoning, `tool` a tool call. Other channels are
hidden.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from node.text import harmony
from node.text.grammar import CallForm

START = "normal"
_PARSER_ERRORS = (TypeError, LookupError, AttributeError, SyntaxError, ArithmeticError, RecursionError, MemoryError)
"""mlx-lm's parsers expect their models' own output, and fail on other text in many ways."""


class Call(NamedTuple):
    """A tool call; the arguments are a JSON object."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dialect:
    """`transitions`: the markers of each channel, each with the channel that follows it. `initial`: the first channel
    of an answer.
    """

    transitions: Mapping[str, Sequence[tuple[str, str]]]
    initial: str
    think_start: Sequence[int]
    think_end: Sequence[int]
    parser: Callable[[str, Any], Any] | None
    opening: str = ""
    """Header that the model would write before an answer without reasoning; its template does not contain it."""
    form: CallForm | None = None
    """Of its calls; None if their arguments are not JSON."""

    @classmethod
    def of(cls, wrapper: Any) -> "Dialect":
        """From mlx-lm's tokenizer wrapper, by the rules of its server (`mlx_lm.generate.make_text_state_machine`)."""
        vocabulary = wrapper.get_vocab()
        if all(control in vocabulary for control in harmony.CONTROLS):
            return cls(harmony.TRANSITIONS, "header", (), (), harmony.parse_tool_call, harmony.OPENING, _HARMONY)
        transitions: dict[str, list[tuple[str, str]]] = {START: []}
        if wrapper.has_thinking:
            transitions[START].append((wrapper.think_start, "reasoning"))
            transitions["reasoning"] = [(wrapper.think_end, START)]
        if wrapper.has_tool_calling:
            # In a family with headers, a header marks the beginning of a call.
            if not any(to == "tool" for edges in wrapper.response_transitions.values() for _, to in edges):
                transitions[START].append((wrapper.tool_call_start, "tool"))
            if wrapper.has_thinking:
                transitions["reasoning"].append((wrapper.tool_call_start, "tool"))
            # Mistral's calls end at the next call or at the end of the answer.
            end, after = (wrapper.tool_call_end, START) if wrapper.tool_call_end else (wrapper.tool_call_start, "tool")
            transitions["tool"] = [(end, after)]
        transitions[START] += [(marker, START) for marker in wrapper.structural_markers]
        for channel, edges in wrapper.response_transitions.items():
            transitions.setdefault(channel, []).extend(edges)
        return cls(
            transitions,
            wrapper.response_initial_state or START,
            wrapper.think_start_tokens or (),
            wrapper.think_end_tokens or (),
            wrapper.tool_parser if wrapper.has_tool_calling else None,
            form=_form(wrapper, vocabulary) if wrapper.has_tool_calling else None,
        )

    def markers(self, *, tools: bool) -> dict[str, list[tuple[str, str]]]:
        """The `transitions` that are possible in an answer with or without `tools`."""
        return {
            channel: [(marker, to) for marker, to in edges if tools or to != "tool"]
            for channel, edges in self.transitions.items()
            if tools or channel != "tool"
        }

    def channel_after(self, prompt: Sequence[int]) -> str:
        """First channel of the answer to a prompt: some templates end with the marker that begins reasoning."""
        begun, ended = _last(prompt, self.think_start), _last(prompt, self.think_end)
        return "reasoning" if begun > ended else self.initial

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]]) -> list[Call]:
        """Parse the text between two markers. Raises ValueError if it is not a call."""
        if self.parser is None:
            raise ValueError("this family has no calls")
        try:
            parsed = self.parser(text, tools)
            return [_call(each) for each in (parsed if isinstance(parsed, list) else [parsed])]
        except _PARSER_ERRORS as error:
            raise ValueError(f"no call: {error}") from error


_HARMONY = CallForm("<|channel|>commentary to=functions.", joint=" <|constrain|>json<|message|>")
_HEADED = CallForm("[TOOL_CALLS]", joint="[ARGS]", again="[TOOL_CALLS]")
_FORMS = {
    "json_tools": CallForm(
        "<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>", '<tool_call>\n{"name": "'
    ),
    "mistral": CallForm("[TOOL_CALLS]", '[{"name": "', '", "arguments": ', "}", ', {"name": "', "]"),
    "kimi_k2": CallForm(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.",
        ":0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_begin|>functions.",
        "<|tool_calls_section_end|>",
    ),
}
"""By the names of mlx-lm's parsers."""


def _form(wrapper: Any, vocabulary: Mapping[str, int]) -> CallForm | None:
    kind = wrapper.tool_parser.__module__.rpartition(".")[2]
    return _HEADED if kind == "mistral" and "[ARGS]" in vocabulary else _FORMS.get(kind)


def _call(parsed: Any) -> Call:
    name = parsed["name"]
    # Llama's models write "parameters"; a call without arguments may lack both.
    arguments = parsed.get("arguments", parsed.get("parameters"))
    if isinstance(arguments, str):
        arguments = json.loads(arguments or "{}")
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        raise TypeError("a call needs a name and an object of arguments")
    return Call(name, arguments or {})


def _last(tokens: Sequence[int], part: Sequence[int]) -> int:
    """Index of the last occurrence of `part`; -1 if there is none."""
    size = len(part)
    starts = range(len(tokens) - size, -1, -1) if size else ()
    return next((start for start in starts if tuple(tokens[start : start + size]) == tuple(part)), -1)
