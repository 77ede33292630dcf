"""Separates reasoning and tool calls from an answer's text, as it arrives, by the marks of the model's family. Pure."""

import contextlib
import json
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import dropwhile
from types import MappingProxyType
from typing import Any

from api.chat.channels import Channels, Glyph, Piece
from api.chat.custom_tools import input_of
from api.chat.reader import CallDelta, Parts, new_id
from api.http.json_object import LARGEST, without_halves
from node.text.dialect import START, BegunCall, Call
from node.text.tokenizer import Symbol, Tokenizer

_LARGEST = {"Infinity": LARGEST, "-Infinity": -LARGEST}
"""By Python's words for numbers that are larger."""


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
            arguments = call.arguments
            if call.name in self._custom:  # such a tool has its text alone
                arguments = without_halves(input_of(arguments, ended=call.ended))
            self._add(parts, call.name, arguments, ended=call.ended)
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

    def _add(self, parts: Parts, name: str, arguments: str, *, ended: bool) -> None:
        is_custom = name in self._custom
        parts.calls.append(CallDelta(self._calls, arguments, new_id(), name, ended=ended, custom=is_custom))
        self._calls += 1

    def _spelled(self, symbols: Sequence[Symbol]) -> str:
        spell = self._tokenizer.token_bytes
        return "".join(each if isinstance(each, str) else spell(each).decode(errors="replace") for each in symbols)


def _as_json(arguments: Mapping[str, Any]) -> str:
    """The arguments in JSON, where a number that is too large is the largest. Raises ValueError for NaN, which is none."""
    with contextlib.suppress(ValueError):
        return without_halves(json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    bounded = json.loads(json.dumps(arguments), parse_constant=lambda name: _LARGEST.get(name, math.nan))
    return without_halves(json.dumps(bounded, ensure_ascii=False, allow_nan=False))


def _has_control(glyphs: Iterable[Glyph]) -> bool:
    return any(isinstance(glyph.symbol, int) for glyph in glyphs)
