"""Blocks of KV out of a lane's caches, the states of those that can't be cut, and caches made of both. Runs in the compute thread."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, BatchKVCache, KVCache, RotatingKVCache

from node.core.frames import Tensor
from node.engine.caches import parts
from node.engine.tensor_codec import dtype_name, pack, unpack
from node.kv.blocks import BLOCK, DTYPES

Block = dict[int, dict[str, Tensor]]
"""See node.kv.blocks.Kv."""
State = Mapping[int, Mapping[str, mx.array]]
"""For each cache, by its number in the model: the arrays of its parts that can't be cut."""
Layout = dict[int, dict[str, tuple[str, tuple[int, ...]]]]
"""Dtype and shape of each tensor of a block, or of a state."""


def can_be_cut(part: Any) -> bool:
    """Whether this cache has the KV of each token at the token's place."""
    return type(part) in (KVCache, BatchKVCache)


def has_state(part: Any) -> bool:
    """Whether this cache can't be cut, and is known as a whole: windows and recurrent states."""
    return type(part) in (RotatingKVCache, ArraysCache)


def _numbered(caches: Mapping[int, Any]) -> Iterator[tuple[int, int, Any]]:
    """The parts of caches, with the number of the cache and that of the part in it."""
    for number, cache in caches.items():
        for k, part in enumerate(parts([cache])):
            yield number, k, part


def cut_block(caches: Mapping[int, Any], row: int, index: int) -> Block | None:
    """Copy the block of this index of a row of caches, by their numbers in the model; None if a value is not finite."""
    padded = next((part for part in parts(caches.values()) if isinstance(part, BatchKVCache)), None)
    begin = index * BLOCK + (int(padded.left_padding[row]) if padded else 0)  # the same in all caches
    cut: dict[int, dict[str, mx.array]] = {number: {} for number in caches}
    for number, k, part in _numbered(caches):
        if can_be_cut(part) and not part.empty():
            for key, array in (("keys", part.keys), ("values", part.values)):
                cut[number][f"{k}.{key}"] = array[row : row + 1, :, begin : begin + BLOCK]
    return copied(cut)


def copied(arrays: State) -> Block | None:
    """Compute arrays and copy their bytes; None if a value is not finite, or of a kind that no disk keeps."""
    flat = [(number, key, array) for number, named in arrays.items() for key, array in named.items()]
    if flat and not mx.stack([mx.isfinite(array).all() for *_, array in flat]).all().item():
        return None
    if any(dtype_name(array) not in DTYPES for *_, array in flat):
        return None
    block: Block = {number: {} for number in arrays}
    tensors = pack([mx.contiguous(array) for *_, array in flat])
    for (number, key, _), tensor in zip(flat, tensors, strict=True):
        block[number][key] = tensor
    return block


def state_of(caches: Mapping[int, Any]) -> State | None:
    """What the parts that can't be cut are now, of a session that is alone; steps to come don't change it. None if one is not as
    a step of several tokens leaves it.
    """
    state: dict[int, dict[str, mx.array]] = {number: {} for number in caches}
    for number, k, part in _numbered(caches):
        if type(part) is ArraysCache and part.left_padding is None and part.lengths is None:
            state[number] |= {f"{k}.{i}": array[...] for i, array in enumerate(part.cache) if array is not None}
        elif type(part) is RotatingKVCache and part.keys is not None:
            keys, values, *_, end = part.state
            if end != keys.shape[2]:  # single steps write around the window
                return None
            state[number] |= {f"{k}.keys": _window(part, keys), f"{k}.values": _window(part, values)}
        elif not can_be_cut(part):
            return None
    return state


def _window(part: RotatingKVCache, array: mx.array) -> mx.array:
    """The tokens that later ones may look at: a step of several has left more, in their order."""
    surplus = array.shape[2] - part.max_size
    if surplus <= 0:
        return array[...]
    return mx.concatenate([array[:, :, : part.keep], array[:, :, part.keep + surplus :]], axis=2)


def block_layout(caches: Mapping[int, Any]) -> Layout:
    """What a block of these caches has, after a short step, of which nothing need be computed."""
    found: Layout = {number: {} for number in caches}
    for number, k, part in _numbered(caches):
        if can_be_cut(part) and not part.empty():
            for key, array in (("keys", part.keys), ("values", part.values)):
                found[number][f"{k}.{key}"] = dtype_name(array), (*array.shape[:2], BLOCK, array.shape[3])
    return found


def state_layout(caches: Mapping[int, Any], tokens: int) -> Layout:
    """The same of the state after so many tokens."""
    found: Layout = {number: {} for number in caches}
    for number, k, part in _numbered(caches):
        if type(part) is ArraysCache:
            arrays = {f"{k}.{i}": array for i, array in enumerate(part.cache) if array is not None}
            found[number] |= {key: (dtype_name(array), tuple(array.shape)) for key, array in arrays.items()}
        elif type(part) is RotatingKVCache and part.keys is not None:
            for key, array in (("keys", part.keys), ("values", part.values)):
                shape = (*array.shape[:2], min(tokens, part.max_size), array.shape[3])
                found[number][f"{k}.{key}"] = dtype_name(array), shape
    return found


def fits(block: Block, wanted: Layout) -> bool:
    """Whether a block, or a state, has all tensors of these caches, and none that they would not have."""
    return wanted == {
        number: {key: (tensor.dtype, tensor.shape) for key, tensor in tensors.items()}
        for number, tensors in block.items()
        if tensors or number in wanted
    }


def fill(
    caches: Mapping[int, Any], blocks: Sequence[Block], state: Block | None, tokens: int
) -> Generator[float, None, None]:
    """Fill empty caches with blocks and a state that fit, one cache after the other, between which other jobs may run; blocks and
    state are emptied.
    """
    for number, cache in caches.items():
        cut, whole = [block.pop(number, {}) for block in blocks], state.pop(number, {}) if state else {}
        for k, part in enumerate(parts([cache])):
            if can_be_cut(part) and cut and f"{k}.keys" in cut[0]:
                arrays = (unpack([each[f"{k}.{key}"] for each in cut]) for key in ("keys", "values"))
                part.state = *(mx.concatenate(list(each), axis=2) for each in arrays), tokens
                mx.eval(part.state[:2])
            elif type(part) is ArraysCache:
                names = [f"{k}.{i}" for i in range(len(part.cache))]
                part.cache = [unpack([whole[name]])[0] if name in whole else None for name in names]
            elif type(part) is RotatingKVCache and f"{k}.keys" in whole:
                keys, values = unpack([whole[f"{k}.keys"], whole[f"{k}.values"]])
                part.state = keys, values, tokens, part.keep, part.max_size, keys.shape[2]
        yield 0.0
