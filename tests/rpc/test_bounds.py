"""What a .proto says that a field may have is all that a peer may send in it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from node.core import limits, logs
from node.core.errors import Incompatible
from node.core.models import KV_BITS
from node.rpc.bounds import MAX_LAYERS, checked
from node.rpc.server import SCORES_AT_ONCE
from node.wire import bounds_pb2, control_pb2, frame_pb2, serving_pb2

FIELDS = {
    field.full_name: field
    for file in (control_pb2, frame_pb2, serving_pb2)
    for message in file.DESCRIPTOR.message_types_by_name.values()
    for field in message.fields
}
SCRATCH = """
syntax = "proto3";
package scratch;
import "node/wire/bounds.proto";

message Part {
  string name = 1 [(pippin.printable) = 3];
}

message Scratch {
  string name = 1 [(pippin.printable) = 5];
  string text = 2 [(pippin.most) = 5];
  bytes data = 3 [(pippin.most) = 5];
  uint64 number = 4 [(pippin.most) = 5];
  repeated uint32 numbers = 5 [(pippin.items) = 2, (pippin.most) = 5];
  string filled = 6 [(pippin.filled) = true];
  string cut = 7 [(pippin.kept) = 3];
  repeated string cut_list = 8 [(pippin.items) = 4, (pippin.kept) = 2, (pippin.printable) = 1];
  double finite = 9 [(pippin.finite) = true];
  double amount = 10 [(pippin.amount) = true];
  uint32 bits = 11 [(pippin.among) = 0, (pippin.among) = 7];
  Part part = 12;
  repeated Part parts = 13 [(pippin.items) = 2];
  map<string, double> named = 14 [(pippin.items) = 1, (pippin.printable) = 5];
  map<uint32, double> numbered = 15 [(pippin.items) = 1, (pippin.finite) = true];
  Part must = 16 [(pippin.filled) = true];
}
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The class of a message that no node knows."""
    folder = tmp_path_factory.mktemp("scratch")
    (folder / "scratch.proto").write_text(SCRATCH)
    include = Path(protoc.__file__).parent / "_proto"
    out = folder / "scratch.bin"
    args = ["protoc", "-Iproto", f"-I{include}", f"-I{folder}", "--include_imports", f"--descriptor_set_out={out}"]
    assert protoc.main([*args, "scratch.proto"]) == 0
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(out.read_bytes()).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("scratch.Scratch"))


def valid(scratch: Any) -> Any:
    return scratch(filled="x", must={"name": "x"})


REFUSED: dict[str, Callable[[Any], object]] = {
    r"A peer's Scratch.name is 'xxxxxx', of 6 characters; the maximum is 5": lambda m: setattr(m, "name", "x" * 6),
    r"name is '\\x1b', of 1 characters; .* printable": lambda m: setattr(m, "name", "\x1b"),
    r"text is .*, of 6 characters": lambda m: setattr(m, "text", "\n" * 6),
    r"data is .*, of 6 characters": lambda m: setattr(m, "data", b"\n" * 6),
    r"number is 6,000; the maximum is 5": lambda m: setattr(m, "number", 6000),
    r"numbers has 3 items; the maximum is 2": lambda m: m.numbers.extend([1, 1, 1]),
    r"numbers is 6; the maximum is 5": lambda m: m.numbers.extend([1, 6]),
    r"filled is '', of 0 characters; it must not be empty": lambda m: m.ClearField("filled"),
    r"cut_list has 5 items; the maximum is 4": lambda m: m.cut_list.extend("abcde"),
    r"cut_list is 'ab'": lambda m: m.cut_list.extend(["ab"]),
    r"finite is -inf; it must be finite": lambda m: setattr(m, "finite", -math.inf),
    r"amount is -1.0; it must be finite and at least 0": lambda m: setattr(m, "amount", -1.0),
    r"amount is nan": lambda m: setattr(m, "amount", math.nan),
    r"bits is 5; it may be 0, 7": lambda m: setattr(m, "bits", 5),
    r"A peer's Part.name is 'abcd'": lambda m: setattr(m.part, "name", "abcd"),
    r"Part.name is 'abcde'": lambda m: m.parts.add(name="abcde"),
    r"parts has 3 items": lambda m: [m.parts.add() for _ in range(3)],
    r"named has 2 items": lambda m: m.named.update({"a": 1, "b": 2}),
    r"named is 'abcdef'": lambda m: m.named.update({"abcdef": 1}),
    r"numbered is inf": lambda m: m.numbered.update({1: math.inf}),
    r"A peer's Scratch.must is missing": lambda m: m.ClearField("must"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_bound_in_a_proto_is_enforced(scratch: Any, why: str) -> None:
    message = checked(valid(scratch))
    REFUSED[why](message)
    with pytest.raises(Incompatible, match=why):
        checked(message)


def test_what_is_within_its_bounds(scratch: Any) -> None:
    message = valid(scratch)
    message.name, message.text, message.data, message.number, message.bits = "é" * 5, "\n" * 5, b"\n" * 5, 5, 7
    message.numbers.extend([5, 5])
    message.finite = -1.0
    message.named["abcde"] = math.inf
    same = type(message).FromString(message.SerializeToString())
    assert checked(message) == same


def test_what_only_helps_is_cut(scratch: Any) -> None:
    message = valid(scratch)
    message.cut = "abcd"
    message.cut_list.extend("abcd")
    assert (checked(message).cut, message.cut_list) == ("abc", ["a", "b"])


def bound(field: FieldDescriptor, name: str) -> Any:
    return field.GetOptions().Extensions[getattr(bounds_pb2, name)]


@pytest.mark.parametrize("name", FIELDS)
def test_what_can_be_long_has_a_bound(name: str) -> None:
    field = FIELDS[name]
    if field.is_repeated:
        assert bound(field, "items") or bound(field, "kept")
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        assert bound(field, "printable") or bound(field, "most") or bound(field, "kept")


@pytest.mark.parametrize(
    ("field", "option", "limit"),
    [
        ("control.NodeInfo.name", "printable", limits.MAX_NAME_CHARS),
        ("control.NodeInfo.incarnation", "most", limits.COUNTER_LIMIT - 1),
        ("control.NodeInfo.addresses", "kept", limits.MAX_ADDRESSES),
        ("control.StageReport.error", "kept", limits.MAX_TEXT_CHARS),
        ("control.NodeReport.models", "kept", limits.MAX_MODELS),
        ("control.NodeReport.peers", "kept", limits.MAX_NODES),
        ("control.Shard.end", "most", MAX_LAYERS),
        ("control.Shard.kv_bits", "among", [0, *KV_BITS]),
        ("control.LogRequest.lines", "most", logs.RECENT),
        ("control.LogPart.lines", "items", logs.MAX_PART_LINES),
        ("control.LogPart.lines", "printable", logs.MAX_LINE_CHARS),
        ("serving.Evaluation.scores", "items", SCORES_AT_ONCE),
    ],
)
def test_what_nodes_say_is_within_the_bounds(field: str, option: str, limit: object) -> None:
    assert bound(FIELDS[f"pippin.{field}"], option) == limit
