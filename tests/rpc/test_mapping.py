"""Every dataclass of the control plane has the same fields as its message, and survives the
conversion there and back.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import given
from hypothesis import strategies as st

from node.core import models, nodes, reports, rings
from node.core.errors import Incompatible
from node.core.evaluation import EvaluateRequest
from node.core.generation import GenerateRequest, TokenEvent
from node.core.models import ModelSpec
from node.core.reports import Heartbeat
from node.rpc.mapping import from_message, to_message
from node.wire import control_pb2, serving_pb2

CLASSES = vars(models) | vars(nodes) | vars(reports) | vars(rings)
SCALARS: dict[Any, st.SearchStrategy] = {
    int: st.integers(0, 2**31),
    float: st.floats(0, 1e6),
    str: st.text(max_size=8),
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
}


def values(hint: Any) -> st.SearchStrategy:
    """Values of a type, all fields of a dataclass included."""
    if hint in SCALARS:
        return SCALARS[hint]
    arms = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return st.none() | st.deferred(lambda: values(arms[0]))
    origin = typing.get_origin(hint)
    if origin is Mapping:
        return st.dictionaries(values(arms[0]), values(arms[1]), max_size=3)
    if origin:
        is_fixed = origin is tuple and arms[-1] is not Ellipsis
        return st.tuples(*map(values, arms)) if is_fixed else st.lists(values(arms[0]), max_size=3).map(origin)
    if issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    hints = typing.get_type_hints(hint)
    return st.builds(hint, **{field.name: values(hints[field.name]) for field in dataclasses.fields(hint)})


def flat(kind: Any, message: Descriptor) -> set[str]:
    """Fields of a dataclass as the message has them."""
    hints, found = typing.get_type_hints(kind), set()
    for field in dataclasses.fields(kind):
        is_flat = field.name not in message.fields_by_name and dataclasses.is_dataclass(hints[field.name])
        found |= flat(hints[field.name], message) if is_flat else {field.name}
    return found


@pytest.mark.parametrize("name", [m for m in control_pb2.DESCRIPTOR.message_types_by_name if m in CLASSES])
def test_same_fields(name: str) -> None:
    message = control_pb2.DESCRIPTOR.message_types_by_name[name]
    assert flat(CLASSES[name], message) == set(message.fields_by_name)


@given(values(Heartbeat))
def test_heartbeat(heartbeat: Heartbeat) -> None:
    data = to_message(heartbeat, control_pb2.Heartbeat).SerializeToString()
    assert from_message(control_pb2.Heartbeat.FromString(data), Heartbeat) == heartbeat


@given(values(ModelSpec))
def test_spec(spec: ModelSpec) -> None:
    data = to_message(spec, control_pb2.ModelSpec).SerializeToString()
    assert from_message(control_pb2.ModelSpec.FromString(data), ModelSpec) == spec


@given(values(GenerateRequest))
def test_request(request: GenerateRequest) -> None:
    data = to_message(request, serving_pb2.GenerateRequest, ring="ring").SerializeToString()
    message = serving_pb2.GenerateRequest.FromString(data)
    assert message.ring == "ring"
    assert from_message(message, GenerateRequest) == request


@given(values(EvaluateRequest))
def test_evaluate_request(request: EvaluateRequest) -> None:
    data = to_message(request, serving_pb2.EvaluateRequest, ring="ring").SerializeToString()
    message = serving_pb2.EvaluateRequest.FromString(data)
    assert message.ring == "ring"
    assert from_message(message, EvaluateRequest) == request


@given(st.floats(-100, 0, width=32) | st.none(), st.none() | st.sampled_from(["stop", "length"]))
def test_event(logprob: float | None, finish: str | None) -> None:
    event = TokenEvent(3, 17, logprob, [(1, -0.5), (2, -1.5)], finish, 4, 5)
    data = to_message(event, serving_pb2.TokenEvent).SerializeToString()
    assert from_message(serving_pb2.TokenEvent.FromString(data), TokenEvent) == event


def test_an_end_that_there_is_not() -> None:
    with pytest.raises(Incompatible, match="sent the finish 'tired'"):
        from_message(serving_pb2.TokenEvent(finish="tired"), TokenEvent)


def test_a_node_of_the_protocol_before_tells_no_families() -> None:
    told = control_pb2.StageReport(ring="r", state="ready", shard=control_pb2.Shard(start=0, end=2))
    assert from_message(told, reports.StageReport).families == ()
