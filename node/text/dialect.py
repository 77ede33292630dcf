"""The output format of a model family: markers of reasoning and tool calls, from mlx-lm, and from harmony.py for
gpt-oss.

An answer is in one channel at a time; markers, which are strings of the family, switch to another. Channels have
mlx-lm's names: `normal` is the text that users see, `reasoning` the reasoning, `tool` a tool call. Other channels are
hidden.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from node.core.errors import BadRequest
from node.text import harmony
from node.text.call_form import HARMONY, CallForm, form_of, pattern
from node.text.tagged import DECODER, NAME, Argument, Tags, arguments_of, described, read_arguments

START = "normal"
_PARSER_ERRORS = (TypeError, LookupError, AttributeError, SyntaxError, ArithmeticError, RecursionError, MemoryError)
"""mlx-lm's parsers expect their models' own output, and fail on other text in many ways."""


class Call(NamedTuple):
    """A tool call; the arguments are a JSON object."""

    name: str
    arguments: dict[str, Any]


class BegunCall(NamedTuple):
    """A tool call as far as it was written; the arguments are a beginning of JSON, which is whole if the call `ended`."""

    name: str
    arguments: str
    ended: bool


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
    """Of its calls; None if it is not known."""
    hasty: bool = False
    """Whether the parser takes a call for a whole one that only has begun."""

    @classmethod
    def of(cls, wrapper: Any) -> "Dialect":
        """From mlx-lm's tokenizer wrapper, by the rules of its server (`mlx_lm.generate.make_text_state_machine`)."""
        vocabulary = wrapper.get_vocab()
        if all(control in vocabulary for control in harmony.CONTROLS):
            return cls(harmony.TRANSITIONS, "header", (), (), harmony.parse_tool_call, harmony.OPENING, HARMONY)
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
        kind = wrapper.tool_parser.__module__.rpartition(".")[2] if wrapper.has_tool_calling else ""
        form = form_of(kind, vocabulary, str(wrapper.chat_template))
        return cls(
            transitions,
            wrapper.response_initial_state or START,
            wrapper.think_start_tokens or (),
            wrapper.think_end_tokens or (),
            wrapper.tool_parser if wrapper.has_tool_calling else None,
            form=form,
            hasty=kind in _HASTY,
        )

    @property
    def begins_calls(self) -> bool:
        """Whether the mark from which on a grammar binds is a marker; else only a part of it is."""
        marks = [marker for edges in self.transitions.values() for marker, to in edges if to == "tool"]
        return self.form is not None and self.form.mark in marks

    @property
    def tail(self) -> str:
        """The mark that ends each call of a text of several; empty, if each has a marker of its own, or a bracket ends it."""
        tail = str(self.form.tail).strip() if self.form and self.form.end else ""
        return tail if len(tail) > 1 else ""

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
        (marker, _), *_ = self.transitions["tool"]
        is_end = self.form is not None and f"{self.form.tail}{self.form.end}".endswith(marker)
        calls, is_all = self.read(f"{text}{marker}" if is_end else text, tools)[::2]
        if is_all:
            return calls
        try:
            parsed = self.parser(text, tools)
            return [_call(each) for each in (parsed if isinstance(parsed, list) else [parsed])]
        except _PARSER_ERRORS as error:
            raise ValueError(f"no call: {error}") from error

    def read(
        self, text: str, tools: Sequence[Mapping[str, Any]], *, bound: bool = False
    ) -> tuple[list[Call], str, bool]:
        """Read calls as a grammar binds them, after the mark that begins them. Returns those that are whole, the text behind them,
        and whether they are all. `bound`: a grammar bound this text, so that of a tool that is not strict any argument may come.
        """
        form, functions = self.form, {tool["function"]["name"]: tool["function"] for tool in tools}
        if form is None:
            return [], text, False
        names = "|".join(map(re.escape, sorted(functions, key=len, reverse=True))) or "(?!)"
        first, further = (
            re.compile(rf"\s*{pattern(str(part).lstrip())}({names}){pattern(form.joint)}")
            for part in (form.head, form.again)
        )
        begin = re.compile(f"(?:{pattern(form.comma)})?{pattern(form.key)}({NAME}){pattern(form.value)}")
        tags = Tags(begin, str(form.stop), str(form.quote), str(form.unquote))
        tail = re.compile(rf"\s*{_loosely(str(form.tail))}")
        calls, at = list[Call](), 0
        with contextlib.suppress(ValueError, BadRequest, RecursionError):
            while called := (further if calls else first).match(text, at):
                if form.value:
                    known = _known(functions[called[1]]["parameters"], form, bound=bound)
                    arguments, end = read_arguments(text, called.end(), tags, known, loose=bound)
                else:
                    arguments, end = DECODER.raw_decode(text, called.end())
                if not isinstance(arguments, dict) or not (ended := tail.match(text, end)):
                    break
                calls.append(Call(called[1], arguments))
                at = ended.end()
        is_all = re.fullmatch(rf"\s*(?:{_loosely(str(form.end))})?", text[at:]) is not None
        return calls, text[at:], bool(calls) and is_all

    def begun(self, text: str, names: Iterable[str], *, further: bool = False) -> list[BegunCall]:
        """The calls of functions of these `names` in the text after a marker, or behind a whole call and `further`, the last of
        which is cut off. None, if the text ends before a name is certain. Arguments that are not JSON are left out. Raises
        ValueError if it can be no call.
        """
        calls: list[BegunCall] = []
        head = str(self.form.again if further else self.form.head) if self.form else ""
        known, at = list(names), 0
        name = "|".join(map(re.escape, known)) or "(?!)"
        while found := re.compile(rf"\s*{_loosely(head)}({name})(?![\w.-]|\Z)").match(text, at):
            start = text.find("{", found.end()) if self.form and not self.form.value else -1
            try:
                _, at = DECODER.raw_decode(text, start)
            except (ValueError, RecursionError):
                return [*calls, BegunCall(found[1], text[start:] if start >= 0 else "", ended=False)]
            calls.append(BegunCall(found[1], text[start:at], ended=True))
            head = f"{self.form.tail}{self.form.again}" if self.form else ""
        written = "".join(text.split())
        if not calls and not any("".join(f"{head}{name}".split()).startswith(written) for name in known):
            raise ValueError("no call of a known function begins so")
        return calls


def _known(parameters: Mapping[str, Any], form: CallForm, *, bound: bool) -> Sequence[Argument] | None:
    """The arguments of a function; None, if any may come and each value tells whether it is a text. Raises BadRequest."""
    if form.stop or "properties" in parameters:
        try:
            return arguments_of(parameters)
        except BadRequest:
            if form.stop:
                if bound:
                    return described(parameters)
                raise
    return None


def _loosely(text: str) -> str:
    """An expression for the text with any white space in it and after it."""
    return "".join(rf"{re.escape(char)}\s*" for char in text if not char.isspace())


_HASTY = ("function_gemma", "glm47", "laguna", "longcat", "minicpm5", "muse_spark", "pythonic")


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
