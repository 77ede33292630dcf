"""The messages of a ring: frames with raw tensors and cache operations.

All stages apply the same operations in the same order, as the operations travel in the frames.
"""

from dataclasses import dataclass

from node.core.axes import Span
from node.core.rings import Fence


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense array as bytes: row-major, little-endian. `dtype` is MLX's name, for example bfloat16."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


SequenceId = int
"""Number of a lane, a prefix or a row's sequence: one space, as rows become prefixes, and prefixes lanes."""


@dataclass(frozen=True, slots=True)
class Open:
    """Begin `lane` with empty caches for one session."""

    lane: SequenceId


@dataclass(frozen=True, slots=True)
class Merge:
    """Append the sessions (rows) of `source` to those of `lane`; `source` is freed. An absent `lane` is made."""

    lane: SequenceId
    source: SequenceId


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep only these rows of `lane`, in this order."""

    lane: SequenceId
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Free `lane`."""

    lane: SequenceId


@dataclass(frozen=True, slots=True)
class Keep:
    """Store a copy of the first `tokens` positions of row `row` of the caches of `lane` as `prefix`."""

    lane: SequenceId
    row: int
    prefix: SequenceId
    tokens: int


@dataclass(frozen=True, slots=True)
class Reuse:
    """Begin `lane` with a copy of the first `tokens` positions of `prefix`."""

    lane: SequenceId
    prefix: SequenceId
    tokens: int


@dataclass(frozen=True, slots=True)
class Take:
    """Begin `lane` with `prefix` itself, which then is none any more. The sequence keeps the number of the prefix."""

    lane: SequenceId
    prefix: SequenceId


@dataclass(frozen=True, slots=True)
class Forget:
    """Free `prefix`."""

    prefix: SequenceId


@dataclass(frozen=True, slots=True)
class Back:
    """Take back the last `tokens` tokens of `lane`, which were guesses."""

    lane: SequenceId
    tokens: int


@dataclass(frozen=True, slots=True)
class Store:
    """Keep the whole blocks of a sequence, which the caches have after this frame, on the disk, too. Changes no cache."""

    number: SequenceId
    chain: bytes
    """Their names: see node.kv.blocks."""
    state: bool = False
    """Also what the caches that have no blocks are now, before the step: the sequence is at the end of the last block."""


CacheOp = Open | Merge | Filter | Drop | Keep | Reuse | Take | Forget | Back | Store


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that a stage reports to the driver; `code` is that of the error's class."""

    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class NonFiniteRow:
    """A row of a step, or in one with guesses a token, whose hidden states stopped being finite in the layers [start, end)."""

    row: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Held:
    """KV of the first `tokens` of a sequence, kept from an earlier ring."""

    number: SequenceId
    """Number of the prefix, or of the lane in which the sequence began. No other sequence of any ring has it."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Restore:
    """KV that is on disks, of the first `tokens` of a sequence: each stage makes a prefix of what it has of them."""

    number: SequenceId
    """Of the prefix to be made."""
    tokens: int
    """Those that all stages so far have, or may still find: whole blocks, and 0 if there is no prefix."""
    least: int
    """Fewer are of no use."""
    chain: bytes
    """The names of the blocks, see node.kv.blocks; empty if the stages were asked before."""
    seconds: float
    """Time that each stage may take: that in which the tokens could be computed."""
    pending: bool = False
    """One of the stages so far is still looking."""
    longest: int = 0
    """The most tokens that one of the stages so far has."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message between neighbours of a ring: operations first, then at most one step of one lane."""

    ring: str
    fence: Fence
    seq: int
    """Counts the ring's frames from 0; the same number all the way round."""
    ops: tuple[CacheOp, ...] = ()
    lane: SequenceId | None = None
    """The lane to step; None for a frame of operations only."""
    tensors: tuple[Tensor, ...] = ()
    """Hidden states [rows, length, width] first, then further tensors that the architecture carries between layers."""
    tokens: Tensor | None = None
    """int32 [rows, length]; only for architectures whose layers read them."""
    sampled: bool = False
    """The driver samples. Only the hidden states of each row's last token come back, and of those before it that are
    followed by guesses.
    """
    every: bool = False
    """The driver needs the hidden states of every token. With neither flag the frame comes back without tensors."""
    lengths: tuple[int, ...] = ()
    """Valid tokens of each row of a right-padded prefill; empty when all rows are full."""
    shifts: tuple[int, ...] = ()
    """Of each row: how far the positions of its tokens are from their numbers; empty where they are equal. See node.core.axes."""
    spans: tuple[Span, ...] = ()
    """Of the only row's tokens, in a step of a prompt with pictures."""
    unverified: int = 0
    """So many of the lane's last tokens, those of this step included, may still be taken back. Of the tokens that a frame
    carries to another node, only guesses may.
    """
    failure: Failure | None = None
    faults: tuple[NonFiniteRow, ...] = ()
    """For each row that is not finite, the first stage after which it was not; the error names its layers."""
    held: tuple[Held, ...] = ()
    """In a ring's first frame: KV of earlier rings that all stages so far have. Each stage removes the sequences that
    it does not have, makes prefixes of the others, and frees its remaining old KV. The driver gets those that all
    stages have."""
    restore: Restore | None = None
    """KV that the stages are asked to take from their disks. A frame that has it has no step. A stage of an earlier version drops
    it, and so has nothing.
    """
