"""Reads calls that were generated under a grammar of node/text/grammar.py, as they arrive. Pure."""

from collections.abc import Container, Iterable

from api.chat.channels import Glyph
from api.chat.reader import CallDelta, Parts, new_id
from node.text.grammar import call_head

_CALL = "{"
"""Begins a call in JSON."""


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
        begins_call = bool(self._head) and self._head[0].symbol == _CALL
        is_between = self._calls > 0 and not (begins_call or self._inside or self._is_custom)
        parts.cut = cut and not (is_between or (self._or_text and not self._calls))
        return parts

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
        parts.add_call(CallDelta(self._calls, id=new_id(), name=name, custom=self._is_custom))
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
