"""Frames survive the wire, and damaged ones are refused."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core.axes import Span
from node.core.errors import BadRequest
from node.core.frames import (
    Back,
    Drop,
    Failure,
    Filter,
    Forget,
    Frame,
    Held,
    Keep,
    Merge,
    NonFiniteRow,
    Open,
    Reuse,
    Store,
    Take,
    Tensor,
)
from node.core.rings import Fence
from node.rpc.frame_codec import decode, encode
from node.wire.frame_pb2 import Fault as FaultMessage
from node.wire.frame_pb2 import Header, Op, TensorMeta
from node.wire.frame_pb2 import Held as HeldMessage

numbers = st.integers(0, 2**31)
ops = st.one_of(
    st.builds(Open, numbers),
    st.builds(Merge, numbers, numbers),
    st.builds(Filter, numbers, st.lists(numbers, max_size=5, unique=True).map(tuple)),
    st.builds(Drop, numbers),
    st.builds(Keep, numbers, numbers, numbers, numbers),
    st.builds(Reuse, numbers, numbers, numbers),
    st.builds(Take, numbers, numbers),
    st.builds(Forget, numbers),
    st.builds(Back, numbers, numbers),
    st.builds(Store, numbers, st.binary(max_size=64)),
)
tensors = st.builds(
    Tensor, st.sampled_from(["float32", "bfloat16"]), st.lists(numbers, max_size=3).map(tuple), st.binary(max_size=40)
)
spanned = st.integers(0, 2**31 - 1)
frames = st.builds(
    Frame,
    ring=st.text(max_size=10),
    fence=st.builds(Fence, numbers, numbers),
    seq=numbers,
    held=st.lists(st.builds(Held, numbers, numbers), max_size=3, unique_by=lambda held: held.number).map(tuple),
    ops=st.lists(ops, max_size=4).map(lambda ops: (*sorted(ops, key=lambda op: isinstance(op, Store)),)),
    lane=st.none() | numbers,
    tensors=st.lists(tensors, max_size=3).map(tuple),
    tokens=st.none() | tensors,
    sampled=st.booleans(),
    every=st.booleans(),
    unverified=st.integers(0, 256),
    faults=st.lists(st.builds(NonFiniteRow, numbers, numbers, numbers), max_size=3).map(tuple),
    lengths=st.lists(numbers, max_size=3).map(tuple),
    shifts=st.lists(st.integers(-1000, 1000), max_size=3).map(tuple),
    spans=st.lists(st.builds(Span, spanned, spanned, st.integers(0, 64), spanned), max_size=3).map(tuple),
    failure=st.none() | st.builds(Failure, st.text(max_size=5), st.text(max_size=5), st.text(max_size=5)),
)


@given(frames)
def test_round_trip(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


@given(frames, st.integers(1, 50))
def test_truncated_is_refused(frame: Frame, cut: int) -> None:
    data = encode(frame)
    with pytest.raises(BadRequest):
        decode(data[: max(0, len(data) - cut)])


@given(st.binary(max_size=100))
def test_garbage_never_crashes(data: bytes) -> None:
    with contextlib.suppress(BadRequest):
        decode(data)


def header(**fields: object) -> bytes:
    data = Header(ring="r", **fields).SerializeToString()
    return struct.pack("<I", len(data)) + data


TOO_MUCH = {
    "operations": header(ops=[Op(kind=Op.OPEN, lane=1)] * 20_000),
    "sequences that are held": header(held=[HeldMessage(number=number) for number in range(20_000)]),
    "rows that are not finite": header(faults=[FaultMessage(row=number) for number in range(20_000)]),
    "a sequence held twice": header(held=[HeldMessage(number=1, tokens=5)] * 2),
    "rows": header(ops=[Op(kind=Op.FILTER, rows=range(20_000))]),
    "a row named twice": header(ops=[Op(kind=Op.FILTER, rows=[0, 0])]),
    "guesses": header(unverified=257),
    "lengths": header(lengths=[1] * 20_000),
    "tensors": header(tensors=[TensorMeta()] * 65),
    "dimensions": header(tensors=[TensorMeta(shape=[1] * 9)]),
    "dimensions of the tokens": header(tokens=TensorMeta(shape=[1] * 9)),
    "more bytes than there are": header(tensors=[TensorMeta(bytes=2**64 - 1)]),
    "an operation that there is not": header(ops=[Op(kind=99)]),
    "a long header": header(failure={"message": "x" * (1 << 20)}),
}


@pytest.mark.parametrize("case", TOO_MUCH)
def test_a_frame_that_names_too_much_is_refused(case: str) -> None:
    with pytest.raises(BadRequest):
        decode(TOO_MUCH[case])


@pytest.mark.xfail(strict=True, reason="gap: open-wire")
def test_a_bit_that_flips_in_a_tensor_is_noticed() -> None:
    data = bytearray(encode(Frame("m@1.1", Fence(1, 1), 0, tensors=(Tensor("float32", (1, 4), bytes(16)),))))
    data[-1] ^= 1
    with pytest.raises(BadRequest):
        decode(bytes(data))
