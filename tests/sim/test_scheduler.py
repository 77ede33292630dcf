"""The scheduler against an exact fake model: each token is a hash of all earlier ones, so stale or lost KV shows."""

import asyncio
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import mlx.core as mx
import pytest

from node.core.errors import Overloaded
from node.core.evaluation import ChunkResult, EvaluateRequest, Score
from node.core.frames import (
    Back,
    CacheOp,
    Drop,
    Filter,
    Forget,
    Frame,
    Held,
    Keep,
    Merge,
    Open,
    Restore,
    Reuse,
    Store,
    Take,
)
from node.core.generation import GenerateRequest, PromptProgress, Sampling
from node.core.models import ModelVersion
from node.core.pictures import Picture
from node.core.rings import Fence
from node.core.row_family import RowFamily
from node.engine.sampling import Sampled
from node.engine.tower import Seen
from node.engine.verdict import Verdict
from node.kv.blocks import chain_of, names_of
from node.ring.admission import LONG_PROMPTS
from node.ring.flight import Step
from node.ring.lane import FIRST_NUMBER
from node.ring.limits import RingLimits
from node.ring.prefill import MIN_CHUNK, STALL_S
from node.ring.prefixes import MAX_PREFIXES, MIN_TOKENS
from node.ring.scheduler import MAX_STEPS, Scheduler
from node.ring.seeing import Seeing
from node.ring.session import SOON, Session
from node.text.constraint import Constraint

Row = tuple[int, ...]
NO_MATCHER: Any = object()
GRID = 8
BLOCK = 4
"""Tokens of a block of KV on disks."""
MIN_STORED = 8
FAMILIES = [
    RowFamily(),
    RowFamily(((1, 1.0), (2, 1.05), (3, 1.15), (4, 1.3))),
    RowFamily(((2, 1.1), (3, 1.2), (5, 1.5))),
    RowFamily(((4, 1.0),)),
]


@dataclass
class Traits:
    """In place of a model's Plan: what its caches allow."""

    batchable: bool = True
    pads: bool = True
    trimmable: bool = True
    steps_back: bool = False
    chunked: bool = False


def next_token(row: Sequence[int]) -> int:
    value = 17
    for token in row:
        value = (value * 1_000_003 + token + 1) % 1_000_000_007
    return value % 5000


def expected(request: GenerateRequest) -> list[int]:
    row = list(request.prompt)
    for _ in range(request.max_tokens):
        row.append(next_token(row))
        if row[-1] in request.stop_tokens:
            break
    return row[len(request.prompt) :]


class FakeStages:
    """All stages at once: rows of tokens instead of KV. Strict: an invalid operation is an error."""

    def __init__(self, *, pads: bool, trimmable: bool) -> None:
        self.lanes: dict[int, list[Row]] = {}
        self.numbers: dict[int, list[int]] = {}
        self.prefixes: dict[int, Row] = {}
        self.pads = pads
        self.trimmable = trimmable
        self.taken = self.shared = 0
        """Prefixes that a session took, and those that it got from another one that had taken them."""
        self.guesses: dict[int, int] = {}
        """Of lanes: tokens that may be taken back."""
        self.disk: dict[str, Row] = {}
        """Blocks by their names, each with all tokens up to its end."""
        self.named: list[Store] = []
        """Of this frame."""
        self.stored_while_running = 0

    def store(self) -> None:
        """A frame is done: what it names goes to the disk, unless it has been freed."""
        for op in self.named:
            lanes = [lane for lane, numbers in self.numbers.items() if op.number in numbers]
            rows = [self.lanes[lane][self.numbers[lane].index(op.number)] for lane in lanes]
            self.stored_while_running += len(rows)
            names = names_of(op.chain)
            for here in rows or [row for number, row in self.prefixes.items() if number == op.number]:
                assert len(here) >= len(names) * BLOCK
                for k, name in enumerate(names, 1):
                    assert self.disk.setdefault(name, here[: k * BLOCK]) == here[: k * BLOCK]
        self.named = []

    def apply(self, op: CacheOp) -> None:
        match op:
            case Open(lane):
                assert lane not in self.lanes
                self.lanes[lane], self.numbers[lane] = [()], [lane]
            case Merge(lane, source):
                self.guesses |= {lane: 0, source: 0}
                self.lanes.setdefault(lane, []).extend(self.lanes.pop(source))
                self.numbers.setdefault(lane, []).extend(self.numbers.pop(source))
            case Filter(lane, rows):
                assert rows
                self.lanes[lane] = [self.lanes[lane][row] for row in rows]
                self.numbers[lane] = [self.numbers[lane][row] for row in rows]
            case Drop(lane):
                del self.lanes[lane], self.numbers[lane]
            case Keep(lane, row, prefix, tokens):
                here = self.lanes[lane][row]
                assert tokens == len(here) or (self.trimmable and tokens < len(here))
                self.prefixes[prefix] = here[:tokens]
            case Store():
                self.named.append(op)
            case Take(lane, prefix):
                assert lane not in self.lanes
                self.lanes[lane], self.numbers[lane] = [self.prefixes.pop(prefix)], [prefix]
                self.taken += 1
                self.shared += prefix > lane  # it was made for this session
            case Reuse(lane, prefix, tokens):
                assert lane not in self.lanes
                held = self.prefixes[prefix]
                assert len(held) == tokens or (self.trimmable and len(held) > tokens)
                self.lanes[lane], self.numbers[lane] = [held[:tokens]], [lane]
            case Forget(prefix):
                self.prefixes.pop(prefix, None)  # this stage may lack KV of an earlier ring
            case Back(lane, tokens):
                assert 0 < tokens <= self.guesses[lane]
                self.lanes[lane] = [self.lanes[lane][0][:-tokens]]
                self.guesses[lane] -= tokens
            case _:
                raise AssertionError(op)

    def restore(self, asked: Restore, most: int, extra: int) -> int:
        """Make a prefix of what is on the disk, of which some stage has `most` blocks, and this one up to so many more."""
        rows = [self.disk.get(name) for name in names_of(asked.chain)]
        found = next((k for k, row in enumerate(rows) if row is None), len(rows))
        if (here := min(found, most + extra)) and (row := rows[here - 1]):
            self.prefixes[asked.number] = row
        return min(found, most) * BLOCK

    def inherit(self, left: Mapping[int, Sequence[int]], behind: Callable[[], int]) -> list[Held]:
        """A ring of the same stages begins. Of each sequence some stage lacks the last `behind()` tokens, or all."""
        for lane, rows in self.lanes.items():
            for number, row in zip(self.numbers[lane], rows, strict=True):
                self.prefixes[number] = row[: len(row) - self.guesses.get(lane, 0)]
        self.lanes, self.numbers, self.guesses = {}, {}, {}
        held = []
        for number, tokens in left.items():
            here = len(self.prefixes.get(number, ())) - behind()
            if here > 0 and (self.trimmable or here == len(tokens)):
                held.append(Held(number, min(here, len(tokens))))
        self.prefixes = {number: self.prefixes.get(number, ()) for number in left}  # this stage has more than others
        return held

    def run(self, step: Step) -> list[Any]:
        """Return each row's next token; for a step of evaluations, the token that follows each token of each row, and for one
        with guesses the one that follows each of its tokens.
        """
        rows = self.lanes[step.lane]
        assert len(rows) == len(step.tokens) == len(step.rows)
        assert all(step.tokens)
        if len(step.rows) > 1 and step.lane >= FIRST_NUMBER:
            assert len(set(map(len, rows))) == 1  # they begin side by side
        assert step.lengths == (() if len(set(map(len, step.tokens))) == 1 else tuple(map(len, step.tokens)))
        assert self.pads or not step.lengths
        assert 0 <= step.unverified <= self.guesses.get(step.lane, 0) + len(step.tokens[0])
        assert not step.guesses or (self.trimmable and len(rows) == 1)
        self.guesses[step.lane] = step.unverified
        before = rows
        self.lanes[step.lane] = [(*row, *tokens) for row, tokens in zip(rows, step.tokens, strict=True)]
        if step.evaluations:
            return [
                [next_token((*row, *tokens[: count + 1])) for count in range(len(tokens))]
                for row, tokens in zip(rows, step.tokens, strict=True)
            ]
        if step.unverified:
            return [next_token((*before[0], *step.tokens[0][: count + 1])) for count in range(len(step.tokens[0]))]
        return [next_token(row) for row in self.lanes[step.lane]]

    @property
    def tokens(self) -> int:
        padded = sum(len(rows) * max(map(len, rows)) for rows in self.lanes.values())
        return padded + sum(map(len, self.prefixes.values()))


def right_ones(step: Step, tokens: Sequence[int], guesses: Sequence[int]) -> int:
    """How many guesses at these tokens are right, up to the one that ends the session."""
    right = 0
    while right < len(tokens) and list(guesses[right : right + 1]) == [tokens[right]]:
        if step.rows[0].session.ends_with(tokens[right]):
            break
        right += 1
    return right


class World:
    """A ring of `stages`. Its frames come back in order, some of them late."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stages = self.random.randint(1, 4)
        self.limits = RingLimits(
            context=self.random.choice([64, 300, 3000]),
            max_sessions=self.random.choice([1, 2, 4, 12]),
            max_queue=self.random.choice([4, 100]),
            max_rows=self.random.choice([1, 3, 8, 16]),
            chunk=self.random.choice([4, 64, 256]),
            weights=random.Random(seed).choice([0, 50, 500, 1 << 20]),
            stored=random.Random(seed).choice([None, ModelVersion("m")]),
        )
        self.family = random.Random(seed).choice(FAMILIES)
        self.trimmable = self.random.random() < 0.7
        self.pads = self.random.random() < 0.7
        self.chunked = random.Random(seed).choice([0, 0, 0, 8]) > 0
        self.batchable = self.random.random() < 0.8
        self.steps_back = self.stages == 1 and random.Random(seed).random() < 0.8
        self.numbers = itertools.count(FIRST_NUMBER)
        self.scheduler = self.new_scheduler()
        self.fake = FakeStages(pads=self.pads, trimmable=self.trimmable)
        self.in_flight: deque[tuple[Step, list[int]]] = deque()
        self.sessions: list[Session] = []
        self.cancelled: set[Session] = set()
        self.of_clients = random.Random(seed)
        self.clients = self.of_clients.choice(["a", "aaab", "abcdef"])
        self.refused = 0
        self.replaced = 0
        self.kept = 0
        """Tokens of running sessions whose KV outlived their ring."""
        self.of_disk = random.Random(seed)
        self.asked: list[Restore] = []
        """Of the disks, which have not answered yet."""
        self.restored = 0
        self.together_restored = 0
        """How often several sessions waited for disks at once."""
        self.cached = 0
        self.together = 0
        """Prompts that shared a step with others."""
        self.ahead = 0
        """Steps with which the next one was begun."""
        self.guessed = self.guessed_right = self.long = 0
        """`long`: steps with several tokens of a session."""
        self.again = 0
        """Steps that were computed again without guesses."""
        self.rate = self.of_clients.choice([0.0, 0.5, 0.9, 1.0])
        """Of tokens that clients predict."""
        self.system = tuple(self.random.randrange(5000) for _ in range(20))

    def new_scheduler(self) -> Scheduler:
        plan = Traits(self.batchable, self.pads, self.trimmable, self.steps_back, self.chunked)
        scheduler = Scheduler(self.limits, plan, self.numbers, self.stages)
        scheduler.keep_to(self.family)
        return scheduler

    def arrive(self) -> None:
        known = self.random.choice(
            [(), self.system, tuple(self.random.choice(self.sessions).tokens) if self.sessions else ()]
        )
        own = self.random.choice([1, 5, 5, 6, self.random.randint(1, 40)])
        prompt = (*known, *(self.random.randrange(5000) for _ in range(own)))
        room = self.limits.context - len(prompt)
        if room < 1:
            return
        stops = frozenset(self.random.sample(range(5000), 60))
        most = min(room, self.random.choice([4, 250]))
        client = self.of_clients.choice(self.clients)
        tokens = self.random.randint(1, most)
        request = GenerateRequest("x", "m", prompt, tokens, stops, Sampling(), client=client)
        predicted = [token if self.of_clients.random() < self.rate else 3 for token in expected(request)]
        session = Session(replace(request, prediction=tuple(predicted)))
        if self.random.random() < 0.2:
            session = Session.of_evaluation(EvaluateRequest("x", "m", prompt, top=0, client=client))
        try:
            replaced = self.scheduler.admission.submit(session)
        except Overloaded:
            self.refused += 1
            return
        self.sessions.append(session)
        if replaced:
            assert not replaced.generated
            self.scheduler.admission.finish(replaced, keep=False)
            self.sessions.remove(replaced)
            self.replaced += 1

    def send(self) -> bool:
        if self.scheduler.flight.is_full:
            return False
        step = self.scheduler.next()
        self.asked += self.scheduler.admission.restoring.pop_asked()
        self.together_restored += len(self.asked) > 1
        if step is None:
            for op in self.scheduler.admission.pop_ops():
                self.fake.apply(op)
            self.fake.store()
            self.scheduler.flight.wire_is_slow = self.of_clients.random() < 0.3
            step = self.scheduler.guess() if self.stages > 1 else None
            if step is None:
                return False
        for op in step.ops:
            self.fake.apply(op)
        self.check_prompts(step)
        self.check_ahead(step)
        self.check_tokens(step)
        self.in_flight.append((step, self.fake.run(step)))
        self.fake.store()
        return True

    def advance(self) -> None:
        self.send()
        if self.asked and self.of_disk.random() < 0.3:
            self.answer()
        self.check_memory()

    def answer(self) -> None:
        """One of those that wait for disks gets what is there: all, some or nothing."""
        asked = self.asked.pop(self.of_disk.randrange(len(self.asked)))
        most, extra = self.of_disk.choice([0, 1, 3, 1000, 1000]), self.of_disk.choice([0, 2])
        tokens = self.fake.restore(asked, most, extra)
        before = self.scheduler.admission.prefixes.all().keys()
        told = replace(asked, tokens=tokens, longest=len(self.fake.prefixes.get(asked.number, ())))
        self.scheduler.admission.restored(asked, told)
        self.restored += len(self.scheduler.admission.prefixes.all().keys() - before)
        if self.of_disk.random() < 0.1:
            self.fake.disk = {name: row for name, row in self.fake.disk.items() if self.of_disk.random() < 0.8}

    def check_prompts(self, step: Step) -> None:
        if step.lane >= FIRST_NUMBER:
            assert self.chunked or len(step.tokens) * max(map(len, step.tokens)) <= self.limits.chunk
            if self.chunked:
                self.check_division(step)
            assert not any(slot.gone for slot in step.rows)
            if len(step.rows) > 1:
                assert step.samples or len(step.evaluations) == len(step.rows)  # all in one step
                self.together += len(step.rows)

    def check_ahead(self, step: Step) -> None:
        """Steps are begun ahead only where they can be taken back, and where each session has as many, and one more."""
        if step.ahead:
            assert self.steps_back
            assert all(slot.session.generated + step.ahead < slot.session.request.max_tokens for slot in step.rows)
            self.ahead += 1

    def check_tokens(self, step: Step) -> None:
        """A session that is alone in its lane has steps of the ring's family only, as has each step of guesses."""
        if step.samples and step.lane < FIRST_NUMBER:
            allowed = [size for size, _ in self.family.costs] if self.trimmable and len(step.rows) == 1 else [1]
            has_begun = self.stages == 1 and len(step.tokens[0]) == 1  # when there was another session in the lane
            assert has_begun or len(step.tokens[0]) in allowed
            self.long += len(step.tokens[0]) > 1

    def check_division(self, step: Step) -> None:
        """Whatever happened before, a prompt is divided in the same way, and generated tokens are run one by one."""
        for slot, row, tokens in zip(step.rows, self.fake.lanes[step.lane], step.tokens, strict=True):
            prompt = len(slot.session.request.prompt)
            assert not slot.session.cached_tokens
            if len(row) < prompt:
                assert len(row) % GRID == 0
                assert len(tokens) == min(GRID, prompt - len(row))
            else:
                assert len(tokens) == 1

    def land(self) -> None:
        step, tokens = self.in_flight.popleft()
        following = self.scheduler.returned(step, 0.0)
        if following is None:
            return
        if step.evaluations:
            self.land_evaluations(step, tokens)
            return
        guesses, further = following.guesses, following.next_guesses
        right = right_ones(step, tokens, guesses)
        tokens = tokens[: right + 1] if step.unverified or guesses else tokens
        last = tokens[-1:] if step.unverified or guesses else tokens
        goes_on = not any(slot.session.ends_with(token) for slot, token in zip(step.rows, last, strict=True))
        follows = right > len(step.guesses)
        begins = bool(further) if follows else following.chain and goes_on
        if (begins or right) and self.random.random() < 0.1:
            self.cancel()  # while the next step is being computed
        if begins and not follows and len(guesses) > right:
            self.fake.apply(Back(step.lane, len(guesses) - right))
        if right and step.guesses and self.of_clients.random() < 0.05:
            self.land_again(step, tokens, min(right, len(step.guesses)))
            return
        drawn = [Sampled(token) for token in tokens] if step.samples else []
        frame = Frame("r", Fence(1, 1), 0) if begins else None
        verdict = Verdict(drawn, right, frame, further if begins and follows else ())
        next_step = self.scheduler.landed(step, verdict, self.random.choice([0.001, 0.01, 0.02, 1.0]))
        assert (next_step is not None) == begins
        if next_step:
            run = replace(next_step, tokens=next_step.tokens or tuple((token,) for token in last))
            self.check_tokens(run)
            self.in_flight.append((next_step, self.fake.run(run)))

    def land_again(self, step: Step, tokens: Sequence[int], right: int) -> None:
        """What follows some token before the last guess is not finite."""
        good = self.of_clients.randrange(right)
        if self.of_clients.random() < 0.1:
            self.cancel()
        verdict = Verdict([Sampled(token) for token in tokens[:good]], good, again=True)
        assert self.scheduler.landed(step, verdict, 0.01) is None
        self.again += 1

    def land_evaluations(self, step: Step, followers: list[list[int]]) -> None:
        results = []
        for evaluation, tokens in zip(step.evaluations, followers, strict=True):
            scores = [Score(float(token)) for token in tokens[: len(evaluation.request(len(tokens)).following)]]
            results.append(ChunkResult(len(tokens), scores))
        self.scheduler.landed(step, Verdict(results), 0.01)

    def cancel(self) -> None:
        running = [session for session in self.sessions if not session.finished]
        if running:
            session = self.random.choice(running)
            self.cancelled.add(session)
            self.scheduler.admission.finish(session, keep=self.random.random() < 0.5)

    def lose_ring(self) -> None:
        """Replace the ring. The requests that it served are sent again with the tokens that they have received."""
        self.in_flight.clear()
        self.asked.clear()
        self.count_guesses()
        left, asking = self.scheduler.admission.sequences(), self.scheduler.admission.sessions()
        self.scheduler = self.new_scheduler()
        held = self.fake.inherit(left, lambda: self.random.choice([0, 0, 1, 1, 7, 10_000]))
        assert all(self.fake.prefixes[each.number][: each.tokens] for each in held)
        own = {tuple(session.tokens) for session in asking}
        self.kept += sum(
            each.tokens for each in held if any(one[: each.tokens] == left[each.number][: each.tokens] for one in own)
        )
        self.scheduler.admission.inherit(left, held)
        for session in asking:
            session.slot = None
            session.request = replace(session.request, resume=tuple(session.tokens[len(session.request.prompt) :]))
            with suppress(Overloaded):
                self.scheduler.admission.submit(session)
                continue
            self.cancelled.add(session)
            session.finished = True

    def count_guesses(self) -> None:
        self.guessed += self.scheduler.guessed
        self.guessed_right += self.scheduler.guessed_right

    def check_memory(self) -> None:
        budget = self.limits.context * self.limits.max_sessions
        assert self.scheduler.admission.tokens_used <= budget
        # Stages free a session together with its lane's next step.
        assert self.fake.tokens <= budget + self.limits.context
        if not self.in_flight and self.scheduler.admission.running == 0:
            assert not self.fake.lanes

    def run_to_end(self) -> None:
        for _ in range(200_000):
            while self.send():
                pass
            if self.in_flight:
                self.land()
            elif self.asked:
                self.answer()
            elif not len(self.scheduler.admission.waiting) and not self.scheduler.admission.running:
                return
        raise AssertionError("a request never ended")


def run(seed: int) -> World:
    blocks = (mock.patch(f"node.{room}.BLOCK", BLOCK) for room in ("kv.blocks", "ring.admission", "ring.restoring"))
    stored = (mock.patch(f"node.ring.{part}.MIN_STORED", MIN_STORED) for part in ("admission", "restoring"))
    with ExitStack() as patches:
        for patch in (*blocks, *stored):
            patches.enter_context(patch)
        return run_patched(seed)


def run_patched(seed: int) -> World:
    long_prefix = mock.patch("node.ring.admission.LONG_PREFIX", 20 if seed % 2 else 200)
    worth_sharing = mock.patch("node.ring.sharing.WORTH_SHARING", MIN_TOKENS if seed % 2 else 30)
    with long_prefix, worth_sharing, mock.patch("node.ring.prefill.GRID", GRID):
        return live(World(seed))


def live(world: World) -> World:
    for _ in range(world.random.randint(50, 300)):
        match world.random.random():
            case x if x < 0.12:
                for _ in range(world.random.choice([1, 1, 12])):
                    world.arrive()
            case x if x < 0.14:
                world.cancel()
            case x if x < 0.145:
                world.lose_ring()
            case x if x < 0.6:
                world.advance()
            case _:
                if world.in_flight:
                    world.land()
    world.run_to_end()
    world.check_memory()
    world.count_guesses()
    assert world.fake.prefixes.keys() == world.scheduler.admission.prefixes.all().keys()
    for session in world.sessions:
        told = [session.events.get_nowait() for _ in range(session.events.qsize())]
        events = [event for event in told if not isinstance(event, PromptProgress)]
        assert all(0 < each.done < each.total for each in told if isinstance(each, PromptProgress))
        if session.evaluate_request:
            scores = [score.logprob for event in events for score in event.scores]
            prompt = session.request.prompt
            assert session in world.cancelled or scores == [next_token(prompt[:n]) for n in range(1, len(prompt))]
            continue
        tokens = [event.token for event in events]
        world.cached += sum(event.cached_tokens for event in events)
        assert [event.position for event in events] == list(range(len(events)))
        if session in world.cancelled:
            assert tokens == expected(session.request)[: len(tokens)]
        else:
            assert tokens == expected(session.request)
            assert events[-1].finish
    return world


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 5))])
def test_every_history_gives_each_session_its_own_tokens(block: int) -> None:
    worlds = []
    for seed in range(block * 50, block * 50 + 50):
        try:
            worlds.append(run(seed))
        except (AssertionError, KeyError, IndexError, ValueError):
            pytest.fail(f"seed {seed}; replay it with: python {__file__} {seed}")
    assert sum(world.cached for world in worlds) > 0  # prefixes were really reused
    assert sum(world.fake.taken for world in worlds) > 0
    assert block or sum(world.fake.shared for world in worlds) > 0
    assert sum(world.restored for world in worlds) > 10
    assert sum(world.fake.stored_while_running for world in worlds) > 500
    assert sum(world.together_restored for world in worlds) > 10
    assert sum(world.kept for world in worlds) > 500
    assert sum(world.together for world in worlds) > 50
    assert sum(world.ahead for world in worlds) > 50
    assert sum(world.replaced for world in worlds) > 0
    right = sum(world.guessed_right for world in worlds)
    assert sum(world.long for world in worlds) > 500
    assert sum(world.again for world in worlds) > 20
    assert 200 < right < sum(world.guessed for world in worlds) - 50
    assert sum(len(world.sessions) for world in worlds) > 500


def limits(**changed: float) -> RingLimits:
    values = {"context": 1000, "max_sessions": 4, "max_queue": 10_000, "max_rows": 8, "chunk": 10} | changed
    return RingLimits(**values)


def scheduler_of(given: RingLimits, *, stages: int, **options: bool) -> Scheduler:
    """One of a model whose sessions share lanes, and whose caches can go back."""
    return Scheduler(given, Traits(**options), itertools.count(FIRST_NUMBER), stages)


def request(prompt: int, max_tokens: int, first: int = 0, client: str = "") -> Session:
    tokens = tuple((first + n) % 5000 for n in range(prompt))
    return Session(GenerateRequest("x", "m", tokens, max_tokens, frozenset(), Sampling(), client=client))


def turn(scheduler: Scheduler) -> Step:
    """One step of a ring of one node."""
    step = scheduler.next()
    assert step
    for slot in step.rows if step.samples else ():
        if slot.session.accept(1).finish:
            scheduler.admission.finish(slot.session, keep=False)
    scheduler.landed(step, Verdict(), 0.01)
    return step


def test_a_long_prompt_delays_running_sessions_by_one_chunk() -> None:
    scheduler = scheduler_of(limits(), stages=1)
    running = request(5, 500)
    scheduler.admission.submit(running)
    turn(scheduler)
    scheduler.admission.submit(request(300, 5, first=1000))
    steps = [turn(scheduler) for _ in range(60)]
    chunks = [len(step.tokens[0]) > 1 for step in steps]
    assert sum(chunks) == 30
    assert not any(one and other for one, other in itertools.pairwise(chunks))


def with_steps_ahead() -> Scheduler:
    return scheduler_of(limits(), stages=1, steps_back=True)


def test_a_step_begun_ahead_comes_before_the_prompt_that_arrived_meanwhile() -> None:
    """Nothing of it is lost: the prompt's session joins after a step with which no other was begun."""
    scheduler = with_steps_ahead()
    scheduler.admission.submit(request(5, 500))
    assert [bool(turn(scheduler).ahead) for _ in range(4)] == [False, True, True, True]
    scheduler.admission.submit(request(15, 7, first=1000))
    steps = [turn(scheduler) for _ in range(12)]
    assert [bool(step.ahead) for step in steps] == [False] * 4 + [True] * 5 + [False] + [True] * 2
    assert [len(step.tokens[0]) for step in steps[:5]] == [1, 10, 1, 5, 1]
    assert [len(step.rows) for step in steps[4:]] == [2] * 6 + [1] * 2, "the second session ends at its last token"


@pytest.mark.parametrize(
    ("session", "ahead"),
    [
        (request(5, 3), [0, 1, 0]),
        (request(5, 10), [0, 8, 7]),
        (Session(request(5, 500).request, constraint=Constraint(NO_MATCHER)), [0, MAX_STEPS, MAX_STEPS]),
        (
            Session(replace(request(5, 500).request, sampling=Sampling(repetition_penalty=1.1))),
            [0, MAX_STEPS, MAX_STEPS],
        ),
    ],
)
def test_a_step_is_begun_ahead_if_its_session_has_more_tokens(session: Session, ahead: list[int]) -> None:
    scheduler = with_steps_ahead()
    scheduler.admission.submit(session)
    assert [turn(scheduler).ahead for _ in range(3)] == ahead


@pytest.mark.parametrize(("mark", "ahead"), [(b"", 0), (b"<tool_call>", MAX_STEPS)])
def test_where_guesses_are_of_use_no_step_is_begun_that_a_grammar_may_force(mark: bytes, ahead: int) -> None:
    """Before the mark of a call there is nothing that it may force."""
    scheduler = with_steps_ahead()
    scheduler.filling.family = RowFamily(((1, 1.0), (2, 3.0)))
    session = Session(request(5, 500).request, constraint=Constraint(NO_MATCHER, mark))
    scheduler.admission.submit(session)
    steps = [turn(scheduler) for _ in range(3)]
    assert [step.ahead for step in steps] == [0, ahead, ahead]
    assert scheduler.has_guesses(steps[-1]) == (not mark)


def test_while_others_wait_each_step_is_a_job() -> None:
    scheduler = scheduler_of(limits(max_rows=1), stages=1, steps_back=True)
    scheduler.admission.submit(request(5, 500))
    assert [turn(scheduler).ahead for _ in range(2)] == [0, MAX_STEPS]
    scheduler.admission.submit(request(5, 500))
    assert turn(scheduler).ahead == 1


def test_a_ring_begins_no_step_after_a_sessions_last_token() -> None:
    scheduler = scheduler_of(limits(), stages=2)
    scheduler.admission.submit(request(5, 4))
    turn(scheduler)
    chained = []
    for _ in range(3):
        step = scheduler.next()
        assert step
        following = scheduler.returned(step, 0.0)
        assert following
        chained.append(following.chain)
        step.rows[0].session.accept(1)
        scheduler.landed(step, Verdict(), 0.01)
    assert chained == [True, True, False]


def test_a_large_request_is_served_under_a_stream_of_small_ones() -> None:
    scheduler = scheduler_of(limits(max_sessions=1), stages=1)
    for number in range(20):
        scheduler.admission.submit(request(10, 200, first=number))
    large = request(900, 50, first=3000)
    scheduler.admission.submit(large)
    for turns in range(20_000):
        if large.finished:
            break
        if turns % 3 == 0:
            scheduler.admission.submit(request(10, 20, first=turns))
        turn(scheduler)
    assert large.finished


def test_a_client_with_many_requests_delays_no_other_client() -> None:
    """Of a client's 200 long answers as many run as possible. Another's short request is next, and waits for none."""
    scheduler = scheduler_of(limits(max_rows=16), stages=1)
    greedy = [request(prompt=20, max_tokens=200, first=100 + n, client="a") for n in range(200)]
    for session in greedy:
        scheduler.admission.submit(session)
    for _ in range(100):
        turn(scheduler)
    places = scheduler.admission.running
    others = [request(prompt=20, max_tokens=5, first=1000 * n, client=f"b{n}") for n in range(3)]
    for session in others:
        scheduler.admission.submit(session)
    for _ in range(30):
        turn(scheduler)
    assert all(session.finished for session in others)
    assert scheduler.admission.running == places, "the greedy client has them all again"
    assert len(scheduler.admission.waiting) == 200 - places
    assert not any(session.finished for session in greedy)


def test_each_client_gets_a_slot_before_any_gets_a_second_one() -> None:
    scheduler = scheduler_of(limits(max_rows=4), stages=1)
    for client in "aaaaaaaabbbbcde":
        scheduler.admission.submit(request(prompt=5, max_tokens=500, first=ord(client) * 40, client=client))
    for _ in range(50):
        turn(scheduler)
    running = {session.request.client for session in scheduler.admission.sessions() if session.slot}
    assert len(running) == scheduler.admission.running == 4, "with as many clients as slots no client has two"


def test_a_preempted_session_keeps_its_kv() -> None:
    """If KV is not scarce, a preempted session continues with its KV."""
    scheduler = scheduler_of(limits(max_rows=2), stages=1)
    greedy = [request(prompt=100, max_tokens=200, first=100 * n, client="a") for n in range(2)]
    for session in greedy:
        scheduler.admission.submit(session)
    for _ in range(60):
        turn(scheduler)
    scheduler.admission.submit(request(prompt=5, max_tokens=2, first=4000, client="b"))
    steps = [turn(scheduler) for _ in range(20)]
    assert scheduler.admission.running == 2
    replayed = [sum(map(len, step.tokens)) for step in steps if step.lane >= FIRST_NUMBER]
    assert sum(replayed) <= 5 + 2


def test_a_full_queue_is_shared() -> None:
    scheduler = scheduler_of(limits(max_rows=1, max_queue=8), stages=1)
    for n in range(9):
        assert scheduler.admission.submit(request(prompt=5, max_tokens=50, first=n, client="a")) is None
        if n == 0:
            turn(scheduler)
    with pytest.raises(Overloaded):
        scheduler.admission.submit(request(prompt=5, max_tokens=50, client="a"))
    for client in "bcdbcd":
        replaced = scheduler.admission.submit(request(prompt=5, max_tokens=50, client=client))
        assert replaced
        assert replaced.request.client == "a"
        scheduler.admission.finish(replaced, keep=False)
    assert len(scheduler.admission.waiting) == 8
    with pytest.raises(Overloaded):
        scheduler.admission.submit(request(prompt=5, max_tokens=50, client="b"))


def test_chunks_of_one_prompt_follow_each_other_without_waiting() -> None:
    scheduler = scheduler_of(limits(), stages=3)
    scheduler.admission.submit(request(100, 5))
    steps = [scheduler.next() for _ in range(3)]
    assert [step.tokens[0] for step in steps if step] == [tuple(range(10)), tuple(range(10, 20)), tuple(range(20, 30))]


def test_as_many_lanes_decode_as_there_are_stages() -> None:
    scheduler = scheduler_of(limits(), stages=2)
    for number in range(6):
        scheduler.admission.submit(request(5, 100, first=number * 10))
    for _ in range(20):
        turn(scheduler)
    steps = [scheduler.next(), scheduler.next()]
    assert [len(step.rows) for step in steps if step] == [3, 3]
    assert scheduler.next() is None


def test_a_turn_of_a_chat_reuses_the_turns_before() -> None:
    scheduler = scheduler_of(limits(), stages=1)
    first = request(50, 10)
    scheduler.admission.submit(first)
    while not first.finished:
        step = scheduler.next()
        assert step
        for slot in step.rows if step.samples else ():
            if slot.session.accept(1).finish:
                scheduler.admission.finish(slot.session, keep=True)
        scheduler.landed(step, Verdict(), 0.01)
    second = Session(GenerateRequest("y", "m", (*first.tokens, 7, 8, 9), 5, frozenset(), Sampling()))
    scheduler.admission.submit(second)
    step = scheduler.next()
    assert step
    assert step.tokens == ((first.tokens[-1], 7, 8, 9),)
    assert second.slot
    assert second.slot.cached == 59


def finished(scheduler: Scheduler, session: Session) -> list[CacheOp]:
    """Run a session to its end; returns the operations of its steps, and those after it."""
    scheduler.admission.submit(session)
    ops: list[CacheOp] = []
    while not session.finished:
        step = scheduler.next()
        assert step
        ops += step.ops
        for slot in step.rows if step.samples else ():
            if slot.session.accept(1).finish:
                scheduler.admission.finish(slot.session, keep=True)
        scheduler.landed(step, Verdict(), 0.01)
    return [*ops, *scheduler.admission.pop_ops()]


def test_the_next_turn_of_a_long_chat_takes_its_kv() -> None:
    roomy = limits(context=8192, max_sessions=4, chunk=512)
    numbers = itertools.count(FIRST_NUMBER)
    scheduler = Scheduler(roomy, Traits(), numbers, 1)
    first = request(3000, 10)
    *_, keep, _drop = finished(scheduler, first)
    assert isinstance(keep, Keep)
    assert keep.tokens == 3009
    held = scheduler.admission.tokens_used

    second = Session(GenerateRequest("y", "m", (*first.tokens, 7, 8, 9), 5, frozenset(), Sampling()))
    scheduler.admission.submit(second)
    step = scheduler.next()
    assert step
    assert second.slot
    assert step.ops == (Take(second.slot.lane, keep.prefix),)
    assert step.tokens == ((first.tokens[-1], 7, 8, 9),)
    assert scheduler.admission.tokens_used < held + 1024, "the prefix is not charged beside the session"
    assert scheduler.admission.sequences() == {keep.prefix: tuple(second.tokens)}

    third = Session(GenerateRequest("z", "m", (*first.tokens[:2500], 4, 4), 5, frozenset(), Sampling()))
    scheduler.admission.submit(third)
    scheduler.landed(step, Verdict(), 0.01)
    begun = scheduler.next()
    assert begun
    assert third.slot
    assert third.slot.cached == 2500
    copied = Keep(second.slot.lane, 0, third.slot.number, 2500)
    assert begun.ops[:2] == (copied, Take(third.slot.lane, third.slot.number))

    for session in (second, third):
        scheduler.admission.finish(session, keep=True)
    scheduler.landed(begun, Verdict(), 0.01)
    scheduler.admission.pop_ops()
    fourth = Session(GenerateRequest("y", "m", (*second.tokens, 7, 8, 9), 5, frozenset(), Sampling()))
    assert any(isinstance(op, Take) for op in finished(scheduler, fourth))


@pytest.mark.slow
def test_the_prefixes_of_many_short_sessions_are_bounded() -> None:
    """Stages refuse more than 4096 lanes and prefixes, and the end of a ring does not free them."""
    roomy = limits(context=1 << 20, chunk=64)
    scheduler = scheduler_of(roomy, stages=1)
    fake = FakeStages(pads=True, trimmable=True)
    for number in range(2 * MAX_PREFIXES):
        session = request(MIN_TOKENS, 1, first=2 * number)
        scheduler.admission.submit(session)
        step = scheduler.next()
        assert step
        for op in step.ops:
            fake.apply(op)
        session.accept(fake.run(step)[0])
        scheduler.admission.finish(session, keep=True)
        scheduler.landed(step, Verdict(), 0.01)
    assert len(fake.prefixes) <= MAX_PREFIXES


def test_a_ring_that_ends_before_it_has_restored_kv_loses_none() -> None:
    numbers = itertools.count(FIRST_NUMBER)

    def new() -> Scheduler:
        return Scheduler(limits(chunk=64), Traits(), numbers, 1)

    session, scheduler = request(60, 500), new()
    scheduler.admission.submit(session)
    turn(scheduler)
    left = scheduler.admission.sequences()
    ((number, tokens),) = left.items()
    assert len(tokens) == 60
    scheduler = new()
    scheduler.admission.inherit(left, [Held(number, 60)])
    session.slot, session.request = None, replace(session.request, resume=tuple(session.tokens[60:]))
    scheduler.admission.submit(session)
    again = scheduler.next()  # a stage without these operations still has the sequence under its old number
    assert again
    assert again.tokens == ((session.tokens[-1],),)
    assert {number: len(tokens) for number, tokens in scheduler.admission.sequences().items()} == {
        number: 60,
        number + 1: 61,
    }


# --- KV from disks ------------------------------------------------------------------------------------------------


def with_disk(**changed: int) -> Scheduler:
    given = {"context": 8192, "max_sessions": 2, "chunk": 512} | changed
    return scheduler_of(replace(limits(**given), stored=ModelVersion("m")), stages=1)


def asked_of(scheduler: Scheduler) -> list[Restore]:
    return scheduler.admission.restoring.pop_asked()


def restored(scheduler: Scheduler, asked: Restore, tokens: int) -> None:
    scheduler.admission.restored(asked, replace(asked, tokens=tokens, longest=tokens))


def stored_by(step: Step) -> list[int]:
    """How many blocks of a sequence the step names, for each that it names."""
    return [len(names_of(op.chain)) for op in step.ops if isinstance(op, Store)]


def test_a_session_is_stored_while_it_grows_whether_memory_will_have_room_for_it_or_not() -> None:
    """In steps that follow each other without the driver, too; and nothing twice."""
    scheduler = with_disk()
    session = request(1500, 400)
    scheduler.admission.submit(session)
    scheduler.next()
    (asked,) = asked_of(scheduler)
    restored(scheduler, asked, 0)
    steps = [turn(scheduler) for _ in range(3)]
    assert [stored_by(step) for step in steps] == [[], [4], [5]]
    names = names_of(chain_of(ModelVersion("m"), session.tokens))
    while not session.finished:
        steps.append(turn(scheduler))
    found = [op for step in steps for op in step.ops if isinstance(op, Store)]
    assert [len(names_of(op.chain)) for op in found] == [4, 5, 6, 7]
    assert names_of(found[1].chain) == names[:5]
    assert {op.number for op in found} == {session.slot.number if session.slot else -1}


def test_a_session_that_gave_its_room_to_others_takes_its_kv_from_the_disk() -> None:
    scheduler = with_disk(max_sessions=1, context=4096)
    sessions = [request(900, 2000), request(900, 2000, first=2500)]
    short = replace(request(20, 500).request, stop_tokens=frozenset({1}))
    for session in (*(Session(short) for _ in range(20)), *sessions):  # the ring reckons with short answers
        scheduler.admission.submit(session)
    while not sessions[0].finished:
        turn(scheduler)
    assert sessions[1].lost > 1024
    scheduler.next()
    (asked,) = asked_of(scheduler)
    assert len(sessions[1].tokens) - 1 - 256 < asked.tokens < len(sessions[1].tokens)


def test_sessions_that_come_at_once_all_wait_for_their_kv() -> None:
    scheduler = with_disk()
    sessions = [request(3000, 5), request(3000, 5, first=1500), request(20, 5, first=4000)]
    for session in sessions:
        scheduler.admission.submit(session)
    assert turn(scheduler).rows[0].session is sessions[2], "a short one begins at once"
    first, second = asked_of(scheduler)
    restored(scheduler, second, second.tokens)
    restored(scheduler, first, first.tokens // 2 // 256 * 256)
    scheduler.admission.admit()
    assert [session.cached_tokens for session in sessions] == [1280, 2816, 0]


def test_a_session_that_comes_while_there_is_no_room_waits_for_its_kv_when_there_is() -> None:
    scheduler = with_disk(max_sessions=1)
    running, comes = request(4000, 4000), request(3000, 5, first=1)
    scheduler.admission.submit(running)
    scheduler.next()
    (asked,) = asked_of(scheduler)
    scheduler.admission.submit(comes)
    scheduler.next()
    restored(scheduler, asked, 0)
    turn(scheduler)
    assert running.slot
    assert not asked_of(scheduler)
    scheduler.admission.finish(running, keep=False)
    scheduler.next()
    assert [each.tokens for each in asked_of(scheduler)] == [2816]


def test_the_room_of_a_session_that_waits_for_its_kv_is_given_to_no_other() -> None:
    scheduler = with_disk(max_sessions=1)
    waits, comes = request(6000, 5), request(900, 3000, first=1000)
    scheduler.admission.submit(waits)
    scheduler.next()
    (asked,) = asked_of(scheduler)
    scheduler.admission.submit(comes)
    assert scheduler.next() is None
    restored(scheduler, asked, asked.tokens)
    assert turn(scheduler).rows[0].session is waits
    assert waits.cached_tokens == asked.tokens
    assert scheduler.admission.tokens_used <= scheduler.admission.room.budget


def test_what_came_from_disks_for_a_session_makes_no_room_for_later_ones() -> None:
    scheduler = with_disk(max_sessions=2)
    ends, waits = request(700, 200, first=1000), request(5000, 5)
    scheduler.admission.submit(ends)
    step = scheduler.next()
    assert step
    scheduler.admission.submit(waits)
    scheduler.next()
    (asked,) = asked_of(scheduler)
    restored(scheduler, asked, asked.tokens)
    for number in range(20):  # prefixes that would not fit beside it
        scheduler.admission.prefixes.add(number, [number] * 800)
    scheduler.admission.evict()
    assert asked.number in scheduler.admission.prefixes.all()


def test_a_prompt_whose_kv_is_on_its_way_for_another_session_is_not_asked_for_again() -> None:
    scheduler = with_disk(max_sessions=4)
    for _ in range(3):
        scheduler.admission.submit(request(3000, 5))
    assert scheduler.next() is None
    (asked,) = asked_of(scheduler)
    restored(scheduler, asked, asked.tokens)
    assert turn(scheduler)
    assert not asked_of(scheduler)


# --- prompts that run together ------------------------------------------------------------------------------------


def prompts_of(scheduler: Scheduler, steps: int) -> list[Step]:
    """Return the next steps, all of prompts alone, all in flight at once."""
    found = [scheduler.next() for _ in range(steps)]
    assert all(step and step.lane >= FIRST_NUMBER for step in found)
    return [step for step in found if step]


def test_short_prompts_run_together_in_as_many_lanes_as_there_are_stages() -> None:
    scheduler = scheduler_of(limits(max_sessions=8, chunk=64), stages=2)
    for number in range(16):
        scheduler.admission.submit(request(8, 5, first=number * 10))
    one, other = prompts_of(scheduler, 2)
    assert [len(one.rows), len(other.rows)] == [8, 8]
    assert not {*one.rows} & {*other.rows}
    assert one.samples
    assert other.samples


def test_in_a_ring_prompts_share_short_steps() -> None:
    """Until the first step has gone round, the stages behind are idle. A single stage loses nothing by a long step."""
    for stages, together in ((1, [16]), (2, [2] * 8)):
        scheduler = scheduler_of(limits(max_sessions=8, max_rows=16, chunk=512), stages=stages)
        scheduler.admission.submit(request(8, 1))
        (step,) = prompts_of(scheduler, 1)
        scheduler.admission.finish(step.rows[0].session, keep=False)
        scheduler.landed(step, Verdict(), 0.008 * 8)
        for number in range(16):
            scheduler.admission.submit(request(8, 5, first=number * 10))
        steps = prompts_of(scheduler, len(together))
        assert [len(step.rows) for step in steps] == together


def test_a_prompt_waits_until_all_answers_have_stepped_unless_a_stage_is_idle() -> None:
    scheduler = scheduler_of(limits(), stages=2)
    scheduler.admission.submit(request(5, 500))
    turn(scheduler)
    scheduler.admission.submit(request(300, 5, first=1000))
    steps = [scheduler.next() for _ in range(4)]
    kinds = [step and ("prompt" if step.lane >= FIRST_NUMBER else "answer") for step in steps]
    assert kinds == ["answer", "prompt", None, None]
    assert steps[1]
    scheduler.returned(steps[1], 0.0)
    assert scheduler.next() is not None


@pytest.mark.parametrize(
    ("lengths", "pads", "together"),
    [
        ((8, 8, 8), False, [3]),
        ((8, 5, 8), False, [2, 1]),
        ((8, 5, 8), True, [3]),
        ((20, 5, 5), True, [2, 1]),  # padded to 20, a third would make 60 tokens
        ((60, 5, 5), True, [1, 2]),  # longer than a step: in chunks, alone
        ((30, 30, 2), True, [1, 1, 1]),  # 30 and 2 would be 60
    ],
)
def test_a_step_of_prompts_is_no_longer_than_a_chunk(
    lengths: Sequence[int], pads: bool, together: Sequence[int]
) -> None:
    scheduler = scheduler_of(limits(chunk=40), stages=1, pads=pads)
    for number, length in enumerate(lengths):
        scheduler.admission.submit(request(length, 5, first=number * 100))
    steps = prompts_of(scheduler, len(together))
    assert [len(step.rows) for step in steps] == together
    assert all(len(step.rows) * max(map(len, step.tokens)) <= 40 for step in steps)


def test_prompts_that_share_a_prefix_run_together() -> None:
    scheduler = scheduler_of(limits(chunk=64), stages=1)
    system = tuple(range(100, 140))
    first = Session(GenerateRequest("x", "m", system, 1, frozenset(), Sampling()))
    scheduler.admission.submit(first)
    step = scheduler.next()
    assert step
    first.accept(1)
    scheduler.admission.finish(first, keep=True)
    scheduler.landed(step, Verdict(), 0.01)
    for number in range(3):
        prompt = (*system, *range(number, number + 5 + number))
        scheduler.admission.submit(Session(GenerateRequest("x", "m", prompt, 5, frozenset(), Sampling())))
    scheduler.admission.submit(request(9, 5, first=2000))
    alike, other = prompts_of(scheduler, 2)
    assert [len(tokens) for tokens in alike.tokens] == [5, 6, 7]
    assert [op.tokens for op in alike.ops if isinstance(op, Reuse)] == [40, 40, 40]
    assert [len(tokens) for tokens in other.tokens] == [9]


def test_a_session_that_hangs_up_before_its_step_does_not_disturb_others() -> None:
    scheduler = scheduler_of(limits(chunk=64), stages=2)
    fake = FakeStages(pads=True, trimmable=True)
    scheduler.admission.submit(request(60, 5, first=900))  # its step comes first
    sessions = [request(6 + number, 5, first=number * 10) for number in range(4)]
    for session in sessions:
        scheduler.admission.submit(session)
    steps = prompts_of(scheduler, 1)
    scheduler.admission.finish(sessions[1], keep=False)
    steps += prompts_of(scheduler, 2)
    scheduler.admission.finish(sessions[2], keep=False)  # while its step is under way
    for step in steps:
        for op in step.ops:
            fake.apply(op)
        drawn = fake.run(step)
        for slot, token in zip(step.rows, drawn, strict=True):
            if not slot.gone:
                slot.session.accept(token)
        scheduler.landed(step, Verdict(), 0.01)
    left = [session for number, session in enumerate(sessions) if number not in (1, 2)]
    while not all(session.finished for session in left):
        step = scheduler.next()
        assert step
        for op in step.ops:
            fake.apply(op)
        for slot, token in zip(step.rows, fake.run(step), strict=True):
            if not slot.gone and slot.session.accept(token).finish:
                scheduler.admission.finish(slot.session, keep=False)
        scheduler.landed(step, Verdict(), 0.01)
    for session in left:
        assert session.tokens[len(session.request.prompt) :] == expected(session.request)


# --- fairness -----------------------------------------------------------------------------------------------------


def test_a_long_prompt_advances_under_a_stream_of_short_ones() -> None:
    scheduler = scheduler_of(limits(max_sessions=8), stages=1)
    long = request(500, 5, first=3000)
    scheduler.admission.submit(long)
    for turns in range(400):
        scheduler.admission.submit(request(3, 1, first=turns))
        turn(scheduler)
    assert long.finished


def test_a_short_prompt_overtakes_long_ones() -> None:
    scheduler = scheduler_of(limits(max_sessions=16), stages=1)
    long = [request(900, 5, first=number * 1000) for number in range(LONG_PROMPTS + 2)]
    for session in long:
        scheduler.admission.submit(session)
    turn(scheduler)
    short = request(8, 1, first=4990)
    scheduler.admission.submit(short)
    for _ in range(LONG_PROMPTS + 1):
        turn(scheduler)
    assert short.finished
    assert not any(session.finished for session in long)
    for _ in range(2000):
        if all(session.finished for session in long):
            break
        turn(scheduler)
    assert all(session.finished for session in long)


def pictured(prompt: int, first: int, pixels: int = 3, client: str = "") -> Session:
    """A session with a place of a picture before its text."""
    session = request(prompt, 5, first=first, client=client)
    given = replace(session.request, prompt=(6000, *session.request.prompt), pictures=(Picture(1, 1, bytes(pixels)),))
    return Session(given, vocabulary=6000)


def test_prompts_that_wait_for_their_pictures_keep_no_other_prompt_out() -> None:
    scheduler = scheduler_of(limits(context=4000, max_sessions=20), stages=1)
    blind = [pictured(900, first=number * 1000) for number in range(LONG_PROMPTS)]
    for session in (*blind, request(900, 5, first=9000)):
        scheduler.admission.submit(session)
    steps = [turn(scheduler) for _ in range(3)]
    assert {step.rows[0].session.client for step in steps} == {""}
    assert all(step.rows[0].session not in blind for step in steps)
    seen = blind[0].slot
    assert seen
    assert seen.is_blind
    seen.see(seen_at(0))
    assert blind[0] in [turn(scheduler).rows[0].session for _ in range(4)]


def test_prompts_that_wait_for_their_second_picture_count_as_long_ones() -> None:
    """Else all prompts with several pictures would begin at once, and end together."""
    scheduler = scheduler_of(limits(context=4000, max_sessions=20), stages=1)
    sessions = []
    for number in range(LONG_PROMPTS + 1):
        session = pictured(900, first=number * 1000)
        prompt = (*session.request.prompt[:700], 6001, *session.request.prompt[700:])
        pictures = (*session.request.pictures, Picture(1, 1, bytes(3)))
        sessions.append(Session(replace(session.request, prompt=prompt, pictures=pictures), vocabulary=6000))
        scheduler.admission.submit(sessions[-1])
        assert scheduler.next() is None
        if slot := sessions[-1].slot:
            slot.see(seen_at(0))
            while not slot.is_blind:
                turn(scheduler)
            assert slot.sent <= 700
    assert [session.slot is None for session in sessions] == [False] * LONG_PROMPTS + [True]


async def test_a_prompt_that_has_begun_sees_its_next_picture_before_others_begin() -> None:
    scheduler = scheduler_of(limits(context=4000, max_sessions=20), stages=1)
    order: list[int] = []

    class Tower:
        def see(
            self, _pictures: object, prompt: Sequence[int], sent: int, _longest_s: float
        ) -> Generator[None, None, Seen]:
            order.append(prompt[1] // 1000)
            yield
            return seen_at(next(place for place in range(sent, len(prompt)) if prompt[place] >= 6000))

    class Instant:
        async def run_pieces(self, pieces: Generator[None, None, Seen]) -> Seen:
            while True:
                try:
                    next(pieces)
                except StopIteration as end:
                    return end.value

    seeing = Seeing(Instant(), Tower(), scheduler.admission, lambda: None)  # type: ignore[arg-type]
    sessions = []
    for number in range(3):
        session = pictured(900, first=number * 1000)
        prompt = (*session.request.prompt[:300], 6001, *session.request.prompt[300:])
        request_ = replace(session.request, prompt=prompt, pictures=session.request.pictures * 2)
        sessions.append(Session(request_, vocabulary=6000))
        scheduler.admission.submit(sessions[-1])
    while not all(session.finished for session in sessions):
        step = scheduler.next()
        seeing.begin(step)
        await asyncio.sleep(0)
        if step:
            for slot in step.rows if step.samples else ():
                if slot.session.accept(1).finish:
                    scheduler.admission.finish(slot.session, keep=False)
            scheduler.landed(step, Verdict(), 0.01)
    assert order == [0, 0, 1, 1, 2, 2]


def seen_at(*positions: int) -> Seen:
    return Seen(mx.zeros((len(positions), 4)), positions)


def test_a_prompt_runs_up_to_a_picture_that_is_not_seen() -> None:
    scheduler = scheduler_of(limits(context=4000, max_sessions=2), stages=1)
    session = request(2000, 5)
    places = {700: 6000, 701: 6001, 1600: 6002, 1601: 6003}
    prompt = tuple(places.get(position, token) for position, token in enumerate(session.request.prompt))
    pictures = (Picture(1, 1, bytes(3)),) * 2
    session = Session(replace(session.request, prompt=prompt, pictures=pictures), vocabulary=6000)
    scheduler.admission.submit(session)
    while session.slot is None or not session.slot.is_blind:
        turn(scheduler)
    assert 700 - SOON < session.slot.sent <= 700, "long text before a picture does not wait for it"
    session.slot.see(seen_at(700, 701))
    while not session.slot.is_blind:
        turn(scheduler)
    assert 1600 - SOON < session.slot.sent <= 1600, "nor does the text behind it"
    session.slot.see(seen_at(1600, 1601))
    while not session.finished:
        turn(scheduler)


def test_pictures_of_requests_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.ring.admission.MAX_PIXEL_BYTES", 3000)
    scheduler = scheduler_of(limits(), stages=1)
    scheduler.admission.submit(pictured(9, first=0, pixels=1500, client="a"))
    scheduler.admission.submit(pictured(9, first=100, pixels=1500, client="b"))
    with pytest.raises(Overloaded, match="Pictures of 3,003 bytes are here"):
        scheduler.admission.submit(pictured(9, first=200))
    scheduler.admission.submit(request(9, 5, first=300))


def test_pictures_of_one_client_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.ring.admission.MAX_PIXEL_BYTES", 3000)
    scheduler = scheduler_of(limits(), stages=1)
    scheduler.admission.submit(pictured(9, first=0, pixels=1500))
    with pytest.raises(Overloaded, match="Pictures of 1,503 bytes are here, 1,503 of them yours"):
        scheduler.admission.submit(pictured(9, first=100))
    scheduler.admission.submit(pictured(9, first=100, client="b"))


def test_many_short_prompts_delay_a_stream_by_one_step_at_a_time() -> None:
    scheduler = scheduler_of(limits(max_sessions=16, max_rows=64), stages=1)
    scheduler.admission.submit(request(5, 500))
    turn(scheduler)
    for number in range(30):
        scheduler.admission.submit(request(4, 5, first=number * 10))
    steps = [turn(scheduler) for _ in range(30)]
    of_prompts = [step.lane >= FIRST_NUMBER for step in steps]
    assert sum(of_prompts) == 15  # two prompts of 4 in a step of 10
    assert not any(one and other for one, other in itertools.pairwise(of_prompts))


# --- how long a chunk may be --------------------------------------------------------------------------------------


def stall(stages: int, *, token_s: float, depth_s: float, decode_s: float) -> tuple[list[int], float]:
    """A prompt of 8,000 tokens arrives while a stream runs. Return its chunks' sizes and the longest time of one.

    A token of the prompt takes `token_s`, and `depth_s` more for each token before it.
    """
    scheduler = scheduler_of(limits(context=20_000, chunk=512), stages=stages)
    clock, landed, longest = 0.0, 0.0, 0.0
    sizes: list[int] = []
    under_way: deque[tuple[Step, float]] = deque()
    scheduler.admission.submit(request(5, 10_000))
    while sum(sizes) < 8000:
        while len(under_way) < stages and (step := scheduler.next()):
            under_way.append((step, clock))
        step, begun = under_way.popleft()
        prompt = step.lane >= FIRST_NUMBER
        slot = step.rows[0]
        if prompt and len(slot.session.tokens) > 5:
            size = len(step.tokens[0])
            took = size * (token_s + depth_s * sum(sizes))
            sizes.append(size)
            longest = max(longest, took if len(sizes) > 1 else 0.0)  # nothing is measured before the first
        else:
            took = decode_s
        clock = max(clock, begun) + took
        if step.samples and slot.session.accept(1).finish:
            scheduler.admission.finish(slot.session, keep=False)
        scheduler.landed(step, Verdict(), clock - max(begun, landed))
        landed = clock
        if scheduler.admission.running == 1 and not len(scheduler.admission.waiting) and len(slot.session.tokens) == 10:
            scheduler.admission.submit(request(8000, 1, first=100))
    return sizes, longest


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_chunks_get_shorter_as_the_prompt_gets_longer(stages: int) -> None:
    sizes, longest = stall(stages, token_s=0.0005, depth_s=0.000_000_5, decode_s=0.02)
    assert sizes[-2] < max(sizes)
    assert longest < 2 * STALL_S
    assert min(sizes[:-1]) >= MIN_CHUNK


def test_chunks_of_a_machine_that_decodes_slowly_are_as_long_as_its_steps() -> None:
    sizes, longest = stall(1, token_s=0.01, depth_s=0.0, decode_s=0.5)
    assert sizes[1] == 64
    assert longest <= 1.0


@pytest.mark.parametrize(("token_s", "later"), [(0.001, 2048), (0.002, 1024), (0.004, 512), (0.1, 32)])
def test_long_chunks_are_for_quick_devices(token_s: float, later: int) -> None:
    roomy = limits(context=20_000, chunk=2048)
    scheduler = scheduler_of(roomy, stages=1)
    scheduler.admission.submit(request(8000, 1))
    sizes = []
    for _ in range(3):
        step = scheduler.next()
        assert step
        sizes.append(len(step.tokens[0]))
        scheduler.landed(step, Verdict(), sizes[-1] * token_s)
    assert sizes == [512, later, later]  # nothing is measured before the first


@pytest.mark.parametrize(
    ("token_s", "timeout_s", "size"), [(0.001, 60, 2048), (0.004, 60, 512), (0.1, 60, 32), (9.0, 60, 16)]
)
@pytest.mark.parametrize("stages", [1, 3])
def test_the_first_chunk_takes_a_small_share_of_the_time_out(
    token_s: float, timeout_s: float, size: int, stages: int
) -> None:
    """By the speed that was measured when the layers were loaded; also of the chunks that follow before one is back."""
    scheduler = scheduler_of(
        limits(context=20_000, chunk=2048, token_s=token_s, step_timeout_s=timeout_s), stages=stages
    )
    scheduler.admission.submit(request(8000, 1))
    for _ in range(stages):
        step = scheduler.next()
        assert step
        assert len(step.tokens[0]) == size


def test_each_chunk_of_a_prompt_that_is_back_is_told_but_the_last_one() -> None:
    """Not of a text to evaluate, whose caller waits for one result; nor when the client has gone."""
    scheduler = scheduler_of(limits(chunk=100), stages=1)
    text = Session.of_evaluation(EvaluateRequest("x", "m", tuple(range(250)), None))
    sessions = [request(250, 1), request(250, 1, first=300), request(90, 1, first=600), text]
    for session in sessions:
        scheduler.admission.submit(session)
    while step := scheduler.next():
        if step.rows[0].session is sessions[1] and step.begin:
            scheduler.admission.finish(sessions[1], keep=False)
        results = [Sampled(7)] if step.samples else [ChunkResult(len(step.tokens[0]))] if step.evaluations else []
        scheduler.returned(step, 0.0)
        scheduler.landed(step, Verdict(results), 0.1)
    first, second, *others = [[each.events.get_nowait() for _ in range(each.events.qsize())] for each in sessions]
    assert first[:-1] == [PromptProgress(100, 250), PromptProgress(200, 250)]
    assert second == [PromptProgress(100, 250)]
    assert [len(told) for told in others] == [1, 1]


def first_token(
    stages: int, prompt: int, *, step_s: float, token_s: float, evaluate: bool = False
) -> tuple[list[int], float]:
    """A prompt, or a text to `evaluate`, arrives at an idle ring, which has run another one before. Return its chunks' sizes
    and their time.

    A stage takes `step_s` for a step, and `token_s` for each of its tokens.
    """
    scheduler = scheduler_of(limits(chunk=128, context=5000), stages=stages)
    free_at, clock, landed = [0.0] * stages, 0.0, 0.0
    under_way: deque[tuple[Step, float, float]] = deque()
    text = tuple(range(prompt))
    evaluation = Session.of_evaluation(EvaluateRequest("x", "m", text, top=0, client=""))
    for session in (request(64, 3), evaluation if evaluate else request(prompt, 1, first=1000)):
        scheduler.admission.submit(session)
        begun_at, sizes = clock, list[int]()
        while scheduler.admission.running or len(scheduler.admission.waiting):
            while len(under_way) < stages and (step := scheduler.next()):
                done = clock
                for stage in range(stages):
                    done = max(done, free_at[stage]) + step_s + token_s * len(step.tokens[0])
                    free_at[stage] = done
                under_way.append((step, clock, done))
                sizes.append(len(step.tokens[0]))
            step, begun, clock = under_way.popleft()
            for slot in step.rows if step.samples else ():
                if slot.session.accept(1).finish:
                    scheduler.admission.finish(slot.session, keep=False)
            scheduler.landed(step, Verdict(), clock - max(begun, landed))
            landed = clock
            if step.evaluations and not step.rows[0].unsent:
                scheduler.admission.finish(step.rows[0].session, keep=False)
    return sizes, clock - begun_at


@pytest.mark.parametrize(("stages", "prompt", "share"), [(2, 120, 0.72), (3, 120, 0.6), (2, 400, 0.9), (4, 1000, 0.9)])
def test_a_prompt_alone_in_a_ring_keeps_its_stages_busy(stages: int, prompt: int, share: float) -> None:
    sizes, seconds = first_token(stages, prompt, step_s=0.005, token_s=0.001)
    assert sum(sizes) == prompt
    full = [128] * (prompt // 128) + [prompt % 128]
    whole = sum(0.005 + 0.001 * size for size in full) + (stages - 1) * (0.005 + 0.001 * full[0])
    assert seconds < share * whole


def test_a_short_prompt_is_not_divided_where_its_tokens_add_little_to_a_step() -> None:
    assert first_token(2, 120, step_s=0.02, token_s=0.00001)[0] == [120]
    assert first_token(1, 120, step_s=0.02, token_s=0.001)[0] == [120]


def test_a_text_to_score_is_not_divided_by_measured_times() -> None:
    assert first_token(2, 120, step_s=0.005, token_s=0.001, evaluate=True)[0] == [120]


def test_a_chunk_is_of_full_size_while_no_stream_runs() -> None:
    scheduler = scheduler_of(limits(chunk=64), stages=1)
    scheduler.admission.submit(request(300, 5))
    sizes = []
    for _ in range(4):
        step = scheduler.next()
        assert step
        sizes.append(len(step.tokens[0]))
        scheduler.landed(step, Verdict(), 6.0)
    assert sizes == [64] * 4


if __name__ == "__main__":
    run(int(sys.argv[1]))


@pytest.mark.parametrize("slow_wire", [False, True])
def test_a_slow_wire_has_room_for_one_more_guess(slow_wire: bool) -> None:
    scheduler = scheduler_of(limits(), stages=2)
    scheduler.flight.wire_is_slow = slow_wire
    session = request(5, 20)
    scheduler.admission.submit(Session(replace(session.request, prediction=(1,) * 20)))
    turn(scheduler)
    assert scheduler.next(), "the step behind which guesses are sent"
    assert [scheduler.guess() is not None for _ in range(3)] == [True, slow_wire, False]
