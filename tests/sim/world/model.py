"""An exact model in place of MLX.

A layer's key of a position is a hash of the layer, its input and its keys of all positions before. The next token is a
hash of the last layer's output. So any KV that is lost, stale, doubled or of another session changes the answer.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from node.core.axes import Axes
from node.core.evaluation import ChunkRequest
from node.core.frames import Back, CacheOp, Drop, Filter, Forget, Frame, Held, Keep, Merge, Open, Reuse, Store, Take
from node.core.generation import GenerateRequest, Sampling
from node.core.models import KvCost, ModelSpec, ModelVersion
from node.core.pictures import Picture
from node.engine.compute import Compute
from node.engine.draft import DraftFailed
from node.engine.sampling import Draw, Sampled
from node.engine.speed import Measured
from node.engine.stage import Weight
from node.engine.verdict import Following, StepFailed, Verdict
from node.kv.blocks import names_of
from tests.sim.world.disk import BLOCK, as_keys, as_tensor

if TYPE_CHECKING:
    from node.engine.faults import Faults
    from tests.sim.world.machine import Process

LAYERS = 4
MODEL = "exact"
VOCABULARY = 4096
PLACES = 24
"""Of each picture."""
MB = 2**20
SPEC = ModelSpec(
    version=ModelVersion(MODEL),
    layer_bytes=(100 * MB,) * LAYERS,
    ends_bytes=50 * MB,
    kv=(KvCost(1000),) * LAYERS,
    cuts=(1, 2, 3),
    max_context=512,
)
DRAFT = ModelSpec(
    version=ModelVersion("draft"),
    layer_bytes=(MB,) * (LAYERS + 1),
    ends_bytes=MB,
    kv=(KvCost(10),) * (LAYERS + 1),
    cuts=(),
    max_context=256,
)

Row = list[list[int]]
"""Keys by layer and position."""


def embed(token: int) -> int:
    return hash((token, 101))


def extend(layer: int, keys: list[int], states: Sequence[int]) -> list[int]:
    """Run one layer on new positions of one sequence; return the input of the next layer."""
    out = []
    for state in states:
        key = hash((layer, len(keys), keys[-1] if keys else 0, state))
        keys.append(key)
        out.append(hash((key, layer)))
    return out


def draw(state: int, sampling: Sampling, position: int) -> int:
    if sampling.temperature:
        return hash((state, sampling.seed, position)) % VOCABULARY
    return hash((state, 7)) % VOCABULARY


def last_states(tokens: Sequence[int]) -> list[int]:
    """What the last layer gives at each position."""
    states = [embed(token) for token in tokens]
    for layer in range(LAYERS):
        states = extend(layer, [], states)
    return states


def next_token(tokens: Sequence[int], sampling: Sampling, position: int) -> int:
    return draw(last_states(tokens)[-1], sampling, position)


def answer(request: GenerateRequest) -> list[int]:
    """Return the undisturbed answer."""
    rows: Row = [[] for _ in range(LAYERS)]
    tokens, new = list(request.prompt), list(request.prompt)
    while True:
        states = [embed(token) for token in new]
        for layer, keys in enumerate(rows):
            states = extend(layer, keys, states)
        position = len(tokens) - len(request.prompt)
        new = [draw(states[-1], request.sampling, position)]
        tokens += new
        if new[0] in request.stop_tokens or position + 1 >= request.max_tokens:
            return tokens[len(request.prompt) :]


@dataclass(frozen=True, slots=True)
class Hidden:
    """In place of a frame's tensors: for each row, the states of its positions at the input of `layer`."""

    layer: int
    rows: tuple[tuple[int, ...], ...]


class Ahead(NamedTuple):
    """A lane's next step: the token of each row, the one after it, and the states of the last layer."""

    tokens: list[int]
    drawn: list[Sampled]
    states: list[tuple[int, ...]]


class FakeLeftover:
    """KV that rings left behind, by sequence number. A number occurs only once."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.faults = 0
        """No device fails in this world."""

    @property
    def nbytes(self) -> int:
        return 1000 * sum(len(keys) for row in self.rows.values() for keys in row)

    def clear(self) -> None:
        self.rows = {}


class FakeStage:
    """A stage. An invalid operation is a violation."""

    def __init__(self, process: Process, start: int, end: int, loaded: Sequence[FakeStage] = ()) -> None:
        self.process = process
        self.start, self.end = start, end
        self.model = None
        sizes = (DRAFT if end > LAYERS else SPEC).layer_bytes
        held = {name: weight for stage in loaded for name, weight in stage.weights.items()}
        self.weights = {str(k): held.get(str(k)) or Weight(sizes[k], layer=k) for k in range(start, end)}
        self.weight_bytes = sum(sizes[start:end])
        self.plan = SimpleNamespace(kv=SPEC.kv, max_chunk=0)
        self.begins_ahead = (start, end) == (0, LAYERS)
        self.kinds = {"layer": (start, start + 1), **({"head": (0, 0)} if start == 0 else {})}
        self.lanes: dict[int, list[Row]] = {}
        self.numbers: dict[int, list[int]] = {}
        """For each lane, the lanes in which its rows began."""
        self.prefixes: dict[int, Row] = {}
        self.ring = ""
        """The ring whose frames it works on."""
        self.ahead: dict[int, Ahead] = {}
        """Steps of lanes that were begun before the driver asked for them."""
        self.guesses: dict[int, int] = {}
        """Of lanes: tokens that may be taken back."""
        self.states: dict[int, Row] = {}
        """Of sequences whose state is to be on the disk."""
        self.leftover = FakeLeftover()

    @property
    def kv_bytes(self) -> int:
        rows = [row for lane in self.lanes.values() for row in lane] + list(self.prefixes.values())
        return 1000 * sum(len(keys) for row in rows for keys in row)

    def sibling(self) -> FakeStage:
        other = FakeStage(self.process, self.start, self.end)
        other.leftover = self.leftover
        return other

    def clear(self) -> None:
        self.ahead.clear()
        self.guesses.clear()
        self.lanes.clear()
        self.numbers.clear()
        self.prefixes.clear()

    def leave(self) -> None:
        for lane in list(self.ahead):
            self.take_back(lane)
        for lane, rows in self.lanes.items():
            wrong = self.guesses.get(lane, 0)
            self.lanes[lane] = [[keys[: len(keys) - wrong] for keys in row] for row in rows]
        rows = [
            (number, row)
            for lane in self.lanes
            for number, row in zip(self.numbers[lane], self.lanes[lane], strict=True)
        ]
        for number, row in (*rows, *self.prefixes.items()):
            if number in self.leftover.rows:
                self.violated(f"sequence {number} was left twice")
            self.leftover.rows[number] = row
        self.clear()

    def inherit(self, held: Sequence[Held]) -> tuple[Held, ...]:
        if self.lanes or self.prefixes:
            self.violated("a ring inherits that has begun already")
        asked = {each.number: each.tokens for each in held}
        self.prefixes = {
            number: row
            for number, row in self.leftover.rows.items()
            if number in asked and (self.process.world.trimmable or len(row[0]) == asked[number])
        }
        self.leftover.clear()
        return tuple(
            Held(number, min(tokens, len(self.prefixes[number][0])))
            for number, tokens in asked.items()
            if number in self.prefixes
        )

    def claim(self, ring: str) -> None:
        """Called before a frame of a ring is computed."""
        if self.ring not in ("", ring) and not self.process.rings._role(ring):
            self.violated(f"a frame of {ring} is computed, which was replaced by {self.ring}")
        self.ring = ring

    def violated(self, what: str) -> None:
        self.process.world.timeline.violated(f"{self.process.name} layers {self.start}-{self.end}: {what}")

    def apply(self, op: CacheOp) -> None:
        try:
            if not isinstance(op, Store):
                self._apply(op)
            elif op.state:
                self._keep_state(op)
        except (KeyError, IndexError, AssertionError) as error:
            self.violated(f"{op} does not fit: {error!r}")

    def _keep_state(self, op: Store) -> None:
        lane = next(lane for lane, numbers in self.numbers.items() if numbers == [op.number])
        row = self.lanes[lane][0]
        assert len(row[0]) == len(names_of(op.chain)) * BLOCK
        self.states[op.number] = [list(keys) for keys in row]

    def _apply(self, op: CacheOp) -> None:
        match op:
            case Open(lane):
                assert lane not in self.lanes
                self.lanes[lane] = [[[] for _ in range(self.start, self.end)]]
                self.numbers[lane] = [lane]
            case Merge(lane, source):
                self.take_back(lane)
                self.take_back(source)
                self.guesses |= {lane: 0, source: 0}
                self.lanes.setdefault(lane, []).extend(self.lanes.pop(source))
                self.numbers.setdefault(lane, []).extend(self.numbers.pop(source))
            case Filter(lane, rows):
                assert rows
                if not self.process.world.trimmable:
                    self.take_back(lane)
                self.lanes[lane] = [self.lanes[lane][row] for row in rows]
                self.numbers[lane] = [self.numbers[lane][row] for row in rows]
                if ahead := self.ahead.get(lane):
                    self.ahead[lane] = Ahead(*([part[row] for row in rows] for part in ahead))
            case Drop(lane):
                self.guesses.pop(lane, None)
                self.ahead.pop(lane, None)
                del self.lanes[lane]
                del self.numbers[lane]
            case Keep(lane, row, prefix, tokens):
                if not self.process.world.trimmable:
                    self.take_back(lane)
                here = len(self.lanes[lane][row][0]) - (lane in self.ahead)
                assert tokens == here or (self.process.world.trimmable and tokens < here)
                self.prefixes[prefix] = [list(keys[:tokens]) for keys in self.lanes[lane][row]]
            case Take() | Reuse():
                self._begin_with_prefix(op)
            case Forget(prefix):
                self.prefixes.pop(prefix, None)
            case Back():
                self._back(op)
            case _:
                raise AssertionError(op)

    def _back(self, op: Back) -> None:
        if op.lane not in self.lanes and self.process.world.failing_steps:
            raise StepFailed(f"There is no lane {op.lane}.")  # an earlier step failed
        assert 0 < op.tokens <= self.guesses[op.lane]
        self.guesses[op.lane] -= op.tokens
        self.lanes[op.lane] = [[keys[: -op.tokens] for keys in row] for row in self.lanes[op.lane]]

    def _begin_with_prefix(self, op: Take | Reuse) -> None:
        assert op.lane not in self.lanes
        if isinstance(op, Take):
            self.lanes[op.lane], self.numbers[op.lane] = [self.prefixes.pop(op.prefix)], [op.prefix]
            return
        held = self.prefixes[op.prefix]
        assert len(held[0]) == op.tokens or (self.process.world.trimmable and len(held[0]) > op.tokens)
        self.lanes[op.lane], self.numbers[op.lane] = [[keys[: op.tokens] for keys in held]], [op.lane]

    def take_back(self, lane: int) -> None:
        """Undo a step that was begun ahead."""
        if self.ahead.pop(lane, None):
            for row in self.lanes[lane]:
                for keys in row:
                    keys.pop()

    def run(self, lane: int, hidden: Hidden, lengths: Sequence[int] = (), guesses: int = 0) -> Hidden:
        rows = self.lanes.get(lane, [])
        if not rows and self.process.world.failing_steps:
            raise StepFailed(f"There is no lane {lane}.")  # an earlier chunk failed
        if hidden.layer != self.start or len(rows) != len(hidden.rows):
            self.violated(f"{len(hidden.rows)} rows for layer {hidden.layer} came to lane {lane} of {len(rows)}")
        length = max(map(len, hidden.rows))
        if guesses > self.guesses.get(lane, 0) + length:
            self.violated(f"lane {lane} has {self.guesses.get(lane, 0)} guesses, not {guesses - length}")
        if guesses and length > 1 and not (self.process.world.trimmable and len(rows) == 1):
            self.violated(f"a step of {length} tokens in lane {lane} can't be taken back token by token")
        self.guesses[lane] = guesses
        self.process.world.frames += guesses > 0 and length > 1
        self.process.world.computed += sum(map(len, hidden.rows))
        done = []
        before = self.process.world.before
        for row, states, valid in zip(rows, hidden.rows, lengths or [len(r) for r in hidden.rows], strict=False):
            new: Sequence[int] = states[:valid]
            for layer, keys in zip(range(self.start, self.end), row, strict=True):
                at, last = len(keys), keys[-1] if keys else 0
                new = extend(layer, keys, new)
                before.update(zip(keys[at:], [last, *keys[at:]], strict=False))
            done.append(tuple(new))
        return Hidden(self.end, tuple(done))


class Embeddings:
    """Those of one picture, as long as somebody holds them."""


@dataclass(frozen=True)
class FakeSeen:
    """In place of node.engine.tower.Seen."""

    positions: Sequence[int]
    embeddings: Embeddings
    begin: int = 0

    @property
    def end(self) -> int:
        return self.positions[-1] + 1

    def at(self, begin: int) -> FakeSeen:
        return replace(self, begin=begin)


class FakeKv:
    """In place of node.engine.ring_kv.RingKv."""

    def __init__(self, stage: FakeStage) -> None:
        self._stage = stage
        self.trimmable = stage.process.world.trimmable
        self.blocks_of = range(stage.start, stage.end)
        every = frozenset(self.blocks_of)
        self.cut_caches, self.state_caches = (every, frozenset[int]()) if self.trimmable else (frozenset[int](), every)
        self.block_bytes = self.state_bytes = 1 << 20

    @property
    def nbytes(self) -> int:
        return self._stage.kv_bytes

    @property
    def has_sessions(self) -> bool:
        return bool(self._stage.lanes)

    def leave(self) -> None:
        self._stage.leave()

    def free(self) -> None:
        self._stage.clear()

    def inherit(self, held: Sequence[Held]) -> tuple[Held, ...]:
        return self._stage.inherit(held)

    def block(self, number: int, index: int) -> Any:
        row = self._stage.prefixes.get(number) or self._stage.leftover.rows.get(number)
        for lane, numbers in self._stage.numbers.items():
            if number in numbers:
                row = self._stage.lanes[lane][numbers.index(number)]
        begin = index * BLOCK
        if not row or len(row[0]) < begin + BLOCK:
            return None
        pairs = zip(self.blocks_of, row, strict=True)
        return {layer: {"0.keys": as_tensor(keys[begin : begin + BLOCK])} for layer, keys in pairs}

    def state(self, number: int) -> Any:
        row = self._stage.states.pop(number, None)
        pairs = zip(self.blocks_of, row or (), strict=False)
        return {layer: {"0.keys": as_tensor(keys)} for layer, keys in pairs} or None

    def restore(self, prefix: int, blocks: Sequence[Any], state: Any, tokens: int) -> Generator[float, None, int]:
        yield 0.0
        found = [*blocks, state] if state else blocks
        row = [[key for block in found for key in as_keys(block[layer]["0.keys"])] for layer in self.blocks_of]
        if len(row[0]) != tokens:
            self._stage.violated(f"KV of {len(row[0])} tokens comes from a disk for {tokens}")
        world = self._stage.process.world
        if any(world.before.get(key) != last for keys in row for last, key in itertools.pairwise([0, *keys])):
            self._stage.violated("KV comes from a disk that no stage has computed, or not in this order")
        world.restored += sum(map(len, row))
        self._stage.prefixes[prefix] = row
        return len(found)


class FakeRunner:
    """In place of node.engine.runner.Runner."""

    def __init__(self, stage: FakeStage, directory: Any, _faults: Faults) -> None:
        self._stage = stage
        self.kv = FakeKv(stage)
        self._seen = -1
        """The number of the last frame."""
        self._embeddings = WeakSet[Embeddings]()
        self.plan = SimpleNamespace(
            batchable=True,
            pads=True,
            chunked=False,
            vocabulary=VOCABULARY,
            trimmable=stage.process.world.trimmable,
            steps_back=True,
        )

    def apply(self, ops: Sequence[CacheOp]) -> None:
        for op in ops:
            self._stage.apply(op)

    # --- the driver ---

    @property
    def has_mutual_pictures(self) -> bool:
        return self._stage.process.world.mutual

    def axes(self, pictures: Sequence[Picture], prompt: Sequence[int]) -> Axes | None:
        grids = [(1, PLACES) for _ in pictures]
        return Axes(prompt, grids, VOCABULARY, mutual=True) if self._stage.process.world.mutual else None

    def see(
        self, pictures: Sequence[Picture], tokens: Sequence[int], sent: int, longest_s: float
    ) -> Generator[None, None, FakeSeen]:
        of = [number for picture in pictures for number in picture.numbers(PLACES, VOCABULARY)]
        positions = [position for position, token in enumerate(tokens) if token >= VOCABULARY]
        if [tokens[position] for position in positions] != of:
            self._stage.violated("a prompt has other places of pictures than came with it")
        places = next(
            positions[at : at + PLACES] for at in range(0, len(positions), PLACES) if positions[at + PLACES - 1] >= sent
        )
        for _ in range(2):
            if self._embeddings:
                self._stage.violated("the tower works while there are the embeddings of another picture")
            yield
        self._stage.process.world.seen += PLACES
        self._embeddings.add(embeddings := Embeddings())
        return FakeSeen(places, embeddings)

    def begin(self, frame: Frame, tokens: Sequence[Sequence[int]], seen: FakeSeen | None = None) -> Frame:
        self._stage.claim(frame.ring)
        self.apply(frame.ops)
        places = {place for row in tokens for place, token in enumerate(row) if token >= VOCABULARY}
        if places and (
            len(tokens) > 1 or not seen or not {seen.begin + place for place in places} <= set(seen.positions)
        ):
            self._stage.violated(f"{len(places)} places of pictures are computed without them")
        whole = frame.spans and all(span.first + span.tokens == PLACES for span in frame.spans if span.columns)
        if places and self._stage.process.world.mutual and not whole:
            self._stage.violated(f"a step divides a picture whose places see each other: {frame.spans}")
        assert frame.lane is not None
        self._may_fail(frame.lane)
        hidden = Hidden(0, tuple(tuple(map(embed, row)) for row in tokens))
        return replace(frame, tensors=(self._stage.run(frame.lane, hidden, frame.lengths, frame.unverified),))

    def finish(self, frame: Frame, draws: Sequence[Draw], following: Following) -> Verdict:
        assert frame.lane is not None
        guesses, further = following.guesses, following.next_guesses
        drawn, right = self._judge(frame, draws, guesses)
        if right == len(drawn) < len(draws):
            return Verdict(drawn, right, again=True)
        frame = replace(frame, every=False)
        if right == len(draws):
            if not further:
                return Verdict(drawn, right)
            unverified = len(guesses) + len(further)
            return Verdict(drawn, right, self.begin(replace(frame, ops=(), unverified=unverified), [further]), further)
        if not following.chain or any(draw.ends(sampled.token) for draw, sampled in zip(draws, drawn, strict=False)):
            return Verdict(drawn, right)
        wrong = len(guesses) - right
        next_frame = replace(frame, ops=(Back(frame.lane, wrong),) if wrong else (), unverified=0)
        last = drawn[-1:] if guesses else drawn
        return Verdict(drawn, right, self.begin(next_frame, [[sampled.token] for sampled in last]))

    def _judge(self, done: Frame, draws: Sequence[Draw], guesses: Sequence[int]) -> tuple[list[Sampled], int]:
        drawn = self._draw(done, draws)
        if not guesses:
            return drawn, 0
        right = 0
        while right < len(drawn) and list(guesses[right : right + 1]) == [drawn[right].token]:
            if draws[right].ends(drawn[right].token):
                break
            right += 1
        world = self._stage.process.world
        if right and len(draws) > 1 and world.of_guesses.random() < world.spoiling:
            right = world.of_guesses.randrange(min(right, len(draws) - 1))
            world.again += 1
            return drawn[:right], right
        return drawn[: right + 1], right

    def run(
        self,
        frame: Frame,
        tokens: Sequence[Sequence[int]],
        draws: Sequence[Draw],
        _chunks: Sequence[ChunkRequest],
        ahead: int,
        go_on: Callable[[], bool],
        *,
        told: bool,
        seen: FakeSeen | None = None,
    ) -> Generator[Verdict, None, None]:
        """Any number of steps, as the time that they take is limited."""
        assert frame.lane is not None
        self._stage.claim(frame.ring)
        self.apply(frame.ops)
        begun = self._stage.ahead.pop(frame.lane, None)
        if begun and [[token] for token in begun.tokens] != [list(row) for row in tokens]:
            self._stage.violated(f"the step ahead of lane {frame.lane} has {begun.tokens} instead of {tokens}")
        if frame.unverified:
            done = self.begin(replace(frame, ops=()), tokens, seen)
            results, right = self._judge(done, draws, tokens[0][1 : len(draws)])
            again = right == len(results) < len(draws)
            yield Verdict(results, right, again=again, hidden=done.tensors if told else ())
            return

        def hidden(states: Sequence[tuple[int, ...]]) -> tuple[Any, ...]:
            return (Hidden(LAYERS, tuple(states)),) if told else ()

        drawn, states = (begun.drawn, begun.states) if begun else self._step(frame, tokens, draws, seen)
        if not ahead:
            yield Verdict(drawn, hidden=hidden(states))
            return
        following, next_step = draws, replace(frame, ops=(), lengths=())
        for left in reversed(range(self._stage.process.world.rng.randint(1, ahead))):
            sampled = [each.token for each in drawn]
            following = [replace(each, position=each.position + 1) for each in following]
            next_drawn, next_states = self._step(next_step, [[token] for token in sampled], following)
            ends = not left or any(map(lambda draw, token: draw.ends(token), draws, sampled)) or not go_on()
            if ends:
                self._stage.ahead[frame.lane] = Ahead(sampled, next_drawn, next_states)
            yield Verdict(drawn, begun=None if ends else frame, hidden=hidden(states))
            if ends:
                return
            drawn, states = next_drawn, next_states

    def _step(
        self,
        frame: Frame,
        tokens: Sequence[Sequence[int]],
        draws: Sequence[Draw],
        seen: FakeSeen | None = None,
    ) -> tuple[list[Sampled], list[tuple[int, ...]]]:
        done = self.begin(replace(frame, ops=()), tokens, seen)
        hidden: Any = done.tensors[0]
        return self._draw(done, draws) if draws else [], list(hidden.rows)

    def _draw(self, done: Frame, draws: Sequence[Draw]) -> list[Sampled]:
        hidden: Any = done.tensors[0]
        # None is drawn after padding, which is at a step's end.
        one = hidden.rows[0][-1 - done.unverified :][: len(draws)]
        states = [row[-1] for row in hidden.rows] if len(hidden.rows) > 1 else one
        if hidden.layer != LAYERS or len(states) != len(draws):
            self._stage.violated(f"sampling {len(draws)} results of {hidden}")
        pairs = zip(states, draws, strict=True)
        return [Sampled(draw(state, each.sampling, each.position)) for state, each in pairs]

    # --- the other stages ---

    def relay(self, frame: Frame, *, last: bool) -> Frame:
        self._stage.claim(frame.ring)
        if frame.seq != self._seen + 1:
            self._stage.violated(f"frame {frame.seq} is applied after {self._seen}")
        self._seen = frame.seq
        self.apply(frame.ops)
        if frame.lane is None or frame.failure:
            return frame
        self._may_fail(frame.lane)
        hidden = self._stage.run(frame.lane, frame.tensors[0], frame.lengths, frame.unverified)
        if not last:
            return replace(frame, tensors=(hidden,))
        rows = hidden.rows if frame.every else tuple(row[-1 - frame.unverified :] for row in hidden.rows)
        wanted = frame.sampled or frame.every
        return replace(frame, tensors=(Hidden(hidden.layer, rows),) if wanted else (), lengths=())

    def _may_fail(self, lane: int) -> None:
        if self._stage.process.world.steps_fail():
            self._stage.lanes.pop(lane, None)
            self._stage.guesses.pop(lane, None)
            self._stage.numbers.pop(lane, None)
            self._stage.ahead.pop(lane, None)
            raise StepFailed("The step could not be computed.")


class FakeDraft:
    """In place of node.engine.draft.DraftModel: often right, sometimes late, and it may fail."""

    kv_bytes = 0
    max_context = DRAFT.max_context
    observes = False
    beyond = 1
    is_catching_up = True

    def __init__(self, stage: FakeStage, _vocabulary: int) -> None:
        self._stage = stage
        self._world = stage.process.world

    def observe(self, tokens: Sequence[int], end: int, tensors: Sequence[Any], count: int) -> None:
        pass

    def guess(self, tokens: Sequence[int], verified: int, draw: Draw) -> int | None:
        rng = self._world.of_drafts
        if rng.random() < 0.002:
            raise DraftFailed("The draft model failed.")
        if rng.random() < 0.1:
            return None
        self._world.drafted += 1
        assert 0 < verified <= len(tokens) < self.max_context
        right = rng.random() < self._world.draft_rate
        return next_token(tokens, draw.sampling, draw.position) if right else rng.randrange(VOCABULARY)

    def clear(self) -> None:
        pass


class FakeMtp(FakeDraft):
    """In place of node.engine.mtp_guesser.MtpGuesser. States that are not those of the tokens and the positions that they are
    said to be of are a violation: each is a hash of all tokens up to its own.
    """

    observes = True
    beyond = 0
    is_catching_up = False

    def __init__(self, stage: FakeStage, vocabulary: int) -> None:
        super().__init__(stage, vocabulary)
        self._seen: list[int] = []
        """The tokens up to the last one whose state it has."""

    def observe(self, tokens: Sequence[int], end: int, tensors: Sequence[Any], count: int) -> None:
        (hidden,) = tensors
        (row,) = hidden.rows
        states = row[: count or len(row)]
        if not 0 < len(states) <= end <= len(tokens) or tuple(last_states(tokens[:end])[-len(states) :]) != states:
            self._stage.violated(f"states of positions up to {end} are those of others, or of other tokens")
        self._seen = list(tokens[:end])
        self._world.observed += len(states)

    def guess(self, tokens: Sequence[int], verified: int, draw: Draw) -> int | None:
        return super().guess(tokens, verified, draw) if self._seen == list(tokens[: verified - 1]) else None

    def clear(self) -> None:
        self._seen = []


def fake_source(stage: FakeStage, vocabulary: int) -> FakeDraft:
    """In place of a draft model, or of an MTP layer."""
    return (FakeMtp if stage.process.world.observes else FakeDraft)(stage, vocabulary)


def fake_load(
    directory: Any, start: int, end: int, *_: Any, unproven: bool, loaded: Sequence[FakeStage]
) -> Generator[float, None, FakeStage]:
    """In place of node.engine.load.load_stage; `directory` is the process that loads."""
    yield 0.0
    yield 0.5
    directory.world.loads += 1
    return FakeStage(directory, start, end, loaded)


def fake_measure(stage: FakeStage, groups: Any = ()) -> Generator[float, None, Measured]:
    """In place of node.engine.speed.measure, with some noise."""
    yield 0.0
    rate = stage.process.machine.bytes_per_s * stage.process.world.rng.uniform(0.9, 1.0)
    seconds = {count: 1 + 0.1 * count for count in range(1, 6)}
    return Measured(rate, 10 * rate / stage.weight_bytes, 0.0, groups or stage.process.world.groups, seconds)


class FakeCompute(Compute):
    """In place of the compute thread: runs jobs one after the other, each with a duration."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._free_at = 0.0

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loop = self._process.loop
        rng = self._process.world.rng
        loading = "run_pieces" in getattr(fn, "__qualname__", "")
        begin = max(loop.time(), self._free_at)
        self._free_at = begin + (rng.uniform(0.05, 0.5) if loading else rng.uniform(0.001, self._process.world.step_s))
        future: asyncio.Future[Any] = loop.create_future()
        loop.call_at(begin, self._work, future, self._free_at, functools.partial(fn, *args, **kwargs))
        return future

    def queue(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.submit(fn, *args, **kwargs)

    def _work(self, future: asyncio.Future[Any], ends: float, job: Callable[[], Any]) -> None:
        """Run a job, unless it was cancelled before it began. Once begun, it runs to its end."""
        if future.cancelled():
            return
        loop = self._process.loop
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            loop.call_at(ends, lambda failure=error: future.cancelled() or future.set_exception(failure))
        else:
            loop.call_at(ends, lambda: future.cancelled() or future.set_result(result))
