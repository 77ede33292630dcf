"""Chat messages to token ids, so that nothing a person typed can become a control token.

A template joins its own control strings ("<|im_end|>") with the text of the messages. Once joined, nobody can tell who
wrote which, so each control string inside the messages is wrapped in a pair of private-use characters before the
template sees it. In what the template gives back, a wrapped one is a person's text, a bare one is the template's own.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

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
        """`request` is all that the template will be given, as JSON values."""
        # Longest first: a control string may contain another.
        self._controls = sorted(controls, key=lambda control: len(control.text), reverse=True)
        taken = set(json.dumps(request, ensure_ascii=False))
        free = (chr(code) for code in PRIVATE_USE if chr(code) not in taken)
        self._open, self._close = next(free), next(free)
        self._any_control = re.compile("|".join(re.escape(c.text) for c in self._controls) or "(?!)")

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
        own = "|".join(
            (r"\s*" if c.lstrip else "") + re.escape(c.text) + (r"\s*" if c.rstrip else "") for c in self._controls
        )
        wrapped = f"{self._open}.*?{self._close}"
        start = 0
        for found in re.finditer(f"{wrapped}|({own or '(?!)'})", rendered, re.DOTALL):
            if found[1] is not None:
                yield rendered[start : found.start()], found[1]
                start = found.end()
        yield rendered[start:], ""
