"""Reads headers of safetensors files: the tensors in a file, their dtypes and shapes, without loading them.

A file is 8 bytes of header length (little-endian), the header in JSON, and the tensors' bytes.
"""

import json
import math
from itertools import pairwise

from node.core.errors import ModelBroken
from node.model.file_names import MAX_LAYOUT_BYTES

Entry = tuple[str, str, tuple[int, ...], int]
"""The fields of a `TensorHeader`, which can be marshalled."""

MAX_TENSORS = 2**19
"""Maximum tensors of a model; the largest ones have some 210,000."""
MAX_TENSORS_OF_FILE = 2**15
"""Maximum tensors of one file. MLX makes all of them at once and lets no other thread run meanwhile: for a second with so many."""
_MAX_NAME = 1_000
_MAX_AXES = 16

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits per element of each safetensors dtype."""

AGAIN = "Delete the file and fetch the model again."


def header_length(where: str, begin: bytes, size: int) -> int:
    """Length of the header of a file of `size` bytes, from its first 8 bytes. Raises ModelBroken."""
    length = int.from_bytes(begin[:8], "little")
    if size < 8 or length > size - 8:
        raise ModelBroken(f"{where}: not a whole safetensors file: {size:,} bytes, header of {length:,}.", hint=AGAIN)
    if length > MAX_LAYOUT_BYTES:
        raise ModelBroken(f"{where} has a header of {length:,} bytes; {MAX_LAYOUT_BYTES:,} are the most.")
    return length


def make_entry(file: str, name: str, dtype: str, shape: list[int]) -> Entry:
    """Make a tensor from an entry of a header or a description. Raises ValueError, TypeError, KeyError.

    The entry is untrusted.
    """
    if len(name) > _MAX_NAME or not name.isprintable():
        raise ValueError(f"{name[:100]!r} is no name of a tensor")
    if len(shape) > _MAX_AXES or not all(type(axis) is int and 0 <= axis < 2**31 for axis in shape):
        raise ValueError(f"{name} has shape {str(shape)[:100]}")
    return file, dtype, tuple(shape), (math.prod(shape) * BITS[dtype] + 7) // 8


def parse_header(raw: bytes, file: str) -> tuple[dict[str, Entry], int]:
    """The tensors of a header, which is untrusted, and the offset at which the last one ends.

    Raises ValueError, TypeError, KeyError, AttributeError or RecursionError for an invalid entry and for tensors that
    overlap.
    """
    tensors: dict[str, Entry] = {}
    spans = []
    for name, entry in json.loads(raw).items():
        if name == "__metadata__":
            continue
        if len(tensors) == MAX_TENSORS_OF_FILE:
            raise ValueError(f"it has more than {MAX_TENSORS_OF_FILE:,} tensors")
        _, dtype, shape, nbytes = tensors[name] = make_entry(file, name, entry["dtype"], entry["shape"])
        begin, end = entry["data_offsets"]
        if not type(begin) is type(end) is int or begin < 0 or end - begin != nbytes:
            raise ValueError(f"{name} of {dtype} {shape} lies at {begin} to {end}")
        if nbytes:
            spans.append((begin, end, name))
    spans.sort()
    for (_, end, name), (begin, _, other) in pairwise(spans):
        if begin < end:
            raise ValueError(f"{name} and {other} overlap")
    return tensors, max((end for _, end, _ in spans), default=0)
