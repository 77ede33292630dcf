"""Blocks of KV out of a lane's caches, and caches made of blocks. Runs in the compute thread."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache

from node.core.frames import Tensor
from node.engine.caches import parts
from node.engine.tensor_codec import dtype_name, pack, unpack
from node.kv.blocks import BLOCK

Block = dict[int, dict[str, Tensor]]
"""See node.kv.blocks.Kv."""
Layout = dict[int, dict[str, tuple[str, tuple[int, ...]]]]
"""Dtype and shape of each tensor of a block."""


def can_be_cut(caches: Iterable[Any]) -> bool:
    """Whether these caches have the KV of each token at the token's place: windows and recurrent states have not."""
    return all(type(part) is KVCache for part in parts(caches))


def cut_block(caches: Mapping[int, Any], row: int, index: int) -> Block | None:
    """Copy the block of this index of a row of caches, by their numbers in the model; None if a value is not finite."""
    names, arrays = list[tuple[int, str]](), list[mx.array]()
    padded = next((part for part in parts(caches.values()) if isinstance(part, BatchKVCache)), None)
    begin = index * BLOCK + (int(padded.left_padding[row]) if padded else 0)  # the same in all caches
    for number, cache in caches.items():
        for k, part in enumerate(parts([cache])):
            if not part.empty():
                names += [(number, f"{k}.keys"), (number, f"{k}.values")]
                cut = [each[row : row + 1, :, begin : begin + BLOCK] for each in (part.keys, part.values)]
                arrays += map(mx.contiguous, cut)
    if arrays and not mx.stack([mx.isfinite(array).all() for array in arrays]).all().item():
        return None
    block: Block = {number: {} for number in caches}
    for (number, key), tensor in zip(names, pack(arrays), strict=True):
        block[number][key] = tensor
    return block


def layout(caches: Mapping[int, Any]) -> Layout:
    """What a block of these caches has, after a short step, of which nothing need be computed."""
    return {
        number: {
            f"{k}.{key}": (dtype_name(array), (*array.shape[:2], BLOCK, array.shape[3]))
            for k, part in enumerate(parts([cache]))
            if not part.empty()
            for key, array in (("keys", part.keys), ("values", part.values))
        }
        for number, cache in caches.items()
    }


def fits(block: Block, wanted: Layout) -> bool:
    """Whether a block has all tensors of these caches, and none that they would not have."""
    return wanted == {
        number: {key: (tensor.dtype, tensor.shape) for key, tensor in tensors.items()}
        for number, tensors in block.items()
    }


def fill(caches: Mapping[int, Any], blocks: Sequence[Block]) -> Generator[float, None, None]:
    """Fill empty caches with blocks that fit, one cache after the other, between which other jobs may run; the blocks are
    emptied.
    """
    for number, cache in caches.items():
        tensors = [block.pop(number) for block in blocks]
        for k, part in enumerate(parts([cache])):
            if f"{k}.keys" in tensors[0]:
                arrays = (unpack([each[f"{k}.{key}"] for each in tensors]) for key in ("keys", "values"))
                part.state = *(mx.concatenate(list(each), axis=2) for each in arrays), len(blocks) * BLOCK
                mx.eval(part.state[:2])
        yield 0.0
