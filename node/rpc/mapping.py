"""Converts dataclasses of core/types.py and core/models.py to protobuf messages and back, by equal field names.

One implementation for all control-plane messages. A field that exists on one side only is a programming error, found by
tests/rpc/test_mapping.py for every pair.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from google.protobuf.message import Message

from node.core.errors import Incompatible

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def to_message(value: Any, kind: type[M], **more: Any) -> M:
    """Convert a dataclass instance to a message of type `kind`. `more`: further fields of the message."""
    message = kind(**more)
    _fill(message, value)
    return message


def _fill(message: Message, value: Any) -> None:
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if item is None:
            continue
        if dataclasses.is_dataclass(item):
            target = getattr(message, field.name)
            target.SetInParent()
            _fill(target, item)
        elif isinstance(item, Mapping):
            getattr(message, field.name).update(item)
        elif isinstance(item, AbstractSet):
            getattr(message, field.name).extend(sorted(item))
        elif isinstance(item, str) or not isinstance(item, Sequence):
            setattr(message, field.name, item)
        elif item and dataclasses.is_dataclass(item[0]):
            for element in item:
                _fill(getattr(message, field.name).add(), element)
        else:
            getattr(message, field.name).extend(item)


def from_message(message: Message, kind: type[T]) -> T:
    """Convert a message to a dataclass of type `kind`.

    Raises Incompatible for an enum's text that this version does not know.
    """
    return kind(**{name: _read(message, name, hint) for name, hint in _hints(typing.cast("Any", kind)).items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _read(message: Message, name: str, hint: Any) -> Any:
    if isinstance(hint, types.UnionType):  # `X | None`
        if not message.HasField(name):
            return None
        hint = next(arm for arm in typing.get_args(hint) if arm is not types.NoneType)
    value = getattr(message, name)
    origin = typing.get_origin(hint)
    if origin is tuple:
        element = typing.get_args(hint)[0]
        return tuple(from_message(item, element) for item in value) if _is_message(element) else tuple(value)
    if origin in (Mapping, frozenset):
        return dict(value) if origin is Mapping else frozenset(value)
    if _is_message(hint):
        return from_message(value, hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        try:
            return hint(value)
        except ValueError as error:
            raise Incompatible(f"The peer sent the {name} {value!r:.40}, which this version does not know.") from error
    return value


def _is_message(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)
