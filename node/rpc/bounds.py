"""Validates messages from peers before any other part of a node uses them.

What a field may have, its options in proto/node/wire say (see bounds.proto); how fields relate is said here. The protobuf
messages themselves are checked, so that no objects are made of a refused one. Whether a valid message is true is another
matter: see docs/threat-model.md.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from node.core.errors import Incompatible
from node.wire import bounds_pb2 as option
from node.wire import control_pb2, frame_pb2

MAX_STAGES = 4096
"""Maximum stages of all rings of a placement."""
MAX_LAYERS = 65_536
"""Maximum layers of all models of a placement."""

M = TypeVar("M", bound=Message)
Check = Callable[[Any], None]
"""Raises Incompatible for a message."""


class _Checks(dict[type[Message], list[Check]]):
    """The checks of each type of messages, found once, as idle nodes do little else than exchange them."""

    def __missing__(self, kind: type[Message]) -> list[Check]:
        fields: Any = kind.DESCRIPTOR.fields
        self[kind] = [check for field in fields for check in _checks_of(field)]
        if relation := _RELATIONS.get(kind):
            self[kind].append(relation)
        return self[kind]


_CHECKS = _Checks()


def checked(message: M) -> M:
    """The message, in which what is only informative may have been cut. Raises Incompatible."""
    for check in _CHECKS[type(message)]:
        check(message)
    return message


def _checks_of(field: FieldDescriptor) -> Iterator[Check]:
    options: Any = field.GetOptions().Extensions
    is_text = field.type in (field.TYPE_STRING, field.TYPE_BYTES)
    if options[option.filled] and (is_text or field.is_repeated):
        yield _fitting(field, bool, "it must not be empty")
    if most := options[option.items]:
        yield _fitting(field, lambda items: len(items) <= most, f"the maximum is {most:,}")
    if options[option.kept]:
        yield _cut(field, options[option.kept])
    if (message := field.message_type) and not message.GetOptions().map_entry:
        must_be = options[option.filled]
        yield _valid_each(field, GetMessageClass(message)) if field.is_repeated else _valid(field, must_be=must_be)
    if length := options[option.printable]:
        rule = f"the maximum is {length:,}, all of them printable"
        yield _each_fitting(field, lambda text: len(text) <= length and text.isprintable(), rule)
    if bound := options[option.most]:
        fits = (lambda text: len(text) <= bound) if is_text else bound.__ge__
        yield _each_fitting(field, fits, f"the maximum is {bound:,}")
    if among := options[option.among]:
        yield _each_fitting(field, tuple(among).__contains__, f"it may be {', '.join(map(str, among))}")
    if options[option.finite]:
        yield _each_fitting(field, math.isfinite, "it must be finite")
    if options[option.amount]:
        yield _each_fitting(field, lambda number: 0 <= number < math.inf, "it must be finite and at least 0")


def _each_fitting(field: FieldDescriptor, fits: Callable[[Any], bool], rule: str) -> Check:
    """A check of each value of a field; of a map, of its keys if they are texts, else of its values."""
    if not field.is_repeated:
        return _fitting(field, fits, rule)
    name = field.name
    is_of_numbers = field.message_type and field.message_type.fields_by_name["key"].type != field.TYPE_STRING

    def check(message: Any) -> None:
        values = getattr(message, name)
        for value in values.values() if is_of_numbers else values:
            if not fits(value):
                raise _refused(field, value, rule)

    return check


def _fitting(field: FieldDescriptor, fits: Callable[[Any], bool], rule: str) -> Check:
    name = field.name

    def check(message: Any) -> None:
        if not fits(value := getattr(message, name)):
            raise _refused(field, value, rule)

    return check


def _cut(field: FieldDescriptor, most: int) -> Check:
    name, is_list = field.name, field.is_repeated

    def check(message: Any) -> None:
        value = getattr(message, name)
        if is_list:
            del value[most:]
        elif len(value) > most:
            setattr(message, name, value[:most])

    return check


def _valid(field: FieldDescriptor, *, must_be: bool) -> Check:
    name = field.name

    def check(message: Any) -> None:
        if message.HasField(name):
            checked(getattr(message, name))
        elif must_be:
            raise Incompatible(f"{_peers(field)} is missing.")

    return check


def _valid_each(field: FieldDescriptor, kind: type[Message]) -> Check:
    name = field.name

    def check(message: Any) -> None:
        if _CHECKS[kind]:
            for each in getattr(message, name):
                checked(each)

    return check


def _peers(field: FieldDescriptor) -> str:
    return f"A peer's {'.'.join(field.full_name.split('.')[-2:])}"


def _refused(field: FieldDescriptor, value: Any, rule: str) -> Incompatible:
    if isinstance(value, (str, bytes)):
        said = f"is {value[:40]!r}, of {len(value):,} characters"
    else:
        said = f"is {value:,}" if isinstance(value, (int, float)) else f"has {len(value):,} items"
    return Incompatible(f"{_peers(field)} {said}; {rule}.")


def _check_heartbeat(message: control_pb2.Heartbeat) -> None:
    if not message.node and not message.HasField("report"):
        raise Incompatible("A peer's Heartbeat has neither a node nor a report.")


def _check_layers(message: control_pb2.Shard | control_pb2.StageSpec) -> None:
    if message.start >= message.end:
        raise Incompatible(f"A peer's message has the invalid layers {message.start} to {message.end}.")


def _check_spec(spec: control_pb2.ModelSpec) -> None:
    """Check a model's description, which the head uses to compute placements."""
    if any(each.HasField(field) for each in (spec.draft, spec.mtp) for field in ("draft", "mtp")):
        raise Incompatible(f"A peer's description of the model {spec.model!r:.60} has a draft with a draft.")
    layers, cuts = len(spec.layer_bytes), list(spec.cuts)
    ascending = cuts == sorted(set(cuts)) and all(0 < cut < layers for cut in cuts)
    sized = layers and len(spec.kv) == layers and spec.head_bytes <= spec.ends_bytes
    if not (sized and spec.max_context and ascending):
        raise Incompatible(f"A peer's description of the model {spec.model!r:.60} is inconsistent.")


def _check_ring(ring: control_pb2.Ring) -> None:
    """Check that the stages hold each layer once, in order, each stage on a different node."""
    starts, ends = [stage.start for stage in ring.stages], [stage.end for stage in ring.stages]
    nodes = {stage.node for stage in ring.stages}
    if not starts or starts != [0, *ends[:-1]] or len(nodes) < len(starts):
        raise Incompatible(f"The stages of ring {ring.id} do not hold each layer once, each stage on a different node.")


def _check_placement(placement: control_pb2.Placement) -> None:
    stages = sum(len(ring.stages) for ring in placement.rings)
    layers = sum(
        len(spec.layer_bytes) + len(spec.draft.layer_bytes) + len(spec.mtp.layer_bytes) for spec in placement.specs
    )
    if stages > MAX_STAGES or layers > MAX_LAYERS:
        raise Incompatible(
            f"A peer's Placement has {stages:,} stages and {layers:,} layers; the maxima are {MAX_STAGES:,} and {MAX_LAYERS:,}."
        )


def _check_op(op: frame_pb2.Op) -> None:
    """A row that occurs twice in a filter would be copied: caches never grow that way."""
    if len(set(op.rows)) < len(op.rows):
        raise Incompatible("A frame filters a lane with the same row twice.")


def _check_header(header: frame_pb2.Header) -> None:
    """A sequence that is held twice would be counted twice, and released once."""
    if len({each.number for each in header.held}) < len(header.held):
        raise Incompatible("A frame lists a held sequence twice.")


_RELATIONS: dict[type[Message], Check] = {
    control_pb2.Heartbeat: _check_heartbeat,
    control_pb2.Shard: _check_layers,
    control_pb2.StageSpec: _check_layers,
    control_pb2.ModelSpec: _check_spec,
    control_pb2.Ring: _check_ring,
    control_pb2.Placement: _check_placement,
    frame_pb2.Op: _check_op,
    frame_pb2.Header: _check_header,
}
"""How the fields of a message relate, checked after each of them."""
