from node.wire import bounds_pb2 as _bounds_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Header(_message.Message):
    __slots__ = ("ring", "term", "epoch", "seq", "ops", "lane", "tensors", "tokens", "lengths", "failure", "sampled", "every", "held", "faults", "unverified", "restore", "stored", "shifts", "spans")
    RING_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    UNVERIFIED_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    SHIFTS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    ring: str
    term: int
    epoch: int
    seq: int
    ops: _containers.RepeatedCompositeFieldContainer[Op]
    lane: int
    tensors: _containers.RepeatedCompositeFieldContainer[TensorMeta]
    tokens: TensorMeta
    lengths: _containers.RepeatedScalarFieldContainer[int]
    failure: Failure
    sampled: bool
    every: bool
    held: _containers.RepeatedCompositeFieldContainer[Held]
    faults: _containers.RepeatedCompositeFieldContainer[Fault]
    unverified: int
    restore: Restore
    stored: _containers.RepeatedCompositeFieldContainer[Store]
    shifts: _containers.RepeatedScalarFieldContainer[int]
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, ring: _Optional[str] = ..., term: _Optional[int] = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ..., ops: _Optional[_Iterable[_Union[Op, _Mapping]]] = ..., lane: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[TensorMeta, _Mapping]]] = ..., tokens: _Optional[_Union[TensorMeta, _Mapping]] = ..., lengths: _Optional[_Iterable[int]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., sampled: _Optional[bool] = ..., every: _Optional[bool] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., faults: _Optional[_Iterable[_Union[Fault, _Mapping]]] = ..., unverified: _Optional[int] = ..., restore: _Optional[_Union[Restore, _Mapping]] = ..., stored: _Optional[_Iterable[_Union[Store, _Mapping]]] = ..., shifts: _Optional[_Iterable[int]] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("tokens", "base", "columns", "first")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    base: int
    columns: int
    first: int
    def __init__(self, tokens: _Optional[int] = ..., base: _Optional[int] = ..., columns: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...

class Store(_message.Message):
    __slots__ = ("number", "chain", "state")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    number: int
    chain: bytes
    state: bool
    def __init__(self, number: _Optional[int] = ..., chain: _Optional[bytes] = ..., state: _Optional[bool] = ...) -> None: ...

class Restore(_message.Message):
    __slots__ = ("number", "tokens", "least", "chain", "seconds", "pending", "longest")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    LONGEST_FIELD_NUMBER: _ClassVar[int]
    number: int
    tokens: int
    least: int
    chain: bytes
    seconds: float
    pending: bool
    longest: int
    def __init__(self, number: _Optional[int] = ..., tokens: _Optional[int] = ..., least: _Optional[int] = ..., chain: _Optional[bytes] = ..., seconds: _Optional[float] = ..., pending: _Optional[bool] = ..., longest: _Optional[int] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("row", "start", "end")
    ROW_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    row: int
    start: int
    end: int
    def __init__(self, row: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("number", "tokens")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    number: int
    tokens: int
    def __init__(self, number: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class TensorMeta(_message.Message):
    __slots__ = ("dtype", "shape", "bytes")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    bytes: int
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., bytes: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "message", "hint")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    hint: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class Op(_message.Message):
    __slots__ = ("kind", "lane", "source", "rows", "tokens", "prefix", "row")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Op.Kind]
        OPEN: _ClassVar[Op.Kind]
        MERGE: _ClassVar[Op.Kind]
        FILTER: _ClassVar[Op.Kind]
        DROP: _ClassVar[Op.Kind]
        KEEP: _ClassVar[Op.Kind]
        REUSE: _ClassVar[Op.Kind]
        FORGET: _ClassVar[Op.Kind]
        TAKE: _ClassVar[Op.Kind]
        BACK: _ClassVar[Op.Kind]
    UNKNOWN: Op.Kind
    OPEN: Op.Kind
    MERGE: Op.Kind
    FILTER: Op.Kind
    DROP: Op.Kind
    KEEP: Op.Kind
    REUSE: Op.Kind
    FORGET: Op.Kind
    TAKE: Op.Kind
    BACK: Op.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    kind: Op.Kind
    lane: int
    source: int
    rows: _containers.RepeatedScalarFieldContainer[int]
    tokens: int
    prefix: int
    row: int
    def __init__(self, kind: _Optional[_Union[Op.Kind, str]] = ..., lane: _Optional[int] = ..., source: _Optional[int] = ..., rows: _Optional[_Iterable[int]] = ..., tokens: _Optional[int] = ..., prefix: _Optional[int] = ..., row: _Optional[int] = ...) -> None: ...
