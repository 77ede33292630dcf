"""The caches of a stage: lanes, in which sessions step together, and prefixes, kept for later sessions.

Everything here runs in the compute thread.
"""

import copy
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from node.core.errors import PippinError
from node.core.frames import Back, CacheOp, Drop, Filter, Forget, Held, Keep, Merge, Open, Reuse, SequenceId, Take
from node.engine import caches
from node.engine.plan import Plan
from node.engine.sampling import Drawn

_MAX_CACHES = 4096
"""Maximum of lanes and prefixes. A driver uses some hundreds: one for each session and each prefix."""


Undo = Sequence[Callable[[], object]]
"""Takes a step of one token back in the caches. It refers to no lane: a lane that is dropped must be free at once."""


@dataclass
class Ahead:
    """A lane's next step, begun before the driver has asked for it."""

    tokens: list[int]
    """Its tokens, one for each row."""
    drawn: Drawn
    """Its result."""

    def filter(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.tokens = [self.tokens[row] for row in rows]
        self.drawn.filter(rows)


@dataclass
class CacheLane:
    """Sessions that step together: one row each in every cache."""

    caches: list[Any]
    """Those of this stage's layers, then the shadows."""
    numbers: list[SequenceId]
    """For each row, the number of the lane in which its session began; it stays when the row moves to another lane."""
    positions: list[int] = field(default_factory=lambda: [0])
    """For each row, the tokens that its caches hold."""
    ahead: Ahead | None = None
    """If set, the last of the steps that may be taken back is this one."""
    undos: list[Undo] = field(default_factory=list[Undo])
    """Of the last steps, the last one last: guesses that may still be wrong, or steps that may prove needless."""


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

    def __init__(self, fresh: Callable[[], list[Any]], plan: Plan, where: str) -> None:
        """`fresh` makes empty caches for one session; `where` is the stage's name in errors."""
        self._fresh = fresh
        self._plan = plan
        self._where = where
        self._lanes: dict[SequenceId, CacheLane] = {}
        self._prefixes: dict[SequenceId, CacheLane] = {}

    def sibling(self) -> "Lanes":
        """Empty lanes and prefixes for another ring of the same layers."""
        return Lanes(self._fresh, self._plan, self._where)

    @property
    def kv_bytes(self) -> int:
        """Bytes of all lanes and prefixes."""
        return _bytes((*self._lanes.values(), *self._prefixes.values()))

    def apply(self, op: CacheOp) -> None:
        """Apply one cache operation. Raises PippinError when it does not fit; the caches are then unchanged."""
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
                self._reuse(lane, prefix, tokens)
            case Take(lane, prefix):
                self._lanes[lane] = self._prefix(prefix)
                del self._prefixes[prefix]
            case Forget(prefix):
                self._prefixes.pop(prefix, None)
            case Back(lane, tokens):
                self._back(lane, tokens)

    def clear(self) -> None:
        """Free all lanes and prefixes, and MLX's buffers."""
        self._lanes.clear()
        self._prefixes.clear()
        mx.clear_cache()

    def leave(self, leftover: LeftoverKv) -> None:
        """Move all caches to `leftover`, where the next ring of these layers finds them."""
        for lane in self._lanes.values():
            # This stage may not have heard yet which of its guesses were wrong.
            _step_back(lane, len(lane.undos))
        leftover.prefixes |= self._prefixes
        leftover.lanes += self._lanes.values()
        self._prefixes, self._lanes = {}, {}
        leftover.nbytes = _bytes((*leftover.lanes, *leftover.prefixes.values()))

    def inherit(self, leftover: LeftoverKv, held: Sequence[Held]) -> tuple[Held, ...]:
        """Make prefixes of the sequences in `held` that earlier rings left in `leftover`, and free the rest of `leftover`.

        Returns the sequences that this stage has, each with at most the tokens that it has.
        """
        wanted = {each.number for each in held}
        self._prefixes |= {number: lane for number, lane in leftover.prefixes.items() if number in wanted}
        while leftover.lanes:
            self._split(leftover.lanes.pop(), wanted)
        leftover.clear()
        mx.clear_cache()
        return tuple(here for each in held if (here := self._available(each)))

    def _split(self, lane: CacheLane, wanted: Container[SequenceId]) -> None:
        """Make prefixes of the wanted rows, one cache after the other: all at once would need twice the memory."""
        rows = [row for row, name in enumerate(lane.numbers) if name in wanted]
        parts = [CacheLane(self._fresh(), [lane.numbers[row]], [lane.positions[row]]) for row in rows]
        while lane.caches:
            cache, entry = lane.caches.pop(), len(lane.caches)
            for row, part in zip(rows, parts, strict=True):
                part.caches[entry] = part.caches[entry] if cache.empty() else caches.single(cache, row)
            mx.eval(caches.states(part.caches[entry] for part in parts))
            del cache
            mx.clear_cache()
        self._prefixes |= {part.numbers[0]: part for part in parts}

    def _available(self, asked: Held) -> Held | None:
        kept = self._prefixes.get(asked.number)
        tokens = min(kept.positions[0], asked.tokens) if kept else 0
        if kept and tokens and (self._plan.trimmable or kept.positions[0] == asked.tokens):
            return Held(asked.number, tokens)
        self._prefixes.pop(asked.number, None)
        return None

    def lane(self, number: SequenceId) -> CacheLane:
        """Raises PippinError when there is no lane of this number."""
        if number not in self._lanes:
            raise PippinError(f"There is no lane {number} on {self._where}.")
        return self._lanes[number]

    def pop_ahead(self, number: SequenceId, tokens: Sequence[Sequence[int]]) -> Drawn | None:
        """The result of the lane's step with these tokens, a row for each session, if that step has begun.

        If another one has begun, it is taken back. Raises PippinError when there is no lane of this number.
        """
        lane = self.lane(number)
        if lane.ahead and [[token] for token in lane.ahead.tokens] == [list(row) for row in tokens]:
            ahead, lane.ahead = lane.ahead, None
            lane.undos.clear()
            return ahead.drawn
        self._take_back(lane)
        return None

    def _take_back(self, lane: CacheLane) -> None:
        """Take back the step that was begun ahead, if there is one."""
        if lane.ahead:
            _step_back(lane)

    def begin_step(self, number: SequenceId, unverified: int) -> None:
        """A step of the lane begins. `unverified`: see Frame.unverified. Raises PippinError if it does not fit."""
        lane = self.lane(number)
        if not 0 <= unverified <= len(lane.undos) + 1:
            raise PippinError(f"Lane {number} has {len(lane.undos)} guesses, not {unverified - 1} that may be wrong.")
        del lane.undos[: len(lane.undos) + 1 - unverified]
        if unverified:
            lane.undos.append([each for cache in lane.caches for each in caches.begin_step_back(cache)])

    def need(self, number: SequenceId) -> None:
        """All steps of the lane are needed: none will be taken back."""
        self.lane(number).undos.clear()

    def _back(self, number: SequenceId, tokens: int) -> None:
        lane = self.lane(number)
        if not 0 < tokens <= len(lane.undos):
            raise PippinError(f"Lane {number} has {len(lane.undos)} guesses, of which {tokens} can't be taken back.")
        _step_back(lane, tokens)

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
            self._take_back(each)
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
            self._take_back(lane)
        if len(lane.positions) > 1:
            for cache in lane.caches:
                cache.filter(list(rows))
        lane.numbers = [lane.numbers[row] for row in rows]
        lane.positions = [lane.positions[row] for row in rows]
        if lane.ahead:
            lane.ahead.filter(rows)

    def trim(self, number: SequenceId, tokens: int) -> None:
        """Take the lane's last tokens back, guesses or not. Raises PippinError if its caches can't go back."""
        lane = self.lane(number)
        lane.undos.clear()
        self._trim(lane, tokens)

    def _trim(self, lane: CacheLane, tokens: int) -> None:
        if tokens == 0:
            return
        if not 0 < tokens <= min(lane.positions):
            raise PippinError(f"{tokens} tokens cannot be trimmed from {min(lane.positions)}.")
        if not all(cache.is_trimmable() for cache in lane.caches if not cache.empty()):
            raise PippinError(f"A cache of {self._plan.model_type} cannot go back {tokens} tokens.")
        for cache in lane.caches:
            if not cache.empty() and cache.trim(tokens) != tokens:
                raise PippinError(f"A cache of {self._plan.model_type} did not go back {tokens} tokens.")
        lane.positions = [position - tokens for position in lane.positions]

    def _keep(self, number: SequenceId, row: int, prefix: SequenceId, tokens: int) -> None:
        lane = self.lane(number)
        if not 0 <= row < len(lane.positions):
            raise PippinError(f"Lane {number} has no row {row}: it has {len(lane.positions)}.")
        if not self._plan.trimmable:
            self._take_back(lane)
        fresh = self._fresh()  # in place of empty caches, of which mlx-lm can't take a row
        kept = [
            new if cache.empty() else caches.single(cache, row) for cache, new in zip(lane.caches, fresh, strict=True)
        ]
        copied = CacheLane(kept, [prefix], [lane.positions[row]])
        self._trim(copied, 1 if lane.ahead else 0)
        self._prefixes[prefix] = self._first(copied, tokens)

    def _reuse(self, number: SequenceId, prefix: SequenceId, tokens: int) -> None:
        lane = self._first(copy.deepcopy(self._prefix(prefix)), tokens)
        lane.numbers = [number]
        self._lanes[number] = lane

    def _first(self, lane: CacheLane, tokens: int) -> CacheLane:
        """Limit a lane that is a copy to its first tokens. Evaluates one cache after the other: whole copies of all
        might need more memory than there is.
        """
        if tokens != lane.positions[0]:
            self._trim(lane, lane.positions[0] - tokens)
            for cache in lane.caches:
                if not cache.empty():
                    caches.cut(cache)
        for cache in lane.caches:
            mx.eval(caches.states([cache]))
        return lane

    def _prefix(self, prefix: SequenceId) -> CacheLane:
        if prefix not in self._prefixes:
            raise PippinError(f"There is no prefix {prefix} on {self._where}.")
        return self._prefixes[prefix]


def _step_back(lane: CacheLane, steps: int = 1) -> None:
    for _ in range(steps):
        for each in lane.undos.pop():
            each()
    lane.positions = [position - steps for position in lane.positions]
    lane.ahead = None


def _bytes(lanes: Iterable[CacheLane]) -> int:
    return sum(caches.total_bytes(lane.caches) for lane in lanes)
