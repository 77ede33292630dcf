"""Many sessions at once: which tokens are computed more than once, and how many sessions run together."""

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from node.core.generation import GenerateRequest, Sampling
from node.engine.verdict import Verdict
from node.ring.flight import Step
from node.ring.lane import FIRST_NUMBER
from node.ring.limits import RingLimits
from node.ring.scheduler import Scheduler
from node.ring.session import Session
from node.ring.sharing import WORTH_SHARING
from tests.sim.test_scheduler import FakeStages, Traits, next_token


def scheduler_of(context: int = 1000, max_sessions: int = 4, max_rows: int = 64, stages: int = 1) -> Scheduler:
    limits = RingLimits(context=context, max_sessions=max_sessions, max_queue=1000, max_rows=max_rows, chunk=512)
    numbers = itertools.count(FIRST_NUMBER)
    return Scheduler(limits, Traits(), numbers, stages)


def request(prompt: int, max_tokens: int, first: int = 0, stop: int = 0) -> Session:
    tokens = tuple((first + n) % 5000 for n in range(prompt))
    return Session(GenerateRequest("x", "m", tokens, max_tokens, frozenset({stop}), Sampling()))


def turn(scheduler: Scheduler) -> None:
    """One step of a ring of one node."""
    step = scheduler.next()
    assert step
    for slot in step.rows if step.samples else ():
        if not slot.gone and slot.session.accept(1).finish:
            scheduler.admission.finish(slot.session, keep=False)
    scheduler.landed(step, Verdict(), 0.01)


def test_tokens_of_a_session_that_made_room_are_counted_when_they_are_computed_again() -> None:
    """After many short answers the ring expects two more, but they are long, and there is no room for both."""
    scheduler = scheduler_of(context=1024, max_sessions=1)
    short = [request(20, 500, first=30 * n, stop=1) for n in range(20)]
    long = [request(200, 700, first=1000 * n) for n in (1, 2)]
    for session in (*short, *long):
        scheduler.admission.submit(session)
    held = 0
    while not all(session.finished for session in long):
        turn(scheduler)
        held = max(held, long[1].lost)
    assert scheduler.admission.recomputed == held > 200


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
        scheduler.admission.submit(session)

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
                scheduler.admission.finish(session, keep=False)
                if len(ends) < 3 * streams:
                    ask()
        scheduler.landed(step, Verdict(), 0.01)
    assert not scheduler.admission.running
    assert not len(scheduler.admission.waiting)
    return Outcome([*ends], computed, scheduler.admission.recomputed, sum(rows) / len(rows))


@pytest.mark.parametrize(("streams", "stages"), [(64, 2), (128, 1)])
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


# --- sessions that begin alike --------------------------------------------------------------------------------------

SYSTEM = tuple(range(2000))


def asking(own: int, first: int = 3000, system: Sequence[int] = SYSTEM) -> Session:
    """A request with the system prompt, and `own` tokens of the client's."""
    tokens = (*system, *(first + n for n in range(own)))
    return Session(GenerateRequest("x", "m", tokens, 200, frozenset(), Sampling()))


def prompt_tokens(step: Step) -> int:
    return sum(map(len, step.tokens)) if step.lane >= FIRST_NUMBER else 0


def roomy(**others: bool) -> tuple[Scheduler, FakeStages]:
    limits = RingLimits(context=4096, max_sessions=64, max_queue=1000, max_rows=64, chunk=512)
    traits = Traits(**others)
    scheduler = Scheduler(limits, traits, itertools.count(FIRST_NUMBER), 1)
    return scheduler, FakeStages(pads=traits.pads, trimmable=traits.trimmable)


def run_step(scheduler: Scheduler, fake: FakeStages) -> Step:
    """Compute the next step, and check what each session gets."""
    step = scheduler.next()
    assert step
    for op in step.ops:
        fake.apply(op)
    for slot, token in zip(step.rows, fake.run(step), strict=True):
        if step.samples and not slot.gone:
            assert token == next_token(slot.session.tokens)
            if slot.session.accept(token).finish:
                scheduler.admission.finish(slot.session, keep=True)
    scheduler.landed(step, Verdict(), 0.01)
    return step


@pytest.mark.parametrize("together", [True, False])
def test_a_system_prompt_of_many_clients_is_computed_once(*, together: bool) -> None:
    """Also if they come one after the other, while the first ones get their answers."""
    scheduler, fake = roomy()
    sessions = [asking(1 + n % 20, first=3000 + 20 * n) for n in range(64)]
    left = deque(sessions)
    computed = 0
    while left or not all(session.generated for session in sessions):
        for _ in range(len(left) if together else 1):
            if left:
                scheduler.admission.submit(left.popleft())
        computed += prompt_tokens(run_step(scheduler, fake))
    own = sum(1 + n % 20 for n in range(64))
    assert computed == len(SYSTEM) + own
    assert [session.cached_tokens for session in sessions] == [0] + [len(SYSTEM)] * 63


def test_another_computes_the_beginning_if_the_first_hangs_up() -> None:
    scheduler, fake = roomy()
    first, *others = [asking(5, first=3000 + 10 * n) for n in range(4)]
    for session in (first, *others):
        scheduler.admission.submit(session)
    run_step(scheduler, fake)
    assert len(scheduler.admission.waiting) == 3
    scheduler.admission.finish(first, keep=False)
    computed = 0
    while not all(session.generated for session in others):
        computed += prompt_tokens(run_step(scheduler, fake))
    assert computed == len(SYSTEM) + 3 * 5
    assert [session.cached_tokens for session in others] == [0, len(SYSTEM), len(SYSTEM)]


def test_what_the_first_has_computed_is_not_lost_when_it_hangs_up() -> None:
    scheduler, fake = roomy()
    first, second = asking(5), asking(5, first=3010)
    for session in (first, second):
        scheduler.admission.submit(session)
    computed = prompt_tokens(run_step(scheduler, fake))
    scheduler.admission.finish(first, keep=True)
    while not second.generated:
        computed += prompt_tokens(run_step(scheduler, fake))
    assert computed == len(SYSTEM) + 5


def test_others_do_not_wait_for_a_beginning_that_they_do_not_share() -> None:
    scheduler, fake = roomy()
    for session in (asking(5), asking(5, first=3010), short := request(30, 50, first=4000)):
        scheduler.admission.submit(session)
    for _ in range(2):
        run_step(scheduler, fake)
    assert short.generated, "it overtakes the second, which waits"
    assert len(scheduler.admission.waiting) == 1


def test_nobody_waits_for_a_short_beginning() -> None:
    scheduler, _ = roomy()
    system = range(WORTH_SHARING - 1)
    for n in range(3):
        scheduler.admission.submit(asking(5, first=3000 + 10 * n, system=system))
    scheduler.next()
    assert scheduler.admission.running == 3


def test_a_question_asked_twice_is_computed_once() -> None:
    scheduler, fake = roomy()
    for session in (one := asking(5), other := asking(5)):
        scheduler.admission.submit(session)
    computed = 0
    while not (one.generated and other.generated):
        computed += prompt_tokens(run_step(scheduler, fake))
    assert computed == len(SYSTEM) + 5 + 1, "the last token again, to draw from it"


def test_caches_that_cannot_go_back_share_only_what_is_kept() -> None:
    scheduler, _ = roomy(trimmable=False)
    sessions = [asking(5, first=3000 + 10 * n) for n in range(3)]
    for session in sessions:
        scheduler.admission.submit(session)
    scheduler.next()
    assert scheduler.admission.running == 3
