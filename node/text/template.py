"""Keeps text that users typed apart from the control strings of a chat template.

A template joins its control strings ("<|im_end|>") with the text of the messages, and in the result they look alike.
So each control string inside the messages is wrapped in two private-use characters before the template is rendered. In
the rendered chat, a wrapped one was typed by a user, any other is the template's.
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
    """String of a control token. `lstrip`, `rstrip`: the token includes the white space on that side. `meaning`: the text with control
    strings that comes in its place, if it is another.
    """

    text: str
    lstrip: bool = False
    rstrip: bool = False
    meaning: str = ""


class Segment(NamedTuple):
    """Part of a rendered chat. `typed`: contains text of users, in which no control strings are recognized."""

    text: str
    typed: bool


class Marks:
    """Two characters that do not occur in a request, to wrap control strings in."""

    def __init__(self, controls: Iterable[ControlString], request: Any) -> None:
        """`request`: all input of the template, as JSON values. Raises BadRequest if it uses all private-use
        characters.
        """
        longest_first = sorted(controls, key=lambda control: len(control.text), reverse=True)
        self._controls = {control.text: control for control in longest_first}
        used = set(json.dumps(request, ensure_ascii=False))
        free = list(islice((chr(code) for code in PRIVATE_USE if chr(code) not in used), 2))
        if len(free) < 2:
            raise BadRequest("The messages have all characters of Unicode's last private-use area.", param="messages")
        self._open, self._close = free
        # Longest first: a control string may begin with another.
        self._any_control = re.compile("|".join(map(re.escape, self._controls)) or "(?!)")

    def wrap(self, value: Any) -> Any:
        """Wrap every control string in a JSON value, at any depth, in keys too."""
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
        """Wrap the whole text as typed: it cannot form a control string with the text beside it, either."""
        return f"{self._open}{self.wrap(text)}{self._close}"

    def segments(self, rendered: str) -> Iterator[Segment]:
        """Split a rendered chat at the template's control strings, so that each `typed` part is a segment of its own.

        Every other segment begins at the start of the text or with a control string, so it has the same tokens by
        itself as in its place.
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

    def _spelled_out(self, rendered: str) -> str:
        for control in self._controls.values():
            if control.meaning and control.text in rendered:
                typed = f"{self._open}{control.text}{self._close}"
                parts = (part.replace(control.text, control.meaning) for part in rendered.split(typed))
                rendered = typed.join(parts)
        return rendered

    def _stretches(self, rendered: str) -> Iterator[tuple[str, str]]:
        """Yield each text between two control strings of the template, with the control string that ends it."""
        start = 0
        rendered = self._spelled_out(rendered)
        marked = self._open in rendered or self._close in rendered
        for found in self._any_control.finditer(rendered) if marked else ():
            begin, end = found.span()
            # Require both marks: a template that splits a text at "</think>" leaves single ones, maybe next to its own
            # control strings.
            if rendered[begin - 1 : begin] == self._open and rendered[end : end + 1] == self._close:
                continue  # typed by a user
            control = self._controls[found[0]]
            if control.lstrip:
                begin = start + len(rendered[start:begin].rstrip())
            if control.rstrip:
                end = next(BLANK_RUN.finditer(rendered, end)).end()
            yield rendered[start:begin], rendered[begin:end]
            start = end
        yield rendered[start:], ""
