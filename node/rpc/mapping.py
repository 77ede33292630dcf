"""Converts dataclasses of node/core to protobuf messages and back, by equal field names.

One implementation for all control-plane messages. A dataclass for which the message has no field is laid out flat: its
fields are the message's own. Any other field that exists on one side only is a programming error, found by
tests/rpc/test_mapping.py for every pair. How a field is converted follows from its type alone and is found out once, as idle
nodes do little else than exchange such messages.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from node.core.errors import Incompatible

T = TypeVar("T")
M = TypeVar("M", bound=Message)
E = TypeVar("E", bound=StrEnum)
Write = Callable[[Message, str, Any], object]
Read = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    write: Write
    """Sets the message's field of a name to a value."""
    read: Read
    """The value that a message has for the field."""


def to_message(value: Any, kind: type[M], **more: Any) -> M:
    """Convert a dataclass instance to a message of type `kind`. `more`: further fields of the message."""
    message = kind(**more)
    _fill(message, value)
    return message


def _fill(message: Message, value: Any) -> None:
    for field in _fields(cast("Any", type(value)), cast("Any", type(message))):
        item = getattr(value, field.name)
        if item is not None:
            field.write(message, field.name, item)


def from_message(message: Message, kind: type[T]) -> T:
    """Convert a message to a dataclass of type `kind`.

    Raises Incompatible for an enum's text that this version does not know.
    """
    return kind(*[field.read(message) for field in _fields(cast("Any", kind), cast("Any", type(message)))])


@cache
def _fields(kind: Any, message: type[Message]) -> tuple[_Field, ...]:
    hints, names = typing.get_type_hints(kind), message.DESCRIPTOR.fields_by_name
    return tuple(_field(field.name, hints[field.name], field.name in names) for field in dataclasses.fields(kind))


def _field(name: str, hint: Any, is_own: bool) -> _Field:
    get = attrgetter(name)
    if isinstance(hint, types.UnionType):  # `X | None`
        (hint,) = (arm for arm in typing.get_args(hint) if arm is not types.NoneType)
        present = _field(name, hint, is_own)
        return _Field(name, present.write, lambda message: present.read(message) if message.HasField(name) else None)
    if origin := typing.get_origin(hint):
        return _collection(name, origin, typing.get_args(hint)[0])
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        if is_own:
            return _Field(name, _set_message, lambda message: from_message(get(message), kind))
        return _Field(name, lambda message, _, value: _fill(message, value), partial(from_message, kind=kind))
    if issubclass(hint, StrEnum):
        return _Field(name, setattr, lambda message: member(name, hint, get(message)))
    return _Field(name, setattr, get)


def _collection(name: str, origin: Any, element: Any) -> _Field:
    get = attrgetter(name)
    if origin is Mapping:
        return _Field(name, _update, lambda message: dict(get(message)))
    if dataclasses.is_dataclass(element):
        kind: Any = element
        return _Field(name, _add_messages, lambda message: tuple([from_message(each, kind) for each in get(message)]))
    return _Field(name, _extend, lambda message: origin(get(message)))


def _set_message(message: Message, name: str, value: Any) -> None:
    target = getattr(message, name)
    target.SetInParent()
    _fill(target, value)


def _add_messages(message: Message, name: str, values: Any) -> None:
    target = getattr(message, name)
    for value in values:
        _fill(target.add(), value)


def _extend(message: Message, name: str, values: Any) -> None:
    getattr(message, name).extend(sorted(values) if isinstance(values, frozenset) else values)


def _update(message: Message, name: str, values: Any) -> None:
    getattr(message, name).update(values)


def member(name: str, kind: type[E], text: str) -> E:
    """The member of an enum that a peer has sent as text. Raises Incompatible."""
    try:
        return kind(text)
    except ValueError as error:
        raise Incompatible(f"The peer sent the {name} {text!r:.40}, which this version does not know.") from error
