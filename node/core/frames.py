"""What travels round a ring: frames with raw tensors, and the cache operations that ride in them.

Every stage applies the same operations in the same order, because they come in band: nothing else keeps them in step.
"""

from dataclasses import dataclass

from node.core.types import Fence


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense array as bytes: row-major, little-endian. `dtype` is MLX's name: float32, bfloat16, float16, int32, ..."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Open:
    """Begin `lane` with empty caches for one session."""

    lane: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Append the sessions (rows) of `source` to those of `lane`; `source` is gone. An absent `lane` is made."""

    lane: int
    source: int


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep only these rows of `lane`, in this order."""

    lane: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Free `lane`."""

    lane: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Store a copy of the caches of one session of `lane`, that of `row`, as `prefix`."""

    lane: int
    row: int
    prefix: int


@dataclass(frozen=True, slots=True)
class Reuse:
    """Begin `lane` with a copy of the first `tokens` positions of `prefix`."""

    lane: int
    prefix: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Free `prefix`."""

    prefix: int


CacheOp = Open | Merge | Filter | Drop | Keep | Reuse | Forget


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way round the ring to the driver, by the error tree's code."""

    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of a step whose hidden states are no finite numbers any more after the layers [start, end)."""

    row: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Held:
    """KV of the first `tokens` of a sequence that outlived its ring."""

    number: int
    """Of the prefix, or of the lane in which the sequence began; no other sequence of any ring ever has it."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One message between neighbours of a ring: operations first, then at most one step of one lane."""

    ring: str
    fence: Fence
    seq: int
    """Counts the ring's frames from 0; the same number all the way round."""
    ops: tuple[CacheOp, ...] = ()
    lane: int | None = None
    """The lane to step; None for a frame of operations only."""
    tensors: tuple[Tensor, ...] = ()
    """Hidden states [rows, length, width] first, then whatever else the architecture carries between layers."""
    tokens: Tensor | None = None
    """int32 [rows, length]; only for architectures whose layers read them."""
    sampled: bool = False
    """The driver draws from what comes back, which then is of each row's last token alone."""
    every: bool = False
    """The driver needs what comes back of every token. With neither, nothing comes back but the frame itself."""
    lengths: tuple[int, ...] = ()
    """Valid tokens of each row of a right-padded prefill; empty when all rows are full."""
    failure: Failure | None = None
    faults: tuple[Fault, ...] = ()
    """For each row that is not finite, the first stage after which it was not, so that an error can name its layers."""
    held: tuple[Held, ...] = ()
    """In a ring's first frame: the KV of earlier rings that all stages so far have. Each strikes out what it has not, and
    frees what is not named; what comes back to the driver is at all stages, as prefixes."""
