"""Headers of safetensors files: which tensors a file holds and how many bytes each has, without reading them.

A file is 8 bytes of header length (little-endian), the header in JSON, and the tensors' bytes without gaps.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from node.core.errors import ModelBroken

_LONGEST = 100_000_000
"""Bytes of the longest header that safetensors itself accepts."""

_AGAIN = "Delete the file and fetch the model again."


def read_header(path: Path) -> dict[str, int]:
    """Bytes of each tensor in the file. Raises ModelBroken unless the file is as long as its header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST):
            raise ModelBroken(
                f"{path}: not a whole safetensors file: {size:,} bytes, header of {length:,}.", hint=_AGAIN
            )
        raw = file.read(length)
    try:
        header = json.loads(raw)
        ends = {name: _span(entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ModelBroken(f"{path}: its safetensors header of {length:,} bytes is damaged.", hint=_AGAIN) from error
    expected = 8 + length + max((end for _, end in ends.values()), default=0)
    if size != expected:
        raise ModelBroken(f"{path} has {size:,} bytes; its header says {expected:,}.", hint=_AGAIN)
    return {name: end - start for name, (start, end) in ends.items()}


def _span(entry: Mapping[str, list[int]]) -> tuple[int, int]:
    start, end = entry["data_offsets"]
    if not 0 <= start <= end:
        raise ValueError(f"{start} to {end}")
    return start, end
