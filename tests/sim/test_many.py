"""Many sessions at once: which tokens are computed more than once, and how many sessions run together."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from node.core.generation import GenerateRequest, Sampling
from node.ring.kv import RingLimits
from node.ring.scheduler import FIRST_NUMBER, Scheduler
from node.ring.session import Session


def scheduler_of(context: int = 1000, max_sessions: int = 4, max_rows: int = 64, stages: int = 1) -> Scheduler:
    limits = RingLimits(context=context, max_sessions=max_sessions, max_queue=1000, max_rows=max_rows, chunk=512)
    numbers = itertools.count(FIRST_NUMBER)
    return Scheduler(limits, numbers, stages=stages, batchable=True, pads=True, trimmable=True)


def request(prompt: int, max_tokens: int, first: int = 0, stop: int = 0) -> Session:
    tokens = tuple((first + n) % 5000 for n in range(prompt))
    return Session(GenerateRequest("x", "m", tokens, max_tokens, frozenset({stop}), Sampling()))


def turn(scheduler: Scheduler) -> None:
    """One step of a ring of one node."""
    step = scheduler.next()
    assert step
    for slot in step.rows if step.samples else ():
        if not slot.gone and slot.session.accept(1).finish:
            scheduler.finish(slot.session, keep=False)
    scheduler.landed(step, 0.01)


def test_tokens_of_a_session_that_made_room_are_counted_when_they_are_computed_again() -> None:
    """After many short answers the ring expects two more, but they are long, and there is no room for both."""
    scheduler = scheduler_of(context=1024, max_sessions=1)
    short = [request(20, 500, first=30 * n, stop=1) for n in range(20)]
    long = [request(200, 700, first=1000 * n) for n in (1, 2)]
    for session in (*short, *long):
        scheduler.submit(session)
    held = 0
    while not all(session.finished for session in long):
        turn(scheduler)
        held = max(held, long[1].lost)
    assert scheduler.recomputed == held > 200


@dataclass
class Outcome:
    sessions: list[Session]
    computed: int = 0
    """Tokens."""
    recomputed: int = 0
    rows: float = 0.0
    """Mean of a step of decoding."""


def serve(seed: int, lengths: Callable[[random.Random], float], *, streams: int, stages: int) -> Outcome:
    """Serve three requests of each of `streams` clients, without limits. Answers end as `lengths` says."""
    dice = random.Random(seed)
    context = 2048
    scheduler = scheduler_of(context, max_sessions=8, stages=stages)
    ends: dict[Session, int] = {}

    def ask() -> None:
        prompt = min(context // 2, int(dice.lognormvariate(4.0, 1.0)) + 1)
        session = request(prompt, context - prompt, first=dice.randrange(5000))
        ends[session] = max(1, int(lengths(dice)))
        scheduler.submit(session)

    for _ in range(streams):
        ask()
    computed, rows = 0, []
    while step := scheduler.next():
        computed += sum(map(len, step.tokens))
        if step.lane < FIRST_NUMBER:
            rows.append(len(step.rows))
        for slot in step.rows if step.samples else ():
            session = slot.session
            assert not session.finished
            if session.accept(1).finish or session.generated >= ends[session]:
                scheduler.finish(session, keep=False)
                if len(ends) < 3 * streams:
                    ask()
        scheduler.landed(step, 0.01)
    assert not scheduler.running
    assert not scheduler.queued
    return Outcome([*ends], computed, scheduler.recomputed, sum(rows) / len(rows))


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("streams", [64, 256])
def test_answers_of_unknown_length_are_hardly_ever_computed_twice(streams: int, stages: int) -> None:
    """With lengths as they may be: geometric, equal, uniform, mostly short ones."""
    kinds: list[Callable[[random.Random], float]] = [
        lambda dice: dice.expovariate(1 / 100),
        lambda _: 150,
        lambda dice: dice.uniform(1, 300),
        lambda dice: 10 if dice.random() < 0.8 else 300,
    ]
    for seed, lengths in enumerate(kinds):
        outcome = serve(seed, lengths, streams=streams, stages=stages)
        assert all(session.finished for session in outcome.sessions)
        assert outcome.recomputed <= 0.02 * outcome.computed
        assert outcome.rows * stages > 12, "more than the 8 that fit with the whole context"
