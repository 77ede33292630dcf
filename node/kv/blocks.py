"""Blocks of KV: 256 tokens of one sequence in some caches, with a name that says of which tokens, and as bytes. Pure.

Caches that can't be cut, windows and recurrent states, have nothing in a block. Their state at its end has a name of its own.

The name is a hash of the model's version and of all tokens up to the end of the block, so a block fits whatever ring computes that
version. The bytes are a safetensors file: 8 bytes of header length, the header in JSON, the tensors' bytes. Its metadata has a
digest for each cache, so that a reader can take single caches, and notices whatever is damaged, cut off, or another block.
"""

import json
import math
from array import array
from collections.abc import Container, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from typing import Any, BinaryIO

from node.core.frames import Tensor
from node.core.models import ModelVersion

BLOCK = 256
"""Tokens of a block."""
NAME_BYTES = 16
MAX_BYTES = 1 << 30
"""Of a block: 4 MB for each token."""
LAYOUT = f"1 mlx {version('mlx')} mlx-lm {version('mlx-lm')}"
"""Of a block's tensors, which are those of mlx-lm's caches. Another one makes other names: blocks of it are never found."""
_MAX_HEADER = 1 << 22
_MAX_AXES = 8
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "uint32": "U32", "int64": "I64"}
"""Those of KV, also of quantized KV, by MLX's names."""
_MLX = {name: mlx for mlx, name in DTYPES.items()}
_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "U32": 4, "I64": 8}

Kv = Mapping[int, Mapping[str, Tensor]]
"""KV of a block: for each cache, by its number in the model, its tensors by name, with tokens as the last axis but one. Or a state."""


class Damaged(ValueError):
    """These bytes are not the block that they are taken for."""


def chain_of(of: ModelVersion, tokens: Sequence[int]) -> bytes:
    """The names of all whole blocks of a sequence, one after the other."""
    digest = sha256(f"{LAYOUT} {of.model} {of.revision} {of.kv_bits}".encode())
    names = []
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        digest.update(array("I", tokens[end - BLOCK : end]).tobytes())
        names.append(digest.digest()[:NAME_BYTES])
    return b"".join(names)


def names_of(chain: bytes) -> list[str]:
    return [chain[at : at + NAME_BYTES].hex() for at in range(0, len(chain) - NAME_BYTES + 1, NAME_BYTES)]


def state_name(name: str) -> str:
    return sha256(f"state {name}".encode()).digest()[:NAME_BYTES].hex()


def encode(name: str, kv: Kv) -> list[bytes | memoryview]:
    """The bytes of a block, in parts. Raises KeyError for a dtype that KV does not have."""
    header: dict[str, object] = {}
    digests, data, at = {"block": name}, list[bytes | memoryview](), 0
    for cache, tensors in kv.items():
        digests[str(cache)] = _digest(name, cache, tensors)
        for key, tensor in tensors.items():
            end = at + len(tensor.data)
            place = {"dtype": DTYPES[tensor.dtype], "shape": tensor.shape, "data_offsets": (at, end)}
            header[f"{cache}.{key}"] = place
            data.append(tensor.data)
            at = end
    head = json.dumps({"__metadata__": digests} | header).encode()
    return [len(head).to_bytes(8, "little"), head, *data]


def decode(file: BinaryIO, name: str, wanted: Container[int]) -> dict[int, dict[str, Tensor]]:
    """Read the wanted caches that a block's bytes have. Raises Damaged, OSError."""
    found: dict[int, dict[str, Tensor]] = {}
    try:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER:
            raise Damaged(f"a header of {length:,} bytes")
        header = json.loads(file.read(length))
        digests = header.pop("__metadata__")
        for cache in map(int, digests.keys() - {"block"}):
            if cache in wanted:
                found[cache] = {}
        at = 0
        for full_key, entry in header.items():
            cache, _, key = full_key.partition(".")
            dtype, shape, end = _place(entry, at)
            if int(cache) in found:
                file.seek(8 + length + at)
                found[int(cache)][key] = Tensor(_MLX[dtype], shape, _read(file, end - at))
            at = end
        for each, tensors in found.items():
            if digests[str(each)] != _digest(name, each, tensors):
                raise Damaged(f"cache {each} has another digest")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise Damaged(f"block {name}: {error}") from error
    return found


def _place(entry: Any, at: int) -> tuple[str, tuple[int, ...], int]:
    """A tensor's dtype, shape and end. Its entry is untrusted: it lies at `at`, behind the one before, and so shares no bytes.

    Raises what `decode` takes for Damaged.
    """
    dtype, shape = entry["dtype"], entry["shape"]
    begin, end = entry["data_offsets"]
    if not 0 < len(shape) <= _MAX_AXES or not all(
        type(number) is int and 0 <= number < 2**40 for number in (*shape, begin, end)
    ):
        raise ValueError(f"a tensor of shape {str(shape)[:100]} at {begin!r:.50}")
    if begin != at or not end - at == _BYTES[dtype] * math.prod(shape) <= MAX_BYTES:
        raise ValueError(f"a tensor of shape {shape} lies at {begin} to {end}, behind {at} bytes")
    return dtype, tuple(shape), end


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise ValueError(f"it ends after {len(data)} of {size} bytes of a tensor")
    return data


def _digest(name: str, cache: int, tensors: Mapping[str, Tensor]) -> str:
    digest = sha256(f"{name} {cache}".encode())
    for key, tensor in sorted(tensors.items()):
        digest.update(f" {key} {DTYPES[tensor.dtype]} {list(tensor.shape)} ".encode())
        digest.update(tensor.data)
    return digest.hexdigest()
