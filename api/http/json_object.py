"""Parses untrusted JSON. Its structure is counted first, so that parsing takes memory in proportion to its size.

`json.loads` makes up to 30 bytes of memory of each byte of `[[],[],…]`, and holds the GIL meanwhile.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Never

from api.http.limits import (
    CONTAINER_BYTES,
    FEW_CONTAINERS,
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_TEXTS,
    MAX_VALUES,
)
from node.core.errors import BadRequest

Json = dict[str, Any]

PIECE = 2**18
"""Bytes that are searched in one call, which holds the GIL."""
LARGEST = sys.float_info.max
HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
LONE = re.compile("[\ud800-\udfff]")


class Counts(NamedTuple):
    """Upper bounds on the parts of a JSON text of `size` bytes, whether it is valid or not."""

    size: int
    values: int
    texts: int
    containers: int

    @classmethod
    def of(cls, data: bytes) -> "Counts":
        """Count by searches in C, which take some milliseconds for megabytes.

        Characters inside of strings are counted as well; if that exceeds a limit, the count is repeated without them.
        """
        containers = data.count(b"[") + data.count(b"{")
        rough = cls(len(data), data.count(b",") + containers + 1, data.count(b'"') // 2, containers)
        return rough if not rough.excess else cls._exact(data)

    @classmethod
    def _exact(cls, data: bytes) -> "Counts":
        """Count outside of strings only, up to where the JSON is no longer valid, or a limit is passed."""
        counts, in_text = cls(len(data), 1, 0, 0), False
        for piece in _pieces(data):
            parts = piece.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
            outside = b"".join(parts[in_text::2])
            containers = outside.count(b"[") + outside.count(b"{")
            begun = (len(parts) - in_text) // 2
            counts = cls._sum([counts, cls(0, outside.count(b",") + containers, begun, containers)])
            if counts.excess:
                break
            in_text ^= len(parts) % 2 == 0
        return counts

    @classmethod
    def of_all(cls, texts: Sequence[bytes]) -> "Counts":
        """Counts of several JSON texts together."""
        total = cls._sum(map(cls.of, texts))
        return cls._sum(map(cls._exact, texts)) if total.excess else total

    @classmethod
    def _sum(cls, counts: Iterable["Counts"]) -> "Counts":
        return cls(*map(sum, zip((0, 0, 0, 0), *counts, strict=True)))

    @property
    def excess(self) -> str:
        """The first limit that is exceeded, in words; empty: none."""
        containers = min(max(FEW_CONTAINERS, self.size // CONTAINER_BYTES), MAX_CONTAINERS)
        for count, most, kind in (
            (self.texts, MAX_TEXTS, "texts"),
            (self.containers, containers, "objects and lists"),
            (self.values, MAX_VALUES, "values"),
        ):
            if count > most:
                return f"more than {most:,} {kind}"
        return ""

    def check(self) -> None:
        """Raises BadRequest."""
        if excess := self.excess:
            raise BadRequest(f"The JSON has {excess} in {self.size:,} bytes.")


def _pieces(data: bytes) -> Iterator[bytes]:
    """Short pieces, as searching one holds the GIL. None ends between a backslash and the character that it escapes."""
    start = 0
    while start < len(data):
        piece = data[start : start + PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = data[start : start + PIECE + 1]
        yield piece
        start += len(piece)


def parse_object(data: bytes) -> Json:
    """Parse a JSON object. Raises BadRequest, which says what is wrong."""
    if not data.strip():
        raise BadRequest("The body is empty.", hint="Send a JSON object.")
    value = parse_json(data)
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object.")
    return value


def parse_json(data: bytes) -> Any:
    """Parse JSON. The value is nested at most MAX_DEPTH levels deep and has no lone surrogates. Raises BadRequest."""
    Counts.of(data).check()
    try:
        # The hooks are Python functions, so other threads may run between two numbers.
        value = json.loads(data.decode(), parse_constant=_refuse_constant, parse_float=_finite, parse_int=_short)
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: {error.reason} at byte {error.start}.") from error
    except RecursionError as error:
        raise BadRequest(f"The JSON is nested deeper than {MAX_DEPTH} levels.") from error
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}") from error
    _check_depth(value)
    if any(HALF_PAIR.search(data, start, start + PIECE + 3) for start in range(0, len(data), PIECE)):
        _check_unicode(value)
    return value


def generated_object(text: str) -> Json | None:
    """Parse an object that a model wrote, such as the arguments of a call; None if it is none or is nested too deeply.

    A number that is too large is the largest, NaN is null as in JavaScript, and half characters become U+FFFD. The answer's
    tokens bound its size.
    """
    try:
        value = json.loads(text, parse_constant=lambda _: None, parse_float=_bounded)
        _check_depth(value)
        if HALF_PAIR.search(text.encode(errors="replace")):
            value = json.loads(without_halves(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError, BadRequest):
        return None
    return value if isinstance(value, dict) else None


def without_halves(text: str) -> str:
    """The text with U+FFFD for lone surrogates (half characters), which many clients' parsers refuse in JSON."""
    return LONE.sub("\ufffd", text)


def _bounded(digits: str) -> float:
    return max(-LARGEST, min(float(digits), LARGEST))


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {digits[:20]} is too large")
    return number


def _short(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits; the maximum is {MAX_DIGITS}")
    return int(digits)


def approximate_bytes(value: Any) -> int:
    """Approximate length of the value's JSON: characters of its strings, plus a constant for each part."""
    total = 8 + (len(value) if isinstance(value, str) else 0)
    for level in _levels(value):
        for container in level:
            total += 8 * len(container) + 8
            total += sum(len(item) for item in _items(container) if isinstance(item, str))
            if isinstance(container, dict):
                total += sum(map(len, container))
    return total


def _check_depth(value: Any) -> None:
    for depth, _ in enumerate(_levels(value)):
        if depth == MAX_DEPTH:
            raise BadRequest(f"The JSON is nested deeper than {MAX_DEPTH} levels.")


def _levels(value: Any) -> Iterator[list[Any]]:
    """Yield the objects and lists of each level of nesting."""
    level = [value] if isinstance(value, dict | list) else []
    while level:
        yield level
        level = [item for container in level for item in _items(container) if isinstance(item, dict | list)]


def _items(container: Json | list[Any]) -> Any:
    return container.values() if isinstance(container, dict) else container


def _check_unicode(value: Any) -> None:
    r"""Refuse lone surrogates ("\ud83d"): they are not characters, and no tokenizer takes them."""
    try:
        for level in _levels([value]):
            for container in level:
                for text in (*_items(container), *(container if isinstance(container, dict) else ())):
                    if isinstance(text, str):
                        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest("The JSON contains a lone surrogate (half a character).") from error
