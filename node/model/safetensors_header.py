"""Reads headers of safetensors files: the tensors in a file, their dtypes and shapes, without loading them.

A file is 8 bytes of header length (little-endian), the header in JSON, and the tensors' bytes.
"""

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from node.core.errors import ModelBroken
from node.core.models import TensorHeader

_MAX_HEADER_BYTES = 100_000_000
"""Maximum header length in bytes; safetensors itself has the same limit."""

_MAX_NAME = 1_000
_MAX_AXES = 16

_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits per element of each safetensors dtype."""

_AGAIN = "Delete the file and fetch the model again."


def read_header(path: Path) -> dict[str, TensorHeader]:
    """Read the tensors of the file.

    Raises OSError, and ModelBroken unless header and tensors account for all its bytes.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise ModelBroken(
                f"{path}: not a whole safetensors file: {size:,} bytes, header of {length:,}.", hint=_AGAIN
            )
        raw = file.read(length)
    try:
        tensors, end = parse_header(path.name, json.loads(raw))
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ModelBroken(
            f"{path}: its safetensors header of {length:,} bytes is damaged: {error!r:.200}", hint=_AGAIN
        ) from error
    if size != 8 + length + end:
        raise ModelBroken(f"{path} has {size:,} bytes; its header says {8 + length + end:,}.", hint=_AGAIN)
    return tensors


def make_tensor(file: str, name: str, dtype: str, shape: list[int]) -> TensorHeader:
    """Make a tensor from an entry of a header or a description. Raises ValueError, TypeError, KeyError.

    The entry is untrusted.
    """
    if len(name) > _MAX_NAME or not name.isprintable():
        raise ValueError(f"{name[:100]!r} is no name of a tensor")
    if len(shape) > _MAX_AXES or not all(type(axis) is int and 0 <= axis < 2**31 for axis in shape):
        raise ValueError(f"{name} has shape {str(shape)[:100]}")
    return TensorHeader(file, dtype, tuple(shape), (math.prod(shape) * _BITS[dtype] + 7) // 8)


def parse_header(file: str, header: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, TensorHeader], int]:
    """The tensors of a header, which is untrusted, and the offset at which the last one ends.

    Raises ValueError, TypeError, KeyError or AttributeError for an invalid entry and for tensors that overlap.
    """
    tensors, spans = {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensor = tensors[name] = make_tensor(file, name, entry["dtype"], entry["shape"])
        begin, end = entry["data_offsets"]
        if not type(begin) is type(end) is int or begin < 0 or end - begin != tensor.nbytes:
            raise ValueError(f"{name} of {tensor.dtype} {tensor.shape} lies at {begin} to {end}")
        if tensor.nbytes:
            spans.append((begin, end, name))
    spans.sort()
    for (_, end, name), (begin, _, other) in pairwise(spans):
        if begin < end:
            raise ValueError(f"{name} and {other} overlap")
    return tensors, max((end for _, end, _ in spans), default=0)
