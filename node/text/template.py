"""Chat messages to token ids, so that nothing a person typed can become a control token.

A template joins its own control strings ("<|im_end|>") with the text of the messages. Once joined, nobody can tell who
wrote which, so each control string inside the messages is wrapped in a pair of private-use characters before the
template sees it. In what the template gives back, a wrapped one is a person's text, a bare one is the template's own.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from node.core.errors import BadRequest

BLANK_RUN = re.compile(r"\s*")
PRIVATE_USE = range(0x100000, 0x10FFFE)


class ControlString(NamedTuple):
    """A string that tokenizes to one control token; the flags say which white space beside it is part of the token."""

    text: str
    lstrip: bool = False
    rstrip: bool = False


class Segment(NamedTuple):
    """A stretch of a rendered chat. `typed`: it holds text that must not be parsed for control strings."""

    text: str
    typed: bool


class Marks:
    """Two characters that occur nowhere in a request, and the control strings that they wrap."""

    def __init__(self, controls: Iterable[ControlString], request: Any) -> None:
        """`request` is all that the template will be given, as JSON values. Raises BadRequest if it leaves no character."""
        longest_first = sorted(controls, key=lambda control: len(control.text), reverse=True)
        self._controls = {control.text: control for control in longest_first}
        taken = set(json.dumps(request, ensure_ascii=False))
        free = list(islice((chr(code) for code in PRIVATE_USE if chr(code) not in taken), 2))
        if len(free) < 2:
            raise BadRequest("The messages have all characters of Unicode's last private-use area.", param="messages")
        self._open, self._close = free
        # Longest first: a control string may begin with another.
        self._any_control = re.compile("|".join(map(re.escape, self._controls)) or "(?!)")

    def wrap(self, value: Any) -> Any:
        """The same value with every control string in it wrapped, at any depth, keys too."""
        match value:
            case str():
                return self._any_control.sub(lambda found: f"{self._open}{found[0]}{self._close}", value)
            case dict():
                return {self.wrap(key): self.wrap(item) for key, item in value.items()}
            case list() | tuple():
                return [self.wrap(item) for item in value]
            case _:
                return value

    def shield(self, text: str) -> str:
        """The same text, all of it as typed by a person: it can't be joined with what stands beside it, either."""
        return f"{self._open}{self.wrap(text)}{self._close}"

    def segments(self, rendered: str) -> Iterator[Segment]:
        """Cut a rendered chat at the template's own control strings, around each stretch that has wrapped ones.

        Every segment that is not `typed` begins at the start of the text or with a control string, so encoding it by
        itself gives the same tokens as encoding it in its place.
        """
        plain = ""
        for stretch, control in self._stretches(rendered):
            if self._open in stretch or self._close in stretch:
                if plain:
                    yield Segment(plain, typed=False)
                yield Segment(stretch.replace(self._open, "").replace(self._close, ""), typed=True)
                plain = control
            else:
                plain += stretch + control
        if plain:
            yield Segment(plain, typed=False)

    def _stretches(self, rendered: str) -> Iterator[tuple[str, str]]:
        """Each text without control strings of the template's own, with the control string that ends it."""
        start = 0
        marked = self._open in rendered or self._close in rendered
        for found in self._any_control.finditer(rendered) if marked else ():
            begin, end = found.span()
            # Both marks: a template that splits a text at "</think>" leaves single ones, perhaps beside its own control.
            if rendered[begin - 1 : begin] == self._open and rendered[end : end + 1] == self._close:
                continue  # typed by a person
            control = self._controls[found[0]]
            if control.lstrip:
                begin = start + len(rendered[start:begin].rstrip())
            if control.rstrip:
                end = _skip_blanks(rendered, end)
            yield rendered[start:begin], rendered[begin:end]
            start = end
        yield rendered[start:], ""


def _skip_blanks(text: str, start: int) -> int:
    blanks = BLANK_RUN.match(text, start)
    return start if blanks is None else blanks.end()
