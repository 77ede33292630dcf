"""Arguments that are written one by one, as Qwen3-Coder, GLM and Gemma do in calls: a text as it is, all else in JSON."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.core.errors import BadRequest

_NOTES = frozenset({"title", "description", "default", "examples", "deprecated"})
"""Keywords that do not say what a schema accepts."""
_OF_ALL = _NOTES | {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "$schema",
    "strict",
}
NAME = r'[^<>"=:,(){}\s]+'
"""An expression for the names of arguments."""
_WORD = re.compile(r"[^<>\n]+")
"""A text that can be told from the tags around it."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a function, and how its value is written."""

    name: str
    schema: Mapping[str, Any]
    required: bool
    words: Sequence[str] | None
    """The texts that it may be; without any, it may be each text. None: it is written in JSON."""
    nullable: bool = False
    """Whether the text `null` is null."""


def arguments_of(parameters: Mapping[str, Any]) -> Sequence[Argument]:
    """The arguments that a schema describes, in its order. Raises BadRequest if it does not describe them one by one."""
    properties, names = parameters.get("properties", {}), parameters.get("required", [])
    if (
        not isinstance(properties, Mapping)
        or not isinstance(names, list | tuple)
        or not all(isinstance(each, str) for each in names)
    ):
        raise BadRequest("The parameters of a function have 'properties', an object, and 'required', a list of names.")
    required = set(names)
    if unknown := sorted(required - properties.keys()):
        raise BadRequest(f"The required {unknown[0]!r} is not described in 'properties'.")
    more = sorted(parameters.keys() - _OF_ALL) or ["additionalProperties"] * bool(
        parameters.get("additionalProperties")
    )
    if more:
        raise BadRequest(f"This model writes each argument by itself, so '{more[0]}' of all can't be followed.")
    shared = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    return [_argument(name, schema, shared, required=name in required) for name, schema in properties.items()]


def described(parameters: Mapping[str, Any]) -> Sequence[Argument]:
    """The arguments of which a schema says anything, one that can't be followed included."""
    properties = parameters.get("properties")
    named = properties.items() if isinstance(properties, Mapping) else ()
    return [_argument(name, schema, {}, required=False) for name, schema in named if re.fullmatch(NAME, name)]


def _argument(name: str, schema: Any, shared: Mapping[str, Any], *, required: bool) -> Argument:
    if not re.fullmatch(NAME, name):
        raise BadRequest(f"This model can't write an argument with the name {name!r}.")
    said = {key: value for key, value in schema.items() if key not in _NOTES} if isinstance(schema, Mapping) else {}
    match said:
        case {"type": "string", **more} if not more:
            return Argument(name, schema, required, ())
        case {"type": ["string", "null"] | ["null", "string"], **more} if not more:
            return Argument(name, schema, required, (), nullable=True)
        case {"anyOf": [{"type": "string", **text}, {"type": "null"}], **more} if not more and text.keys() <= _NOTES:
            return Argument(name, schema, required, (), nullable=True)
        case {"enum": [*words], **more} if (
            words
            and more in ({}, {"type": "string"})
            and all(isinstance(word, str) and _WORD.fullmatch(word) for word in words)
        ):
            return Argument(name, schema, required, words)
    if not isinstance(schema, Mapping):
        return Argument(name, {} if schema is True else {"not": {}}, required, None)
    return Argument(name, {**schema, **shared}, required, None)


@dataclass(frozen=True, slots=True)
class Tags:
    """The texts around arguments, see `CallForm`; `begin` is an expression up to a value, of which NAME is a group."""

    begin: re.Pattern[str]
    stop: str = ""
    quote: str = ""
    unquote: str = ""

    @property
    def quoted(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """What begins a quoted text before a stop, and what ends it; without a quote, they match nothing."""
        quote, unquote, stop = map(re.escape, (self.quote, self.unquote, self.stop))
        return re.compile(rf"\s*{quote}" if quote else r"(?!)"), re.compile(rf"{unquote}\s*{stop}")


def read_arguments(
    text: str, at: int, tags: Tags, known: Iterable[Argument] | None, *, loose: bool = False
) -> tuple[dict[str, Any], int]:
    """The arguments from a place in a text on, and where they end; without any `known`, all may come. Raises ValueError if one of
    them is unknown, or is neither a text nor JSON, unless `loose`: then it comes as it is.
    """
    arguments, found = {each.name: each for each in known or ()}, dict[str, Any]()
    (quote, unquote), may_be_quoted = tags.quoted, True
    while match := tags.begin.match(text, at):
        name, at = match[1], match.end()
        if loose:
            arguments.setdefault(name, Argument(name, {}, required=False, words=None))
        if known is not None and name not in arguments:
            raise ValueError(f"there is no argument {name}")
        if tags.stop:
            begun = quote.match(text, at) if may_be_quoted else None
            ended = unquote.search(text, begun.end()) if begun else None
            may_be_quoted &= not begun or ended is not None  # else each search would go to the end of the text
            # The stop may be in a text of JSON, too.
            end = text.index(tags.stop, _end_of_json(text, at, tags.stop) if arguments[name].words is None else at)
            written, at = (
                (text[begun.end() : ended.start()], ended.end())
                if begun and ended
                else (text[at:end], end + len(tags.stop))
            )
            found[name] = _value(arguments[name], written, loose=loose)
        elif tags.quote and text.startswith(tags.quote, at):
            at += len(tags.quote)
            end = text.index(tags.unquote, at)
            found[name], at = text[at:end], end + len(tags.unquote)
        else:
            found[name], at = DECODER.raw_decode(text, at)
    return found, at


def _end_of_json(text: str, at: int, stop: str) -> int:
    """Where a JSON value ends, if one is here before a stop; else this place."""
    try:
        _, end = DECODER.raw_decode(text, len(text) - len(text[at:].lstrip()))
    except (ValueError, RecursionError):
        return at
    return end if text[end:].lstrip().startswith(stop.lstrip()) else at


def _value(argument: Argument, written: str, *, loose: bool) -> Any:
    if argument.words is not None:
        return None if argument.nullable and written == "null" else written
    # A text with a pattern, say, is bound to be JSON; one that is not bound comes as it is.
    is_text = argument.schema.get("type") == "string"
    try:
        value = json.loads(written, parse_constant=_no_json if loose else None, parse_int=_integer)
    except ValueError:
        if not is_text and not loose:
            raise
        return written
    return written if is_text and not isinstance(value, str) else value


def _integer(digits: str) -> int | float:
    """An integer; infinity for one of more digits than Python reads (4,300), which no double has."""
    return int(digits) if len(digits) < 4000 else float(digits)


DECODER = json.JSONDecoder(parse_int=_integer)
"""Reads a value at the beginning of a text."""


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")
