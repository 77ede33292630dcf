from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
PRINTABLE_FIELD_NUMBER: _ClassVar[int]
printable: _descriptor.FieldDescriptor
MOST_FIELD_NUMBER: _ClassVar[int]
most: _descriptor.FieldDescriptor
ITEMS_FIELD_NUMBER: _ClassVar[int]
items: _descriptor.FieldDescriptor
KEPT_FIELD_NUMBER: _ClassVar[int]
kept: _descriptor.FieldDescriptor
FILLED_FIELD_NUMBER: _ClassVar[int]
filled: _descriptor.FieldDescriptor
FINITE_FIELD_NUMBER: _ClassVar[int]
finite: _descriptor.FieldDescriptor
AMOUNT_FIELD_NUMBER: _ClassVar[int]
amount: _descriptor.FieldDescriptor
AMONG_FIELD_NUMBER: _ClassVar[int]
among: _descriptor.FieldDescriptor
