"""The caches of a stage: lanes, in which sessions step together, and prefixes, kept for later sessions.

Everything here runs in the compute thread.
"""

import copy
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from node.core.errors import PippinError
from node.core.frames import (
    Back,
    CacheOp,
    Drop,
    Filter,
    Forget,
    Held,
    Keep,
    Merge,
    Open,
    Reuse,
    SequenceId,
    Store,
    Take,
)
from node.core.lru_cache import keep
from node.engine import caches
from node.engine.caches import Undo
from node.engine.kv_blocks import State, state_of
from node.engine.plan import Plan
from node.engine.sampling import Drawn
from node.kv.blocks import BLOCK, NAME_BYTES

_MAX_CACHES = 4096
"""Maximum of lanes and prefixes. A driver uses some hundreds: one for each session and each prefix."""
_MAX_STATES = 8
"""That wait to be copied; each may have megabytes. Those that have waited longest are not stored."""


@dataclass
class CacheLane:
    """Sessions that step together: one row each in every cache."""

    caches: list[Any]
    """Those of this stage's layers, then the shadows."""
    numbers: list[SequenceId]
    """For each row, the number of the lane in which its session began; it stays when the row moves to another lane."""
    positions: list[int] = field(default_factory=lambda: [0])
    """For each row, the tokens that its caches hold."""
    ahead: Drawn | None = None
    """If set, the last of the tokens that may be taken back is a step that has begun before the driver asked for it; this is
    its result.
    """
    undos: list[Undo] = field(default_factory=list[Undo])
    """Of the last tokens, the last one last: guesses that may still be wrong, or steps that may prove needless."""

    def back(self, tokens: int) -> None:
        """Take the last tokens back, the step ahead with them."""
        for _ in range(tokens):
            for undo in self.undos.pop():
                undo()
        self.positions = [position - tokens for position in self.positions]
        self.ahead = None

    def only_asked(self) -> None:
        """Take back the step that was begun ahead, if there is one."""
        if self.ahead:
            self.back(1)

    def trim(self, tokens: int) -> None:
        """Take the last tokens back, guesses or not. Raises PippinError if the caches can't go back."""
        if tokens == 0:
            return
        if not 0 < tokens <= min(self.positions):
            raise PippinError(f"{tokens} tokens cannot be trimmed from {min(self.positions)}.")
        filled = [cache for cache in self.caches if not cache.empty()]
        if stuck := [type(cache).__name__ for cache in filled if not cache.is_trimmable()]:
            raise PippinError(f"A {stuck[0]} cannot go back {tokens} tokens.")
        for cache in filled:
            if cache.trim(tokens) != tokens:
                raise PippinError(f"A {type(cache).__name__} did not go back {tokens} tokens.")
        self.positions = [position - tokens for position in self.positions]

    def first(self, tokens: int) -> "CacheLane":
        """Keep only the first tokens of a lane that is a copy. Evaluates one cache after the other: whole copies of all
        might need more memory than there is.
        """
        if tokens != self.positions[0]:
            self.trim(self.positions[0] - tokens)
            caches.cut(self.caches)
        for cache in self.caches:
            mx.eval(caches.states([cache]))
        return self


@dataclass
class LeftoverKv:
    """KV that ended rings left, for the next ring of the same layers."""

    lanes: list[CacheLane] = field(default_factory=list["CacheLane"])
    """As they were after their last step."""
    prefixes: dict[SequenceId, CacheLane] = field(default_factory=dict[SequenceId, "CacheLane"])
    nbytes: int = 0
    """May be read in any thread."""
    faults: int = 0
    """Failures of the device before it was left."""

    def clear(self) -> None:
        self.lanes, self.prefixes, self.nbytes = [], {}, 0


class Lanes:
    """The lanes and prefixes of one ring at this stage, changed by the operations in its frames.

    An operation has the same effect on a lane whose next step has begun as on any other.
    """

    def __init__(self, model: Module, wanted: Sequence[int], plan: Plan, where: str) -> None:
        """`wanted`: which caches of the model a lane has here. `where` is the stage's name in errors."""
        self._model = model
        self._wanted = wanted
        self._plan = plan
        self._where = where
        self._lanes: dict[SequenceId, CacheLane] = {}
        self._prefixes: dict[SequenceId, CacheLane] = {}
        self.states: dict[SequenceId, State] = {}
        """Of sequences that are to be on the disk, until they are taken to be copied."""

    def sibling(self) -> "Lanes":
        """Empty lanes and prefixes for another ring of the same layers."""
        return Lanes(self._model, self._wanted, self._plan, self._where)

    def _fresh(self) -> list[Any]:
        """Empty caches for one session."""
        new = caches.empty_caches(self._model, self._plan.kv_bits)
        return [new[k] for k in self._wanted]

    @property
    def kv_bytes(self) -> int:
        """Bytes of all lanes and prefixes."""
        return sum(caches.total_bytes(lane.caches) for lane in (*self._lanes.values(), *self._prefixes.values()))

    @property
    def has_sessions(self) -> bool:
        return bool(self._lanes)

    def apply(self, op: CacheOp) -> None:
        """Apply one cache operation; Store changes none. Raises PippinError when it does not fit; the caches are then unchanged."""
        if isinstance(op, Open | Keep | Reuse) and len(self._lanes) + len(self._prefixes) >= _MAX_CACHES:
            raise PippinError(f"There are {_MAX_CACHES} lanes and prefixes already, the maximum of a stage.")
        match op:
            case Open(lane):
                self._lanes[lane] = CacheLane(self._fresh(), [lane])
            case Merge(lane, source):
                self._merge(lane, source)
            case Filter(lane, rows):
                self._filter(lane, rows)
            case Drop(lane):
                self._lanes.pop(lane, None)
            case Keep(lane, row, prefix, tokens):
                self._keep(lane, row, prefix, tokens)
            case Reuse(lane, prefix, tokens):
                self._lanes[lane] = copy.deepcopy(self._prefix(prefix)).first(tokens)
                self._lanes[lane].numbers = [lane]
            case Take(lane, prefix):
                self._lanes[lane] = self._prefix(prefix)
                del self._prefixes[prefix]
            case Forget(prefix):
                self._prefixes.pop(prefix, None)
            case Back(lane, tokens):
                self._back(lane, tokens)
            case Store(number, chain, True):
                self._keep_state(number, len(chain) // NAME_BYTES * BLOCK)

    def _back(self, number: SequenceId, tokens: int) -> None:
        lane = self.lane(number)
        if not 0 < tokens <= len(lane.undos):
            raise PippinError(f"Lane {number} has {len(lane.undos)} guesses, of which {tokens} can't be taken back.")
        lane.back(tokens)

    def clear(self) -> None:
        """Free all lanes and prefixes, and MLX's buffers."""
        self._lanes.clear()
        self._prefixes.clear()
        mx.clear_cache()

    def leave(self, leftover: LeftoverKv) -> None:
        """Move all caches to `leftover`, where the next ring of these layers finds them."""
        for lane in self._lanes.values():
            # This stage may not have heard yet which of its guesses were wrong.
            lane.back(len(lane.undos))
        leftover.nbytes += self.kv_bytes
        leftover.prefixes |= self._prefixes
        leftover.lanes += self._lanes.values()
        self._prefixes, self._lanes = {}, {}

    def inherit(self, leftover: LeftoverKv, held: Sequence[Held]) -> tuple[Held, ...]:
        """Make prefixes of the sequences in `held` that earlier rings left in `leftover`, and free the rest of it. Returns
        the sequences that this stage has, each with at most the tokens that it has.
        """
        wanted = {each.number for each in held}
        self._prefixes |= {number: lane for number, lane in leftover.prefixes.items() if number in wanted}
        while leftover.lanes:
            self._split(leftover.lanes.pop(), wanted)
        leftover.clear()
        mx.clear_cache()
        here = list[Held]()
        for asked in held:
            kept = self._prefixes.get(asked.number)
            tokens = min(kept.positions[0], asked.tokens) if kept else 0
            if kept and tokens and (self._plan.trimmable or kept.positions[0] == asked.tokens):
                here.append(Held(asked.number, tokens))
            else:
                self._prefixes.pop(asked.number, None)
        return tuple(here)

    def _split(self, lane: CacheLane, wanted: Container[SequenceId]) -> None:
        """Make prefixes of the wanted rows, one cache after the other: all at once would need twice the memory."""
        rows = [row for row, name in enumerate(lane.numbers) if name in wanted]
        parts = [CacheLane(self._fresh(), [lane.numbers[row]], [lane.positions[row]]) for row in rows]
        while lane.caches:
            cache, entry = lane.caches.pop(), len(lane.caches)
            for row, part in zip(rows, parts, strict=True):
                if not cache.empty():
                    part.caches[entry] = caches.single(cache, row)
            mx.eval(caches.states(part.caches[entry] for part in parts))
            del cache
            mx.clear_cache()
        self._prefixes |= {part.numbers[0]: part for part in parts}

    def lane(self, number: SequenceId) -> CacheLane:
        """Raises PippinError when there is no lane of this number."""
        if number not in self._lanes:
            raise PippinError(f"There is no lane {number} on {self._where}.")
        return self._lanes[number]

    def pop_ahead(self, number: SequenceId, tokens: Sequence[Sequence[int]]) -> Drawn | None:
        """The result of the lane's step with these tokens, a row for each session, if that step has begun. If another one
        has begun, it is taken back. Raises PippinError when there is no lane of this number.
        """
        lane = self.lane(number)
        drawn = lane.ahead
        if drawn and [[token] for token in drawn.after] == [list(row) for row in tokens]:
            lane.ahead = None
            lane.undos.clear()
            return drawn
        lane.only_asked()
        return None

    def begin_step(self, number: SequenceId, unverified: int, length: int) -> None:
        """A step of the lane begins, of `length` tokens. `unverified`: see Frame.unverified. Raises PippinError if it does not
        fit.
        """
        lane = self.lane(number)
        if unverified and length > 1 and not self._plan.trimmable:
            raise PippinError(f"A guess of a {self._plan.model_type} model has one token, not {length}.")
        if not 0 <= unverified <= len(lane.undos) + length:
            before = unverified - length
            raise PippinError(f"Lane {number} has {len(lane.undos)} guesses, not {before} that may be wrong.")
        new = min(unverified, length)
        del lane.undos[: len(lane.undos) + new - unverified]
        lane.undos += [caches.begin_step_back(lane.caches) for _ in range(new)]

    def _merge(self, number: SequenceId, source: SequenceId) -> None:
        added = self.lane(source)
        if number == source:
            raise PippinError(f"Lane {number} cannot be merged with itself.")
        if number not in self._lanes:
            self._lanes[number] = self._lanes.pop(source)
            return
        if not self._plan.batchable:
            raise PippinError(f"Sessions of {self._plan.model_type} cannot share a lane.")
        lane = self._lanes[number]
        for each in (lane, added):
            each.only_asked()
            each.undos.clear()  # of guesses that were right: the driver changes no lane before it has verified them
        lane.caches = [caches.batched(cache) for cache in lane.caches]
        for cache, other in zip(lane.caches, added.caches, strict=True):
            cache.extend(caches.batched(other))
        mx.eval(caches.states(lane.caches))  # otherwise the copies of several merges would exist at once
        lane.numbers += added.numbers
        lane.positions += added.positions
        del self._lanes[source]

    def _filter(self, number: SequenceId, rows: Sequence[int]) -> None:
        lane = self.lane(number)
        if not rows or not all(0 <= row < len(lane.positions) for row in rows):
            raise PippinError(f"Lane {number} has no rows {list(rows)}: it has {len(lane.positions)}.")
        if not self._plan.trimmable:
            lane.only_asked()
        if len(lane.positions) > 1:
            for cache in lane.caches:
                cache.filter(list(rows))
        lane.numbers = [lane.numbers[row] for row in rows]
        lane.positions = [lane.positions[row] for row in rows]
        if lane.ahead:
            lane.ahead.filter(rows)

    def _keep(self, number: SequenceId, row: int, prefix: SequenceId, tokens: int) -> None:
        lane = self.lane(number)
        if not 0 <= row < len(lane.positions):
            raise PippinError(f"Lane {number} has no row {row}: it has {len(lane.positions)}.")
        if not self._plan.trimmable:
            lane.only_asked()
        copied = CacheLane(self._fresh(), [prefix], [lane.positions[row]])
        for entry, cache in enumerate(lane.caches):
            if not cache.empty():  # mlx-lm can't take a row of an empty one
                copied.caches[entry] = caches.single(cache, row)
        copied.trim(1 if lane.ahead else 0)
        self._prefixes[prefix] = copied.first(tokens)

    def _keep_state(self, number: SequenceId, tokens: int) -> None:
        """Note the state of a prompt's lane, if it has so many tokens."""
        lane = next((lane for lane in self._lanes.values() if lane.numbers == [number]), None)
        if lane and lane.positions == [tokens] and not lane.undos:
            state = state_of(dict(zip(self._wanted, lane.caches, strict=True)))
            if state is not None:
                keep(self.states, number, state, _MAX_STATES)

    def find(self, number: SequenceId, leftover: LeftoverKv) -> tuple[CacheLane, int] | None:
        """Where a sequence is, of this ring or left by an earlier one, and in which row; None if it is nowhere."""
        if kept := self._prefixes.get(number) or leftover.prefixes.get(number):
            return kept, 0
        lanes = (*self._lanes.values(), *leftover.lanes)
        return next(((lane, lane.numbers.index(number)) for lane in lanes if number in lane.numbers), None)

    def add_prefix(self, number: SequenceId, filled: Mapping[int, Any], tokens: int) -> None:
        """Add a prefix of these caches, by their numbers in the model."""
        shadows = self._fresh()[len(filled) :]
        caches.advance_shadows(shadows, 1, tokens)
        self._prefixes[number] = CacheLane([*filled.values(), *shadows], [number], [tokens])

    def _prefix(self, prefix: SequenceId) -> CacheLane:
        if prefix not in self._prefixes:
            raise PippinError(f"There is no prefix {prefix} on {self._where}.")
        return self._prefixes[prefix]
