"""Converts between MLX arrays and the tensors of frames, which are raw little-endian bytes."""

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from node.core.errors import PippinError
from node.core.frames import Tensor

_SENT = ("bool", "uint8", "uint16", "uint32", "int8", "int16", "int32", "int64", "float16", "float32")
_NUMPY = {name: np.dtype(name).newbyteorder("<") for name in _SENT} | {"bfloat16": np.dtype("<u2")}
"""numpy has no bfloat16: its bits are viewed as uint16 at both ends."""
_DIMENSION_LIMIT = 1 << 31  # MLX counts a dimension in 32 bits


class Packed:
    """Arrays on their way to another node, whose bytes are yet to be computed and copied."""

    def __init__(self, arrays: Sequence[mx.array]) -> None:
        """Raises PippinError for a dtype that can't be sent."""
        self._dtypes = [dtype_name(array) for array in arrays]
        for dtype in self._dtypes:
            if dtype not in _NUMPY:
                raise PippinError(f"Arrays of {dtype} cannot be sent to other nodes.")
        self.bits = [
            array.view(mx.uint16) if dtype == "bfloat16" else array
            for dtype, array in zip(self._dtypes, arrays, strict=True)
        ]
        """What has to be computed: all at once, so that the device is waited for once."""

    def read(self) -> tuple[Tensor, ...]:
        """Copy the arrays' bytes. Waits until they are computed, so call it in the compute thread."""
        bits: Any = self.bits  # arrays have the buffer protocol, but MLX's type stubs do not say so
        pairs = zip(self._dtypes, bits, strict=True)
        return tuple(Tensor(dtype, tuple(array.shape), bytes(memoryview(array))) for dtype, array in pairs)


def dtype_name(array: mx.array) -> str:
    return str(array.dtype).rpartition(".")[2]


def pack(arrays: Sequence[mx.array]) -> tuple[Tensor, ...]:
    """Compute the arrays and copy their bytes, in the compute thread. Raises PippinError for a dtype that can't be sent."""
    if not arrays:
        return ()
    packed = Packed(arrays)
    mx.async_eval(packed.bits)  # type: ignore[no-untyped-call]
    return packed.read()


def unpack(tensors: Sequence[Tensor]) -> tuple[mx.array, ...]:
    """Copy a frame's tensors, which are untrusted, into evaluated arrays. Raises PippinError for an unknown dtype, and for
    bytes that do not match the shape.
    """
    arrays = [mx.array(_to_numpy(tensor)) for tensor in tensors]
    pairs = zip(arrays, tensors, strict=True)
    return tuple(array.view(mx.bfloat16) if tensor.dtype == "bfloat16" else array for array, tensor in pairs)


def unpack_tokens(tensor: Tensor, vocabulary: int) -> mx.array:
    """Copy a frame's token ids into an evaluated array. Raises PippinError like `unpack`, and for ids that are not in
    [0, vocabulary), as MLX would read out of bounds.
    """
    array: Any = _to_numpy(tensor)
    # In numpy, as a check in MLX would wait for the device.
    if array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= vocabulary):
        raise PippinError(f"A token of the step is not among the model's {vocabulary}.")
    return mx.array(array)


def _to_numpy(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.generic]]:
    """Bits of bfloat16 as uint16."""
    numpy_dtype = _NUMPY.get(tensor.dtype)
    if numpy_dtype is None:
        raise PippinError(f"A frame has a tensor of unknown dtype {tensor.dtype!r:.40}.")
    if not all(0 <= size < _DIMENSION_LIMIT for size in tensor.shape):
        raise PippinError(f"A frame has a tensor of impossible shape {tensor.shape}.")
    expected = math.prod(tensor.shape) * numpy_dtype.itemsize
    if len(tensor.data) != expected:
        raise PippinError(
            f"A frame has a {tensor.dtype} tensor of shape {tensor.shape} with {len(tensor.data)} bytes "
            f"instead of {expected}."
        )
    return np.frombuffer(tensor.data, numpy_dtype).reshape(tensor.shape)


def token_array(rows: Sequence[Sequence[int]]) -> mx.array:
    """Token ids as int32 [rows, length]; shorter rows are padded with zeros on the right."""
    length = max(map(len, rows))
    return mx.array([[*row, *[0] * (length - len(row))] for row in rows], mx.int32)
