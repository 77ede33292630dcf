"""Many sessions at once: which tokens are computed more than once, and how many sessions run together."""

import itertools

from node.core.generation import GenerateRequest, Sampling
from node.ring.kv import RingLimits
from node.ring.scheduler import FIRST_NUMBER, Scheduler
from node.ring.session import Session


def scheduler_of(context: int = 1000, max_sessions: int = 4, max_rows: int = 64, stages: int = 1) -> Scheduler:
    limits = RingLimits(context=context, max_sessions=max_sessions, max_queue=1000, max_rows=max_rows, chunk=512)
    numbers = itertools.count(FIRST_NUMBER)
    return Scheduler(limits, numbers, stages=stages, batchable=True, pads=True, trimmable=True)


def request(prompt: int, max_tokens: int, first: int = 0) -> Session:
    tokens = tuple((first + n) % 5000 for n in range(prompt))
    return Session(GenerateRequest("x", "m", tokens, max_tokens, frozenset(), Sampling()))


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
    short = [request(20, 5, first=30 * n) for n in range(20)]
    long = [request(200, 700, first=1000 * n) for n in (1, 2)]
    for session in (*short, *long):
        scheduler.submit(session)
    held = 0
    while not all(session.finished for session in long):
        turn(scheduler)
        held = max(held, long[1].lost)
    assert scheduler.recomputed == held > 200
