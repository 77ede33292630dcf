"""Blocks of KV out of a lane's caches, and caches made of blocks. Runs in the compute thread."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from node.core.errors import PippinError
from node.core.frames import Tensor
from node.engine.caches import parts
from node.engine.tensor_codec import pack, unpack
from node.kv.blocks import BLOCK

Block = dict[int, dict[str, Tensor]]
"""See node.kv.blocks.Kv."""


def can_be_cut(caches: Iterable[Any]) -> bool:
    """Whether these caches have the KV of each token at the token's place: windows and recurrent states have not."""
    return all(type(part) is KVCache for part in parts(caches))


def cut_block(caches: Mapping[int, Any], index: int) -> Block:
    """Copy the block of this index of caches, which are of one session, by their numbers in the model."""
    begin, names, arrays = index * BLOCK, list[tuple[int, str]](), list[mx.array]()
    for number, cache in caches.items():
        for k, part in enumerate(parts([cache])):
            if not part.empty():
                names += [(number, f"{k}.keys"), (number, f"{k}.values")]
                arrays += [mx.contiguous(each[..., begin : begin + BLOCK, :]) for each in (part.keys, part.values)]
    block: Block = {number: {} for number in caches}
    for (number, key), tensor in zip(names, pack(arrays), strict=True):
        block[number][key] = tensor
    return block


def fill(caches: Mapping[int, Any], blocks: Sequence[Block]) -> Generator[float, None, None]:
    """Fill empty caches with blocks, one cache after the other, between which other jobs may run; the blocks are emptied.

    Raises PippinError for blocks that do not fit each other or these caches.
    """
    for number, cache in caches.items():
        tensors = [block.pop(number) for block in blocks]
        for k, part in enumerate(parts([cache])):
            found = [[each[f"{k}.{key}"] for each in tensors if f"{k}.{key}" in each] for key in ("keys", "values")]
            if any(found):
                part.state = *(_joined(each, len(blocks)) for each in found), len(blocks) * BLOCK
                mx.eval(part.state[:2])
        yield 0.0


def _joined(tensors: Sequence[Tensor], count: int) -> mx.array:
    alike = {(tensor.dtype, tensor.shape) for tensor in tensors}
    if len(tensors) != count or len(alike) != 1 or tensors[0].shape[0] != 1 or tensors[0].shape[2] != BLOCK:
        raise PippinError(f"{len(tensors)} tensors of {len(alike)} kinds are not {count} blocks.")
    return mx.concatenate(list(unpack(tensors)), axis=2)
