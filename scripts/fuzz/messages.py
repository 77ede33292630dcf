"""Random messages of the wire format: a field has any value of its type, or one that the nodes know."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

Known = Mapping[str, Sequence[Any]]
"""Values that the nodes know, by field name; with them a message gets past the first checks."""
TEXTS = ("", "a", "../../etc/passwd", "config.json", "\x1b[2J", "é😀\u2028", "x" * 600, "127.0.0.1", "a\nb", "8.8.8.8")
NUMBERS = (0.0, 1.0, -1.0, 3e38, math.nan, math.inf, -math.inf)
EDGES = (0, 1, 2, 4, 8, 2**16, 2**31, 2**32 - 1, 2**53 - 1, 2**53, 2**63, 2**64 - 1)
MOST_ITEMS = 3
LONG, SHARE_OF_LONG = (300, 20_000), 0.03
"""Lengths of some lists that are far too long, and their share. Lists of messages repeat one item."""
LARGEST = 1 << 26
"""Maximum bytes of such a list of messages. Lists in lists would get beyond the 2 GiB that a message may have."""
DEEPEST = 5


def fill(message: Any, known: Known, rng: random.Random, depth: int = 0) -> Any:
    """Set random fields of a new message; return it."""
    fields: Sequence[FieldDescriptor] = message.DESCRIPTOR.fields
    for field in fields:
        if rng.random() > (0.9 if depth < 2 or field.name in known else 0.4):
            continue
        if field.message_type is None:
            _set(message, field, known, rng)
        elif not field.message_type.GetOptions().map_entry and depth < DEEPEST:
            inner = getattr(message, field.name)
            for each in [inner.add() for _ in range(rng.randint(0, MOST_ITEMS))] if field.is_repeated else [inner]:
                fill(each, known, rng, depth + 1)
            if field.is_repeated and inner and rng.random() < SHARE_OF_LONG:
                inner.extend([inner[0]] * min(rng.choice(LONG), LARGEST // max(1, inner[0].ByteSize())))
    return message


def change(message: Any, known: Known, rng: random.Random) -> Any:
    """Set one random field somewhere in a valid message; return it."""
    field = rng.choice(message.DESCRIPTOR.fields)
    if field.message_type is None:
        if field.is_repeated:
            message.ClearField(field.name)
        _set(message, field, known, rng)
    elif not field.message_type.GetOptions().map_entry:
        inner = getattr(message, field.name)
        change(
            (rng.choice(inner) if inner and rng.random() < 0.5 else inner.add()) if field.is_repeated else inner,
            known,
            rng,
        )
    return message


def _set(message: Message, field: FieldDescriptor, known: Known, rng: random.Random) -> None:
    values = [_value(field, known, rng) for _ in range(rng.randint(0, MOST_ITEMS) if field.is_repeated else 1)]
    if field.is_repeated and rng.random() < SHARE_OF_LONG:
        values *= rng.choice(LONG)
    if field.is_repeated:
        getattr(message, field.name).extend(values)
    else:
        setattr(message, field.name, values[0])


def _value(field: FieldDescriptor, known: Known, rng: random.Random) -> Any:
    if field.name in known and rng.random() < 0.85:
        return rng.choice(known[field.name])
    if field.enum_type is not None:
        return rng.choice(field.enum_type.values).number
    values: dict[int, Sequence[Any]] = {
        FieldDescriptor.CPPTYPE_UINT32: [edge & 0xFFFFFFFF for edge in EDGES],
        FieldDescriptor.CPPTYPE_UINT64: (*EDGES, rng.getrandbits(64)),
        FieldDescriptor.CPPTYPE_INT32: (0, 1, -1, 2**31 - 1, -(2**31), rng.getrandbits(31)),
        FieldDescriptor.CPPTYPE_INT64: (*(edge >> 1 for edge in EDGES), -1, -(2**63), rng.getrandbits(63)),
        FieldDescriptor.CPPTYPE_DOUBLE: NUMBERS,
        FieldDescriptor.CPPTYPE_FLOAT: NUMBERS,
        FieldDescriptor.CPPTYPE_BOOL: (True, False),
        FieldDescriptor.CPPTYPE_STRING: [rng.randbytes(20)] if field.type == FieldDescriptor.TYPE_BYTES else TEXTS,
    }
    return rng.choice(values[field.cpp_type])
