"""Converts dataclasses of node/core to protobuf messages and back, by equal field names.

A dataclass for which the message has no field is laid out flat: its fields are the message's own. Any other field that
exists on one side only is a programming error, found by tests/rpc/test_mapping.py for every pair. How a field is converted
follows from its type alone and is found out once, as idle nodes do little else than exchange such messages.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeVar

from google.protobuf.message import Message

from node.core.errors import Incompatible

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Write = Callable[[Any, str, Any], object]
"""Sets a message's field of a name to a value."""
Read = Callable[[Any], Any]
"""The value that a message has for a field."""


def to_message(value: Any, kind: type[M], /, **given: Any) -> M:
    """Convert a dataclass instance to a message of type `kind`. `given`: fields of the message that need no conversion."""
    message = kind(**given)
    _fill(message, value, given)
    return message


def _fill(message: Any, value: Any, given: Collection[str] = ()) -> None:
    for name, write, _ in _fields(type(value), type(message)):
        item = getattr(value, name)
        if item is not None and name not in given:
            write(message, name, item)


def from_message(message: Message, kind: type[T], **given: Any) -> T:
    """Convert a message to a dataclass of type `kind`. `given`: fields of the dataclass that need no conversion.

    Raises Incompatible for a text in place of an enum's member that this version does not know.
    """
    fields = _fields(kind, type(message))
    return kind(*[given[name] if name in given else read(message) for name, _, read in fields])


def member(name: str, kind: Callable[[str], T], text: str) -> T:
    """What a peer has sent as text: one of a few values, of an enum as a rule. Raises Incompatible."""
    try:
        return kind(text)
    except ValueError as error:
        raise Incompatible(f"The peer sent the {name} {text!r:.40}, which this version does not know.") from error


def _find_fields(kind: Any, message: Any) -> list[tuple[str, Write, Read]]:
    """Name, and how it is written and read, of each field of a dataclass."""
    hints, own = typing.get_type_hints(kind), message.DESCRIPTOR.fields_by_name
    names = [field.name for field in dataclasses.fields(kind)]
    return [(name, *_ways(name, hints[name], own.get(name))) for name in names]


_fields: Callable[[Any, Any], list[tuple[str, Write, Read]]] = cache(_find_fields)


def _ways(name: str, hint: Any, own: Any) -> tuple[Write, Read]:
    """`own`: the descriptor of the message's field; None if the dataclass is laid out flat."""
    get, origin, arms = attrgetter(name), typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):  # `X | None`
        write, read = _ways(name, arms[0], own)
        return write, lambda message: read(message) if message.HasField(name) else None
    if own is None:
        return lambda message, _, value: _fill(message, value), partial(from_message, kind=hint)
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        return _set_message, lambda message: from_message(get(message), kind)
    if origin is typing.Literal:
        return setattr, lambda message: member(name, lambda text: arms[arms.index(text)], get(message))
    if origin:
        return _ways_of_many(get, origin, arms[0], own.message_type)
    return setattr, (lambda message: member(name, hint, get(message))) if issubclass(hint, StrEnum) else get


def _ways_of_many(get: Read, origin: Any, element: Any, message_type: Any) -> tuple[Write, Read]:
    if origin is Mapping:
        return lambda message, _, values: get(message).update(values), lambda message: dict(get(message))
    origin = list if origin is Sequence else origin
    read_one: Read
    write_one: Callable[[Any, Any], None]
    if dataclasses.is_dataclass(element):
        read_one, write_one = partial(from_message, kind=element), _fill  # type: ignore[arg-type] # mypy takes it for an instance
    elif message_type:  # for a tuple: its values are the fields of the message, in their order
        names = [field.name for field in message_type.fields]
        read_one, write_one = attrgetter(*names), partial(_set_all, names)
    else:
        return lambda message, _, values: get(message).extend(values), lambda message: origin(get(message))

    def write(message: Message, _: str, values: Any) -> None:
        target = get(message)
        for value in values:
            write_one(target.add(), value)

    return write, lambda message: origin([read_one(each) for each in get(message)])


def _set_all(names: Sequence[str], message: Message, values: Sequence[Any]) -> None:
    for name, value in zip(names, values, strict=True):
        setattr(message, name, value)


def _set_message(message: Message, name: str, value: Any) -> None:
    target = getattr(message, name)
    target.SetInParent()
    _fill(target, value)
