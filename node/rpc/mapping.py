"""Converts dataclasses of node/core to protobuf messages and back, by equal field names.

One implementation for all control-plane messages. A field that exists on one side only is a programming error, found by
tests/rpc/test_mapping.py for every pair. How a field is converted follows from its type alone and is found out once, as idle
nodes do little else than exchange such messages.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cache, partial
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from node.core.errors import Incompatible

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Write = Callable[[Message, str, Any], object]
Read = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    write: Write
    """Sets the message's field of a name to a value."""
    read: Read
    """Converts what the message has in the field."""
    optional: bool
    """Whether None stands for a field that the message does not have."""


def to_message(value: Any, kind: type[M], **more: Any) -> M:
    """Convert a dataclass instance to a message of type `kind`. `more`: further fields of the message."""
    message = kind(**more)
    _fill(message, value)
    return message


def _fill(message: Message, value: Any) -> None:
    for field in _fields(cast("Any", type(value))):
        item = getattr(value, field.name)
        if item is not None:
            field.write(message, field.name, item)


def from_message(message: Message, kind: type[T]) -> T:
    """Convert a message to a dataclass of type `kind`.

    Raises Incompatible for an enum's text that this version does not know.
    """
    found: dict[str, Any] = {}
    for field in _fields(cast("Any", kind)):
        lacks = field.optional and not message.HasField(field.name)
        found[field.name] = None if lacks else field.read(getattr(message, field.name))
    return kind(**found)


@cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(kind)
    return tuple(_field(field.name, hints[field.name]) for field in dataclasses.fields(kind))


def _field(name: str, hint: Any) -> _Field:
    optional = isinstance(hint, types.UnionType)  # `X | None`
    if optional:
        hint = next(arm for arm in typing.get_args(hint) if arm is not types.NoneType)
    origin = typing.get_origin(hint)
    if origin is None:
        return _Field(name, *_converters(name, hint), optional)
    if origin is Mapping:
        return _Field(name, _update, dict, optional)
    element: Any = typing.get_args(hint)[0]
    if dataclasses.is_dataclass(element):
        return _Field(name, _add_messages, partial(_read_messages, element), optional)
    return _Field(name, _extend, origin, optional)


def _converters(name: str, kind: Any) -> tuple[Write, Read]:
    """The converters of a field that is no collection."""
    if dataclasses.is_dataclass(kind):
        return _set_message, partial(from_message, kind=cast("Any", kind))
    if issubclass(kind, StrEnum):
        return setattr, partial(_member, name, kind)
    return setattr, lambda value: value


def _set_message(message: Message, name: str, value: Any) -> None:
    target = getattr(message, name)
    target.SetInParent()
    _fill(target, value)


def _add_messages(message: Message, name: str, values: Any) -> None:
    target = getattr(message, name)
    for value in values:
        _fill(target.add(), value)


def _read_messages(kind: Any, messages: Iterable[Message]) -> tuple[Any, ...]:
    return tuple(from_message(each, kind) for each in messages)


def _extend(message: Message, name: str, values: Any) -> None:
    getattr(message, name).extend(sorted(values) if isinstance(values, frozenset) else values)


def _update(message: Message, name: str, values: Any) -> None:
    getattr(message, name).update(values)


def _member(name: str, kind: type[StrEnum], text: str) -> StrEnum:
    try:
        return kind(text)
    except ValueError as error:
        raise Incompatible(f"The peer sent the {name} {text!r:.40}, which this version does not know.") from error
