"""What sources of guesses get to know of a session while its prompt is computed, and when."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from node.core.frames import Tensor
from node.core.generation import GenerateRequest
from node.engine.sampling import Draw, Sampled
from node.engine.verdict import Verdict
from node.ring.flight import Step
from node.ring.guessing import Guessing
from node.ring.lane import FIRST_NUMBER
from node.ring.limits import RingLimits
from node.ring.scheduler import Scheduler
from node.ring.session import Session

PLAN: Any = SimpleNamespace(batchable=True, pads=True, trimmable=True, steps_back=True, chunked=False)


def scheduler_of(chunk: int, context: int) -> Scheduler:
    limits = RingLimits(context=context, max_sessions=4, max_queue=4, max_rows=4, chunk=chunk)
    return Scheduler(limits, PLAN, itertools.count(FIRST_NUMBER), 2)


def session_of(prompt: Sequence[int], max_tokens: int = 50) -> Session:
    return Session(GenerateRequest("x", "m", tuple(prompt), max_tokens))


def landed(scheduler: Scheduler, step: Step, token: int = 1) -> Verdict:
    scheduler.returned(step, 0.0)
    verdict = Verdict([Sampled(token) for _ in step.rows] if step.samples else ())
    scheduler.landed(step, verdict, 0.01)
    return verdict


def test_a_long_prompt_is_known_with_the_first_token_of_its_answer() -> None:
    """What it repeats is guessed from then on."""
    text = range(100, 30_000)
    scheduler = scheduler_of(chunk=2048, context=40_000)
    scheduler.admission.submit(session_of([*text, *text[:40]]))
    chunks = 0
    while (step := scheduler.next()) and not step.samples:
        chunks += 1
        landed(scheduler, step)
    assert step
    assert chunks > 10
    landed(scheduler, step, text[40])
    certain, guess = scheduler.next(), scheduler.guess()
    assert certain
    assert guess
    assert [certain.tokens, guess.tokens] == [((text[40],),), ((text[41],),)]


class Observer:
    """A source that keeps what it is told."""

    kv_bytes, max_context, observes, beyond, is_catching_up = 0, 1000, True, 0, False

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], int]] = []

    def observe(self, tokens: Sequence[int], end: int, tensors: Sequence[Tensor], count: int) -> None:
        self.seen.append((list(tokens), end))

    def guess(self, tokens: Sequence[int], verified: int, draw: Draw) -> int | None:
        return None

    def clear(self) -> None:
        pass


def test_the_source_follows_a_session_that_comes_to_lead_in_the_middle_of_its_prompt() -> None:
    scheduler, source = scheduler_of(chunk=10, context=400), Observer()
    guessing = Guessing(source)
    done = SimpleNamespace(add_done_callback=lambda _: None)
    compute: Any = SimpleNamespace(queue=lambda work, *args: work(*args) or done)

    def turn() -> Step:
        step = scheduler.next()
        assert step
        every = guessing.wants_all(step, scheduler)
        verdict = landed(scheduler, step)
        tensors = (cast(Any, object()),) if every or step.samples else ()
        guessing.observe(compute, step, tensors, verdict, scheduler, every=every)
        return step

    older, younger = session_of(range(5)), session_of(range(100, 153))
    scheduler.admission.submit(older)
    turn()
    scheduler.admission.submit(younger)
    while younger.slot is None or younger.slot.sent < 20:
        turn()
    scheduler.admission.finish(older, keep=False)
    while not younger.generated:
        turn()
    seen = [(tokens, end) for tokens, end in source.seen if tokens[0] == 100]
    prompt = younger.tokens[:53]
    assert seen == [(prompt, 30), (prompt, 40), (prompt, 50), (younger.tokens, 53)]
