"""Encodes frames: `u32 header length | Header | tensor bytes …`, little-endian.

The tensors' bytes stay outside protobuf: a 4 MB chunk costs 6.5 ms raw against 19 ms through a protobuf field.
"""

import struct

from google.protobuf.message import DecodeError

from node.core.errors import BadRequest, Incompatible
from node.core.frames import Back, CacheOp, Drop, Filter, Forget, Frame, Keep, Merge, Open, Reuse, Store, Take, Tensor
from node.rpc.bounds import checked
from node.rpc.mapping import from_message, to_message
from node.wire.frame_pb2 import Header, Op, TensorMeta
from node.wire.frame_pb2 import Store as StoreMessage

_LENGTH = struct.Struct("<I")
_MAX_HEADER_BYTES = 1 << 20

_OPS: dict[Op.Kind, type[CacheOp]] = {
    Op.OPEN: Open,
    Op.MERGE: Merge,
    Op.FILTER: Filter,
    Op.DROP: Drop,
    Op.KEEP: Keep,
    Op.REUSE: Reuse,
    Op.TAKE: Take,
    Op.FORGET: Forget,
    Op.BACK: Back,
}
_KINDS = {op: kind for kind, op in _OPS.items()}


def encode(frame: Frame) -> bytes:
    header = to_message(
        frame,
        Header,
        ops=[to_message(op, Op, kind=_KINDS[type(op)]) for op in frame.ops if not isinstance(op, Store)],
        stored=[to_message(op, StoreMessage) for op in frame.ops if isinstance(op, Store)],
        tensors=[_meta(tensor) for tensor in frame.tensors],
        tokens=_meta(frame.tokens) if frame.tokens else None,
    )
    head = header.SerializeToString()
    payload = [tensor.data for tensor in frame.tensors]
    if frame.tokens:
        payload.append(frame.tokens.data)
    return b"".join((_LENGTH.pack(len(head)), head, *payload))


def decode(data: bytes) -> Frame:
    """Parse a frame. Raises BadRequest for an invalid frame, a wrong length, or too many items."""
    try:
        (size,) = _LENGTH.unpack_from(data)
        if size > _MAX_HEADER_BYTES:
            raise BadRequest(f"A frame's header has {size:,} bytes; the maximum is {_MAX_HEADER_BYTES:,}.")
        header = checked(Header.FromString(data[4 : 4 + size]))
    except (struct.error, DecodeError) as error:
        raise BadRequest(f"A frame of {len(data)} bytes has no readable header: {error}.") from error
    except Incompatible as error:
        raise BadRequest(error.message) from error
    metas = [*header.tensors, *([header.tokens] if header.HasField("tokens") else [])]
    expected = 4 + size + sum(meta.bytes for meta in metas)
    if expected != len(data):
        raise BadRequest(f"A frame has {len(data)} bytes, its header says {expected}.")
    tensors = _tensors(metas, data, 4 + size)
    return from_message(
        header,
        Frame,
        ops=(*(_decode_op(op) for op in header.ops), *(from_message(op, Store) for op in header.stored)),
        tensors=tuple(tensors[: len(header.tensors)]),
        tokens=tensors[-1] if header.HasField("tokens") else None,
    )


def _meta(tensor: Tensor) -> TensorMeta:
    return TensorMeta(dtype=tensor.dtype, shape=tensor.shape, bytes=len(tensor.data))


def _tensors(metas: list[TensorMeta], data: bytes, offset: int) -> list[Tensor]:
    tensors = []
    view = memoryview(data)
    for meta in metas:
        tensors.append(Tensor(meta.dtype, tuple(meta.shape), view[offset : offset + meta.bytes]))
        offset += meta.bytes
    return tensors


def _decode_op(message: Op) -> CacheOp:
    kind = _OPS.get(message.kind)
    if kind is None:
        raise BadRequest(f"A frame has the unknown cache operation {message.kind}.")
    return from_message(message, kind)
