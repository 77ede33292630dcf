"""How many tokens a stream gets in the time of a stage, against the formula: with frames of several tokens, in rings of any
length, and guesses that are right as often as one likes. Counted in times of a stage, not in seconds.
"""

import itertools
import random
from collections import deque
from collections.abc import Sequence

import pytest

from node.core.frames import Frame
from node.core.generation import GenerateRequest
from node.core.rings import Fence
from node.core.row_family import RowFamily
from node.engine.sampling import Sampled
from node.engine.verdict import Verdict
from node.placement import frame_rows
from node.placement.frame_rows import speed
from node.ring.flight import Step
from node.ring.guess_gain import GuessGain
from node.ring.lane import FIRST_NUMBER
from node.ring.limits import RingLimits
from node.ring.scheduler import Scheduler
from node.ring.session import Session
from tests.sim.test_scheduler import Traits, right_ones

TOKENS = 3000
STAGE_S = 0.01


class Ring:
    """Each stage takes one unit of time for a step, or its own, whatever its tokens. The answer is known, so nothing is computed."""

    chains = True
    """Whether the job of a step's results may begin the lane's next step."""

    def __init__(self, stages: int, family: RowFamily, answer: Sequence[int], takes: Sequence[float] = ()) -> None:
        limits = RingLimits(context=TOKENS + 10, max_sessions=1, max_queue=1, max_rows=1, chunk=2048)
        self.scheduler = Scheduler(limits, Traits(), itertools.count(FIRST_NUMBER), stages)
        self.scheduler.keep_to(family)
        self.answer = answer
        self.takes = takes or [1.0] * stages
        self.free_at = [0.0] * stages
        self.now = self.landed_at = 0.0
        self.in_flight: deque[tuple[Step, float, float]] = deque()

    def send(self, step: Step) -> None:
        end = self.now
        for stage, free_at in enumerate(self.free_at):
            end = self.free_at[stage] = max(end, free_at) + self.takes[stage]
        self.in_flight.append((step, self.now, end))

    def land(self) -> None:
        step, begun_at, self.now = self.in_flight.popleft()
        seconds = STAGE_S * (self.now - max(begun_at, self.landed_at))
        self.landed_at = self.now
        if (following := self.scheduler.returned(step, seconds)) is None:
            return
        begin = step.rows[0].session.generated
        tokens = self.answer[begin : begin + 1 + len(step.guesses)] if step.samples else ()
        right = right_ones(step, tokens, following.guesses)
        self.landed(step, right)
        follows = right > len(step.guesses)
        begins = bool(following.next_guesses) if follows else following.chain and self.chains
        verdict = Verdict(
            [Sampled(token) for token in tokens[: right + 1]],
            right,
            Frame("r", Fence(1, 1), 0) if begins else None,
            following.next_guesses if begins and follows else (),
        )
        if begun := self.scheduler.landed(step, verdict, seconds):
            self.send(begun)

    def landed(self, step: Step, right: int) -> None:
        """The guesses are judged, and the session has no token of the step yet."""

    def pace(self, session: Session) -> float:
        """Tokens in the time of a stage."""
        self.scheduler.admission.submit(session)
        while not session.finished:
            while not self.scheduler.flight.is_full and (step := self.scheduler.next() or self.scheduler.guess()):
                self.send(step)
            self.land()
        return session.generated / self.now


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 2, 4])
@pytest.mark.parametrize("tau", [2, 4, 9, None])
def test_the_pace_is_that_of_the_formula(
    stages: int, tokens: int, tau: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_rows, "PERIOD", 1 << 20)  # the formula knows of no place where steps are short
    chosen = random.Random(7)
    answer = [chosen.randrange(5000) for _ in range(TOKENS)]
    wrong = [tau is not None and chosen.random() < 1 / tau for _ in answer]
    prediction = tuple(5000 + token if miss else token for token, miss in zip(answer, wrong, strict=True))
    session = Session(GenerateRequest("x", "m", (1, 2, 3), TOKENS, prediction=prediction))
    found = Ring(stages, RowFamily(((tokens, 1.0),)), answer).pace(session)
    assert session.tokens[3:] == answer
    rate = 1 - sum(wrong) / len(wrong)
    assert found * stages == pytest.approx(speed(tokens, 1.0, right=rate, stages=stages, in_flight=stages), rel=0.03)


@pytest.mark.parametrize("takes", [(0.4, 1.0), (1.0, 0.4), (0.2, 1.0, 1.0)], ids=str)
@pytest.mark.parametrize("tau", [1.5, 2, 4, 9, None])
def test_where_stages_take_unequally_long_guesses_that_cost_more_than_they_save_are_not_made(
    takes: tuple[float, ...], tau: float | None
) -> None:
    chosen = random.Random(7)
    answer = chosen.sample(range(5000), TOKENS)  # nothing is said twice
    prediction = tuple(5000 + token if tau and chosen.random() < 1 / tau else token for token in answer)

    def pace(*, guesses: bool, least_rate: float | None = None) -> float:
        session = Session(GenerateRequest("x", "m", (1, 2, 3), TOKENS, prediction=prediction if guesses else ()))
        ring = Ring(len(takes), RowFamily(), answer, takes)
        if least_rate is not None:
            ring.scheduler.filling.gain = Fixed(least_rate)
        found = ring.pace(session)
        assert ring.scheduler.alone.token_ms == pytest.approx(1e3 * STAGE_S / found, rel=0.15)  # of the last tokens
        return found

    assert pace(guesses=False) == pytest.approx(1 / sum(takes), rel=0.01)
    assert pace(guesses=True) > 0.95 * max(pace(guesses=False), pace(guesses=True, least_rate=0.0))


class Fixed(GuessGain):
    def __init__(self, rate: float) -> None:
        super().__init__(1)
        self.rate = rate

    @property
    def least_rate(self) -> float:
        return self.rate


class WithSource(Ring):
    """A draft model draws tokens, of which each is right so often, and takes `wait` for each; a step takes one unit of time."""

    chains = False

    def __init__(self, family: RowFamily, answer: Sequence[int], right: float, wait: float, stages: int = 1) -> None:
        super().__init__(stages, family, answer)
        self.chosen, self.right, self.wait = random.Random(3), right, wait
        self.scheduler.filling.context = 1 << 20
        self.drawn = 0

    def pace(self, session: Session) -> float:
        self.scheduler.admission.submit(session)
        while not session.finished:
            while wanted := self.scheduler.to_fill():
                self.draw(*wanted)
            self.scheduler.filling.fade()
            if step := self.scheduler.next():
                self.send(step)
            self.land()
        return session.generated / self.now

    def draw(self, session: Session, guessed: Sequence[int]) -> None:
        self.now += self.wait
        self.drawn += 1
        self.scheduler.waited(self.wait * STAGE_S, drawn=True)
        token = self.answer[session.generated + len(guessed)]
        token = token if self.chosen.random() < self.right else 5000 + token
        session.add_draft([*session.tokens, *guessed], len(session.tokens), token)


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize(("right", "wait"), [(0.95, 0.02), (0.9, 0.1), (0.7, 0.05)])
def test_on_one_node_steps_wait_for_guesses_as_the_formula_says(
    least: int, right: float, wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_rows, "PERIOD", 1 << 20)
    chosen = random.Random(7)
    answer = [chosen.randrange(5000) for _ in range(TOKENS)]
    family = RowFamily(tuple((count, 1.0) for count in (least, 4)))
    session = Session(GenerateRequest("x", "m", (1, 2, 3), TOKENS))
    found = WithSource(family, answer, right, wait).pace(session)
    assert session.tokens[3:] == answer
    best = max(speed(k, 1.0 + (k - 1) * wait, right=right, stages=1, in_flight=1) for k in (least, 4))
    # A run of wrong guesses has it take the source for a worse one for a while.
    assert 0.9 * best < found < 1.03 * best


def test_no_step_waits_for_a_guess_beyond_what_the_source_can_follow() -> None:
    answer = list(range(400))
    session = Session(GenerateRequest("x", "m", (1001, 1002, 1003), len(answer)))
    ring = WithSource(RowFamily(((1, 1.0), (4, 1.0))), answer, 1.0, 0.01)
    ring.scheduler.filling.context = 200
    ring.pace(session)
    assert 100 < ring.drawn < 200


@pytest.mark.parametrize(("right", "wait"), [(0.9, 3.0), (0.02, 0.1)])
def test_on_one_node_no_step_waits_for_guesses_that_do_not_pay(right: float, wait: float) -> None:
    chosen = random.Random(7)
    answer = [chosen.randrange(5000) for _ in range(TOKENS)]
    session = Session(GenerateRequest("x", "m", (1, 2, 3), TOKENS))
    ring = WithSource(RowFamily(((1, 1.0), (4, 1.0))), answer, right, wait)
    assert ring.pace(session) > 0.95
    assert ring.drawn < TOKENS / 5


class Dearer(WithSource):
    """Steps of several tokens take longer than was measured when the layers were loaded."""

    def send(self, step: Step) -> None:
        self.takes = [2.0 if step.guesses else 1.0]
        super().send(step)


@pytest.mark.parametrize("right", [0.5, 0.9])
def test_on_one_node_steps_count_as_what_they_take(right: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_rows, "PERIOD", 1 << 20)
    chosen = random.Random(7)
    answer = [chosen.randrange(5000) for _ in range(TOKENS)]
    session = Session(GenerateRequest("x", "m", (1, 2, 3), TOKENS))
    ring = Dearer(RowFamily(((1, 1.0), (4, 1.0))), answer, right, 0.05)
    found = ring.pace(session)
    formula = speed(4, 2.15, right=right, stages=1, in_flight=1)
    assert found > (0.96 if formula < 1.0 else 0.9 * formula)
    assert ring.drawn < TOKENS / 5 if formula < 1.0 else ring.drawn > TOKENS / 2
    assert ring.scheduler.alone.token_ms == pytest.approx(1e3 * STAGE_S / found, rel=0.15)  # of the last tokens


class RingWithSource(WithSource):
    """A driver of several stages, which draws guesses while it has nothing else to do."""

    padded = 0
    """Steps with tokens that nobody guessed."""

    def send(self, step: Step) -> None:
        self.padded += step.padding > 0
        super().send(step)

    def draw(self, session: Session, guessed: Sequence[int]) -> None:
        before, self.now = self.now, max(self.now, self.free_at[0])
        super().draw(session, guessed)
        self.now, self.free_at[0] = before, self.now

    def land(self) -> None:
        step, begun_at, end = self.in_flight.popleft()
        self.in_flight.appendleft((step, begun_at, max(end, self.free_at[0])))
        super().land()

    def pace(self, session: Session) -> float:
        self.scheduler.admission.submit(session)
        while not session.finished:
            while not (self.scheduler.flight.is_full or self.is_awaited) and self.act():
                pass
            self.land()
        return session.generated / self.now

    @property
    def is_awaited(self) -> bool:
        """Whether a step has come back while a guess was drawn."""
        return bool(self.in_flight) and self.now < self.in_flight[0][2] <= self.free_at[0]

    def act(self) -> bool:
        """As Driver._send_all."""
        scheduler = self.scheduler
        if wanted := scheduler.to_fill():
            self.draw(*wanted)
        elif step := scheduler.next() or scheduler.guess(whole=True):
            self.send(step)
        elif wanted := scheduler.to_draft(1 << 20, 0):
            self.draw(*wanted)
        elif step := scheduler.guess():
            self.send(step)
        else:
            return False
        return True


@pytest.mark.parametrize("costs", [((2, 1.0),), ((2, 1.0), (3, 1.1), (4, 1.2))], ids=["two", "two to four"])
@pytest.mark.parametrize("right", [0.8, 0.9])
def test_a_source_fills_the_steps_of_guesses_of_a_ring(
    costs: tuple[tuple[int, float], ...], right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_rows, "PERIOD", 1 << 20)
    chosen = random.Random(7)
    answer = [chosen.randrange(5000) for _ in range(TOKENS)]
    session = Session(GenerateRequest("x", "m", (1, 2, 3), TOKENS))
    ring = RingWithSource(RowFamily(costs), answer, right, 0.05, stages=2)
    found = 2 * ring.pace(session)
    assert session.tokens[3:] == answer
    assert ring.padded < 10
    assert found > 0.85 * speed(2, 1.0, right=right, stages=2, in_flight=2)


class Kernels(Ring):
    """Notes which kernels gave each token, where they change as the session's tokens come to a multiple of 1024."""

    def __init__(self, stages: int, family: RowFamily, answer: Sequence[int]) -> None:
        super().__init__(stages, family, answer)
        self.least = family.costs[0][0]
        self.odd: list[int] = []
        """Positions whose token another step would give other bits."""

    def landed(self, step: Step, right: int) -> None:
        begin = len(step.rows[0].session.tokens) - 1
        size = len(step.tokens[0]) if step.tokens else 1
        if step.lane < FIRST_NUMBER:
            kept = range(begin, begin + min(right, len(step.guesses)) + 1)
            self.odd += [k for k in kept if kernels(begin + size) != kernels(k + self.least)]


def kernels(keys: int) -> tuple[int, int]:
    """Some change with so many keys, some with one more."""
    return keys // 1024, (keys - 1) // 1024


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(
    "family",
    [((1, 1.0), (2, 1.0), (5, 1.0)), ((2, 1.0),), ((2, 1.0), (3, 1.0), (4, 1.0)), ((4, 1.0), (5, 1.0))],
    ids=["1-5", "2", "2-4", "4-5"],
)
@pytest.mark.parametrize("prompt", [1000, 1001, 1002, 1003, 1019, 1022])
def test_no_step_reaches_where_kernels_change(stages: int, family: tuple[tuple[int, float], ...], prompt: int) -> None:
    """Though all guesses are right, also after a token that is the same as the one before it."""
    answer = [k // 2 for k in range(60)]
    session = Session(GenerateRequest("x", "m", tuple(range(prompt)), len(answer), prediction=tuple(answer)))
    ring = Kernels(stages, RowFamily(family), answer)
    ring.pace(session)
    assert session.tokens[prompt:] == answer
    assert ring.odd == []
    assert ring.scheduler.guessed_right > len(answer) // 4


def test_of_several_sessions_only_the_oldest_one_asks_for_drafts() -> None:
    """A draft model follows one session, and begins anew with another one."""
    chosen = random.Random(7)
    answer = [chosen.randrange(5000) for _ in range(300)]
    ring, asked = Ring(3, RowFamily(), answer), list[Session]()
    limits = RingLimits(context=1000, max_sessions=4, max_queue=4, max_rows=4, chunk=64)
    ring.scheduler = Scheduler(limits, Traits(), itertools.count(FIRST_NUMBER), 3)
    sessions = [Session(GenerateRequest("x", "m", (number, 2, 3), len(answer))) for number in (1, 2)]
    for session in sessions:
        ring.scheduler.admission.submit(session)
    while not all(session.finished for session in sessions):
        while not ring.scheduler.flight.is_full:
            if step := ring.scheduler.next() or ring.scheduler.guess():
                ring.send(step)
                continue
            if (wanted := ring.scheduler.to_draft(1000, 0)) is None:
                break
            session, guessed = wanted
            asked.append(session)
            token = answer[session.generated + len(guessed)]
            session.add_draft([*session.tokens, *guessed], len(session.tokens), token)
        ring.land()
    assert sessions[0] in asked
    assert sum(one is not other for one, other in itertools.pairwise(asked)) <= 1
