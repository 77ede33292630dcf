"""Separates reasoning and tool calls from an answer's text, as it arrives. Pure."""

import contextlib
import json
import math
import re
import uuid
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from types import MappingProxyType
from typing import Any, Protocol

from api.chat.channels import Channels, Glyph, Piece
from api.chat.custom_tools import input_of
from api.http.json_object import LARGEST, without_halves
from node.text.dialect import START, BegunCall, Call
from node.text.grammar import call_head
from node.text.tokenizer import Symbol, Tokenizer

_CALL = "{"
"""Begins a call in JSON."""
_LARGEST = {"Infinity": LARGEST, "-Infinity": -LARGEST}
"""By Python's words for numbers that are larger."""


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


class FamilyReader:
    """Parses what a model writes without a grammar, in the format of its family.

    A call that cannot be parsed, or of an unknown function, is given out as text, so that nothing is lost. One that is cut is
    given as far as it came, if its function is certain. White space between a marker and the text after it is dropped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        channel: str,
        tools: Sequence[Mapping[str, Any]] = (),
        names: Iterable[str] = (),
        many: bool = True,
        custom: Container[str] = (),
        free: Mapping[re.Pattern[str], str] = MappingProxyType({}),
        bound: bool = False,
    ) -> None:
        """`channel`: where the answer begins. `names`: of the `tools` that may be called, of which some are `custom`. `many`:
        several calls may. `free`: beginnings of calls that go on with a text instead of JSON, and the tools' names. `bound`: a
        grammar binds all that follows the family's mark of calls, so that nothing but calls does, whatever is written in them.
        """
        turns = {
            name: [(tokenizer.symbols(marker), to) for marker, to in edges]
            for name, edges in tokenizer.dialect.markers(tools=bool(tools)).items()
        }
        self._channels = Channels({**turns, "tool": []} if bound else turns, channel)
        self._tokenizer = tokenizer
        self._tools = tools
        self._names = frozenset(names)
        self._many = many
        self._custom = custom
        self._free = free
        self._bound = bound
        self._calls = 0
        self._call: list[Glyph] | None = None
        """Glyphs of an unfinished call, including its first marker and white space before it."""
        self._opening = 0
        """Number of those glyphs that precede the call itself."""
        self._blanks: list[Glyph] = []
        """White space at the beginning of a run of text, held back."""
        self._tail = ""
        """White space at the end of the reasoning so far, held back."""
        self._headers: list[Glyph] = []
        """Hidden glyphs outside of text and reasoning; given out at the end if the answer had no marker, nor the beginning of one."""
        self._tokens = 0
        """Number of tokens read so far."""
        self._turned = False
        self._begun = False
        self._after_marker = channel != START

    def push(self, glyphs: Iterable[Glyph]) -> Parts:
        return self._read(self._channels.push(glyphs))

    def finish(self, *, cut: bool = False) -> Parts:
        held = self._channels.finish()
        parts = self._read(piece for piece in held if not (cut and _has_control(piece.glyphs)))
        if self._call is not None:
            is_call = self._end_call(parts, (), cut=cut)
            parts.cut = cut and is_call and not (parts.calls and parts.calls[-1].ended)
        if not self._after_marker:
            parts.text += self._blanks
        if not self._turned and not (cut and _has_control(self._headers)):
            parts.text += [glyph for glyph in self._headers if isinstance(glyph.symbol, str)]
        return parts

    def _read(self, pieces: Iterable[Piece]) -> Parts:
        parts = Parts()
        for piece in pieces:
            if parts.ended:
                break
            # A token in two pieces belongs to the first.
            before, self._tokens = self._tokens, max(self._tokens, piece.glyphs[-1].position + 1)
            if piece.channel == "reasoning":
                parts.reasoning_tokens += self._tokens - before
            if piece.to is not None:
                self._turn(parts, piece)
            elif piece.channel == "tool" and self._call is not None:
                self._call += piece.glyphs
            elif piece.channel in (START, "reasoning"):
                self._show(parts, piece)
            else:
                self._headers += piece.glyphs
        return parts

    def _turn(self, parts: Parts, marker: Piece) -> None:
        self._turned = True
        was_text = marker.channel == "tool" and not self._end_call(parts, () if marker.to == "tool" else marker.glyphs)
        if marker.to == "tool":
            self._call = [*([] if self._after_marker else self._blanks), *marker.glyphs]
            self._opening = len(self._call)
        self._begun, self._after_marker, self._blanks, self._tail = was_text, True, [], ""

    def _show(self, parts: Parts, piece: Piece) -> None:
        """Add a piece to text or reasoning, without control tokens that are not markers."""
        shown = [glyph for glyph in piece.glyphs if isinstance(glyph.symbol, str)]
        if not self._begun:
            text = list(dropwhile(lambda glyph: str(glyph.symbol).isspace(), shown))
            self._blanks += shown[: len(shown) - len(text)]
            if not text:
                return
            shown = text if self._after_marker else self._blanks + text
            self._begun, self._blanks = True, []
        if piece.channel == START:
            parts.text += shown
        else:
            thought = self._tail + "".join(str(glyph.symbol) for glyph in shown)
            parts.reasoning += thought.rstrip()
            self._tail = thought[len(thought.rstrip()) :]

    def _end_call(self, parts: Parts, closing: Sequence[Glyph], *, cut: bool = False) -> bool:
        """End the unfinished call. Returns False if it is not a valid call; its glyphs are then text. `cut`: it would go on."""
        whole, self._call = self._call or [], None
        try:
            symbols = [glyph.symbol for glyph in whole[self._opening :]]
            if self._add_free_call(parts, symbols, cut=cut):
                return True
            calls = (self._cut if cut else self._parsed)(self._spelled(symbols))
        except ValueError:
            parts.text += [glyph for glyph in (*whole, *closing) if isinstance(glyph.symbol, str)]
            return False
        for call in calls if self._many else calls[:1]:
            self._add_call(parts, call)
        parts.ended = not self._many
        return True

    def _parsed(self, text: str) -> list[BegunCall]:
        """The calls of a text. Raises ValueError if it has none, or one of an unknown function."""
        dialect = self._tokenizer.dialect
        if not self._bound:
            return self._known(dialect.parse(text, self._tools))
        calls, rest, is_all = dialect.read(text, self._tools, bound=True)
        if not is_all:
            raise ValueError(f"no call begins with {rest[:100]!r}")
        return self._known(calls)

    def _known(self, calls: Sequence[Call]) -> list[BegunCall]:
        unknown = [call.name for call in calls if call.name not in self._names]
        if unknown or not calls:
            raise ValueError(f"there is no function {unknown}")
        return [BegunCall(call.name, _as_json(call.arguments), ended=True) for call in calls]

    def _cut(self, text: str) -> list[BegunCall]:
        """The calls of a text that a limit has cut. Raises ValueError if it is no call."""
        dialect = self._tokenizer.dialect
        whole, rest, _ = dialect.read(text, self._tools, bound=self._bound)
        if not self._bound and dialect.tail and dialect.tail in rest:  # it ends a call that only the parser reads
            read, tail, rest = text.rpartition(dialect.tail)
            whole = dialect.parse(read + tail, self._tools)
        if whole:
            calls = self._known(whole)
            with contextlib.suppress(ValueError):  # the rest is the end of the section, or no call
                calls += dialect.begun(rest, self._names, further=True)
            return calls
        if not dialect.hasty and not self._bound:
            with contextlib.suppress(ValueError):
                return self._parsed(text)
        return dialect.begun(text, self._names)

    def _add_free_call(self, parts: Parts, symbols: Sequence[Symbol], *, cut: bool) -> bool:
        """Add the call if it is one with a text, which ends where the tokens begin that close it."""
        form, written = self._tokenizer.call_form, self._spelled(symbols)
        closing = (*form.stop, *form.unquote, *form.tail, *form.end) if form else ()
        for piece in reversed(closing):
            written = written.removesuffix(self._spelled([piece]) if isinstance(piece, int) else "")
        if form and all(isinstance(piece, str) for piece in form.stop or form.unquote):
            written = written.removesuffix(form.text_end.strip())
        for start, name in self._free.items():
            if begun := start.match(written):
                self._add(parts, name, written[begun.end() :], ended=not cut)
                parts.ended = not self._many
                return True
        return False

    def _add_call(self, parts: Parts, call: BegunCall) -> None:
        """Add a call with arguments in JSON, of which a custom tool has its text alone."""
        arguments = call.arguments
        if call.name in self._custom:
            arguments = without_halves(input_of(call.arguments, ended=call.ended))
        self._add(parts, call.name, arguments, ended=call.ended)

    def _add(self, parts: Parts, name: str, arguments: str, *, ended: bool) -> None:
        is_custom = name in self._custom
        parts.calls.append(CallDelta(self._calls, arguments, _new_id(), name, ended=ended, custom=is_custom))
        self._calls += 1

    def _spelled(self, symbols: Sequence[Symbol]) -> str:
        spell = self._tokenizer.token_bytes
        return "".join(each if isinstance(each, str) else spell(each).decode(errors="replace") for each in symbols)


class CallReader:
    """Incremental parser of calls that were generated under a grammar of node/text/grammar.py."""

    def __init__(
        self, names: Iterable[str], *, only: str | None = None, custom: Container[str] = (), or_text: bool = False
    ) -> None:
        """`only`: the answer is the arguments of one call of this function; None: each call has its function's name. `custom`:
        names of tools whose calls have a text, up to the end of the answer. `or_text`: the answer may be a text instead of calls.
        """
        self._heads = {call_head(name): name for name in names}
        self._only = only
        self._or_text = or_text
        self._custom = custom
        self._is_custom = False
        """Whether inside the text of a custom tool's call."""
        self._calls = 0
        self._head: list[Glyph] = []
        self._inside = False
        """Whether inside the arguments of a call, where `_depth` braces and brackets are open."""
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._is_text = False
        """Whether the answer turned out to contain no call."""

    def push(self, glyphs: Iterable[Glyph]) -> Parts:
        parts = Parts()
        for glyph in glyphs:
            if not isinstance(glyph.symbol, str):
                continue
            if self._only is not None and not self._calls:
                self._begin(parts, self._only)
            if self._is_text:
                parts.text.append(glyph)
            elif self._is_custom:
                parts.add_call(CallDelta(self._calls - 1, glyph.symbol, custom=True))
            elif self._inside:
                self._count(glyph.symbol)
                parts.add_call(CallDelta(self._calls - 1, glyph.symbol, ended=not self._inside))
            else:
                self._read_head(parts, glyph)
        return parts

    def finish(self, *, cut: bool = False) -> Parts:
        parts = Parts()
        if not self._calls and self._or_text:
            parts.text = self._head
        elif not self._calls and (cut or self._only in self._custom) and (name := self._only_name()) is not None:
            self._begin(parts, name)
        if self._is_custom:
            parts.add_call(CallDelta(self._calls - 1, ended=not cut, custom=True))
        is_between = self._calls > 0 and not self._begins_call() and not self._inside and not self._is_custom
        parts.cut = cut and not (is_between or (self._or_text and not self._calls))
        return parts

    def _begins_call(self) -> bool:
        return bool(self._head) and self._head[0].symbol == _CALL

    def _only_name(self) -> str | None:
        """The function of a call that was cut before its arguments; None if more than one could have followed."""
        if self._only is not None:
            return self._only
        begun = "".join(str(each.symbol) for each in self._head)
        names = [name for head, name in self._heads.items() if head.startswith(begun)]
        return names[0] if len(names) == 1 else None

    def _read_head(self, parts: Parts, glyph: Glyph) -> None:
        if self._calls and glyph.symbol == _CALL:  # what closes the previous call has none
            self._head.clear()
        self._head.append(glyph)
        text = "".join(str(each.symbol) for each in self._head)
        if text in self._heads:
            self._head.clear()
            self._begin(parts, self._heads[text])
        elif not self._calls and not any(head.startswith(text) for head in self._heads):
            self._is_text = True
            parts.text, self._head = self._head, []

    def _begin(self, parts: Parts, name: str) -> None:
        self._is_custom = name in self._custom
        parts.add_call(CallDelta(self._calls, id=_new_id(), name=name, custom=self._is_custom))
        self._calls += 1
        self._inside = not self._is_custom

    def _count(self, char: str) -> None:
        if self._in_string:
            self._in_string = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self._inside = self._depth > 0


def _as_json(arguments: Mapping[str, Any]) -> str:
    """The arguments in JSON, where a number that is too large is the largest. Raises ValueError for NaN, which is none."""
    with contextlib.suppress(ValueError):
        return without_halves(json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    bounded = json.loads(json.dumps(arguments), parse_constant=lambda name: _LARGEST.get(name, math.nan))
    return without_halves(json.dumps(bounded, ensure_ascii=False, allow_nan=False))


def _has_control(glyphs: Iterable[Glyph]) -> bool:
    return any(isinstance(glyph.symbol, int) for glyph in glyphs)


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
