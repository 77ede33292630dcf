"""Steps that begin before the tokens of the last one are read: whatever happens then, nobody can tell."""

import gc
import math
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import node.engine.runner
from node.core.errors import PippinError
from node.core.frames import CacheOp, Drop, Filter, Frame, Held, Keep, Merge, Open, Reuse
from node.core.generation import Sampling
from node.core.rings import Fence
from node.engine.faults import Faults
from node.engine.plan import make_plan
from node.engine.runner import Runner
from node.engine.sampling import Draw, History, Sampled
from node.engine.stage import Stage
from node.engine.verdict import Following, StepFailed, Verdict
from tests.engine.configurations import CONFIGURATIONS, each
from tests.engine.models import load, prompt, shared_model, write_model

LANE = 9
BAD = 7
"""A token."""
GREEDY = Sampling(temperature=0, logprobs=2)
SEEDED = Sampling(temperature=1.5, top_p=0.95, seed=5, logprobs=0, logit_bias={3: 1.0})
WINDOWS = [
    "afmoe", "baichuan_m1", "cohere2", "cohere2_moe", "deepseek_v4", "deepseek_v4/local", "exaone4", "exaone_moe", "gear", "gemma3", "gemma3_text", "gemma3n", "gemma4",
    "gemma4_text", "gemma4_text/shared", "gemma4_text/moe", "gpt_oss", "laguna", "llama/sliding", "llama4", "mellum",
    "kolibri1", "mimo_v2", "mimo_v2_flash", "ministral3", "muse_glimmer", "olmo3", "plamo3", "recurrent_gemma", "spark2_5", "step3p5", "step3p7",
]  # fmt: skip
"""With caches that drop old tokens, which can't go back by a step."""
NAMES = [name for name in CONFIGURATIONS if name not in WINDOWS]


@dataclass(slots=True)
class Session:
    tokens: list[int]
    sampling: Sampling
    sampled: list[Sampled] = field(default_factory=list)
    ends: Callable[[int], bool] = lambda _: False


class Driven:
    """A runner of all layers, and the sessions of its lanes as a driver knows them."""

    def __init__(self, stage: Stage, *, ahead: bool) -> None:
        self.stage = stage.sibling()
        self.runner = Runner(self.stage, Path(), Faults())
        self.ahead = ahead
        self.rows: list[Session] = []
        self.ops: list[CacheOp] = []

    def prompt(self, tokens: list[int], sampling: Sampling = GREEDY, lane: int = 1, *open_: CacheOp) -> Session:
        """Run a prompt in a lane of its own, which joins the others with the next step."""
        session = Session(list(tokens), sampling)
        self.run(lane, [session], [tokens], (*(open_ or (Open(lane),)),))
        self.ops.append(Merge(LANE, lane))
        self.rows.append(session)
        return session

    def step(self, *, ahead: int = 1, go_on: Callable[[], bool] = lambda: True) -> None:
        """Several ones, if so many are to be begun ahead."""
        ahead = ahead if self.ahead else 0
        ops, self.ops = tuple(self.ops), []
        self.run(LANE, self.rows, [row.tokens[-1:] for row in self.rows], ops, ahead, go_on)

    def run(
        self,
        lane: int,
        rows: list[Session],
        tokens: Any,
        ops: tuple[CacheOp, ...],
        ahead: int = 0,
        go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        draws = [Draw(row.sampling, len(row.sampled), History(), row.ends) for row in rows]
        frame = Frame("r", Fence(1, 1), 0, ops, lane, sampled=True)
        runner = self.runner
        verdicts = runner.run(frame, tokens, draws, (), ahead, go_on)
        for row, result in (pair for verdict in verdicts for pair in zip(rows, verdict.results, strict=True)):
            assert isinstance(result, Sampled), result
            row.sampled.append(result)
            row.tokens.append(result.token)

    def end(self, row: int, prefix: int) -> Session:
        """End a session; its KV is kept."""
        staying = tuple(k for k in range(len(self.rows)) if k != row)
        known = len(self.rows[row].tokens) - 1
        self.ops += [Keep(LANE, row, prefix, known), Filter(LANE, staying) if staying else Drop(LANE)]
        return self.rows.pop(row)


def tokens(length: int, seed: int = 1) -> list[int]:
    listed: Any = prompt(length, seed)[0].tolist()
    return list(listed)


def pair(name: str = "llama") -> tuple[Driven, Driven]:
    """One that begins steps ahead, and one that does not."""
    return pair_of(shared_model(CONFIGURATIONS[name]))


def pair_of(directory: Path) -> tuple[Driven, Driven]:
    stage = load(directory, 0, 4)
    assert stage.plan.steps_back
    return Driven(stage, ahead=True), Driven(stage, ahead=False)


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.engine.runner, "MAX_JOB_S", 60.0)


def begun(driven: Driven) -> bool:
    return driven.stage.lanes.lane(LANE).ahead is not None


@pytest.mark.parametrize("name", each(NAMES))
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
def test_each_token_is_the_same(name: str, sampling: Sampling) -> None:
    """Bit by bit, with its log-probabilities, also after a step that was taken back; alone and, if the model can, as
    two rows of a lane.
    """
    one, other = pair(name)
    for driven in (one, other):
        driven.prompt(tokens(7), sampling)
        for _ in range(3):
            driven.step()
        if one.stage.plan.batchable:
            driven.prompt(tokens(4, seed=2), sampling, 2)
        for ahead in (1, 1, 0, 1):
            driven.step(ahead=ahead)
    assert begun(one)
    assert not begun(other)
    assert [row.sampled for row in one.rows] == [row.sampled for row in other.rows]
    assert one.stage.lanes.lane(LANE).positions == [position + 1 for position in other.stage.lanes.lane(LANE).positions]


def test_a_step_that_nobody_asks_for_is_taken_back() -> None:
    """Also where the caches have grown by it: mlx-lm's grow every 256 tokens."""
    one, other = pair()
    for driven in (one, other):
        session = driven.prompt(tokens(252))
        for _ in range(8):
            driven.step()
            session.tokens[-1] = (session.tokens[-1] + 1) % 128
    assert one.rows[0].sampled == other.rows[0].sampled


def test_the_kv_that_a_session_leaves_is_what_the_driver_knows() -> None:
    one, other = pair()
    for driven in (one, other):
        first = driven.prompt(tokens(20))
        for _ in range(4):
            driven.step()
        known = len(first.tokens) - 1
        driven.end(0, prefix=50)
        driven.prompt(first.tokens[known:], GREEDY, 2, *driven.ops, Reuse(2, 50, known))
        driven.ops = [Merge(LANE, 2)]
        driven.step()
        driven.step()
        driven.runner.kv.leave()
        successor = Driven(driven.stage, ahead=False)
        asked = [Held(50, 1000), Held(2, 1000)]
        assert successor.runner.kv.inherit(asked) == (Held(50, known), Held(2, known + 3))
        driven.rows += [successor.prompt([8], GREEDY, 3, Reuse(3, number, known)) for number in (50, 2)]
    assert [row.sampled for row in one.rows] == [row.sampled for row in other.rows]


@pytest.mark.parametrize(("name", "seed"), [*(("llama", seed) for seed in range(6)), ("qwen3_next", 1)])
def test_sessions_come_and_go(name: str, seed: int) -> None:
    """A row that stays uses the step that was begun with more rows, so only its tokens are the same bit by bit."""
    one, other = pair(name)
    ended: dict[bool, list[Session]] = {}
    used = 0
    for driven in (one, other):
        rng, ended[driven.ahead] = random.Random(seed), []
        pop_ahead = driven.stage.lanes.pop_ahead

        def counted(*asked: Any, pop_ahead: Any = pop_ahead) -> Any:
            nonlocal used
            found = pop_ahead(*asked)
            used += found is not None
            return found

        driven.stage.lanes.pop_ahead = counted  # type: ignore[method-assign]
        for number in range(40):
            match rng.choice(["come", "go", *["step"] * 6, "alone"]):
                case "come":
                    sampling = rng.choice([GREEDY, SEEDED, Sampling(temperature=0)])
                    driven.prompt(tokens(rng.randint(1, 30), seed=number), sampling, 100 + number)
                case "go" if driven.rows and not driven.ops:
                    ended[driven.ahead].append(driven.end(rng.randrange(len(driven.rows)), 200 + number))
                case "alone" if driven.rows:
                    driven.step(ahead=0)
                case _ if driven.rows:
                    driven.step()
                case _:
                    pass
        ended[driven.ahead] += driven.rows
    assert used >= 8
    pairs = list(zip(ended[True], ended[False], strict=True))
    assert [ahead.tokens for ahead, _ in pairs] == [plain.tokens for _, plain in pairs]
    for ahead, plain in pairs:
        logprobs = [(each.logprob or 0.0, dict(each.top)) for each in ahead.sampled]
        for (logprob, top), expected in zip(logprobs, plain.sampled, strict=True):
            assert logprob == pytest.approx(expected.logprob or 0.0, abs=1e-4)
            assert top == pytest.approx(dict(expected.top), abs=1e-4)


def test_a_row_that_is_not_finite_fails_alone(tmp_path: Path) -> None:
    """Its token is none, yet the next step has begun: the other row goes on with that step."""
    one, other = pair_of(write_model(tmp_path, CONFIGURATIONS["llama"]))
    weight = one.stage.model.model.embed_tokens.weight
    one.stage.model.model.embed_tokens.weight = mx.where(mx.arange(len(weight))[:, None] == BAD, math.nan, weight)
    for driven in (one, other):
        driven.prompt([1, 2, 3])
        driven.prompt([4, 5, 6], Sampling(temperature=0, logit_bias={BAD: 1e9}), 2)
        with pytest.raises(AssertionError, match="StepFailed"):  # the second row was given the token BAD
            driven.step()
        del driven.rows[1]
        driven.ops = [Filter(LANE, (0,))]
        assert begun(driven) == driven.ahead
        driven.step()
        driven.step()
    assert [each.token for each in one.rows[0].sampled] == [each.token for each in other.rows[0].sampled]
    assert len(one.rows[0].sampled) == 4


def test_an_error_of_the_step_ahead_fails_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = pair()
    one.prompt(tokens(5))
    one.step()

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(one.stage, "_body", fail)
        with pytest.raises(StepFailed, match="out of memory"):
            one.step()
    with pytest.raises(PippinError, match=f"no lane {LANE}"):
        one.stage.lanes.lane(LANE)
    one.rows.clear()
    one.prompt(tokens(5), GREEDY, 2)
    one.step()


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_several_steps_are_those_that_come_one_by_one(name: str) -> None:
    """Until a session ends; the step after that has begun, too, and the others use it."""
    one, other = pair(name)
    for driven in (one, other):
        driven.prompt(tokens(7), SEEDED)
        driven.prompt(tokens(7, seed=2), GREEDY, 2)
    for _ in range(14):
        other.step()
    sampled = [each.token for each in other.rows[0].sampled]
    last = next(at for at in range(6, 12) if sampled[at] not in sampled[:at])
    one.rows[0].ends = lambda token: token == sampled[last]
    one.step(ahead=3)
    assert len(one.rows[0].sampled) == 1 + 3
    one.step(ahead=20)
    assert [row.sampled for row in one.rows] == [row.sampled[: last + 1] for row in other.rows]
    one.end(0, prefix=50)
    one.step(ahead=2)
    (staying,) = one.rows
    assert [each.token for each in staying.sampled] == [each.token for each in other.rows[1].sampled[: last + 3]]


def test_steps_end_when_something_else_is_to_be_done() -> None:
    one, _ = pair()
    session = one.prompt(tokens(7))
    one.step(ahead=5, go_on=iter([True, False]).__next__)
    assert len(session.sampled) == 1 + 2
    assert begun(one)


@pytest.mark.parametrize(
    "free", [lambda driven: driven.runner.apply([Drop(LANE)]), lambda driven: driven.runner.kv.free()]
)
def test_a_lane_that_is_dropped_is_free_at_once(free: Callable[[Driven], None]) -> None:
    """Also if its next step has begun: its KV may be gigabytes, for which the garbage collector is too late."""
    one, _ = pair()
    one.prompt(tokens(7))
    one.step()
    assert begun(one)
    cache = weakref.ref(one.stage.lanes.lane(LANE).caches[0])
    gc.disable()
    try:
        free(one)
        assert cache() is None
    finally:
        gc.enable()


def test_steps_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = pair()
    session = one.prompt(tokens(7))
    monkeypatch.setattr(node.engine.runner, "MAX_JOB_S", 0.0)
    one.step(ahead=5)
    assert len(session.sampled) == 1 + 1


def test_memory_for_the_state_that_may_come_back_is_set_aside() -> None:
    one, _ = pair("mamba2")
    one.prompt(tokens(5))
    one.step()
    one.step()
    plan = make_plan(CONFIGURATIONS["mamba2"])
    assert one.stage.lanes.kv_bytes * 2 <= sum(cost.bytes_for(8) for cost in plan.kv)


@pytest.mark.parametrize("name", each(WINDOWS))
def test_windows_cannot_step_back(name: str) -> None:
    assert not make_plan(CONFIGURATIONS[name]).steps_back


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma3_text"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_ring_takes_back_a_step_that_no_session_needs(name: str, ends: bool) -> None:
    """The driver's layers begin with tokens that are not read. Windows can't be taken back, so they begin later."""
    directory = shared_model(CONFIGURATIONS[name])
    driver, last = load(directory, 0, 2), load(directory, 2, 4)
    found = []
    for chain in (True, False):
        ring = [Runner(stage.sibling(), directory, Faults()) for stage in (driver, last)]
        frame = Frame("r", Fence(1, 1), 0, (Open(0),), 0, sampled=True)
        given, sampled = tokens(7), []
        begun = ring[0].begin(frame, [given])
        for position in range(4):
            draws = [Draw(GREEDY, position, History(), lambda _: ends)]
            verdict = ring[0].finish(ring[1].relay(begun, last=True), draws, Following(chain=chain))
            assert (verdict.begun is not None) == (chain and not ends)
            (result,) = verdict.results
            assert isinstance(result, Sampled)
            sampled.append(result)
            begun = verdict.begun or ring[0].begin(Frame("r", Fence(1, 1), 0, (), 0, sampled=True), [[result.token]])
        found.append(sampled)
        assert ring[0]._stage.lanes.lane(0).positions == [7 + 4]
    assert found[0] == found[1]


def test_a_chunk_that_nobody_reads_fills_the_caches_only() -> None:
    one, other = pair()
    given = tokens(24)
    for driven in (one, other):
        if driven.ahead:
            frame = Frame("r", Fence(1, 1), 0, (Open(1),), 1)
            assert [*driven.runner.run(frame, [given[:16]])] == [Verdict([])]
            assert driven.stage.run(1, mx.array([given[16:20]]), wanted=False) == ()
            session = Session(list(given), GREEDY)
            driven.run(1, [session], [given[20:]], ())
            driven.rows.append(session)
        else:
            driven.prompt(given)
    assert one.rows[0].sampled[0].token == other.rows[0].sampled[0].token
    assert one.rows[0].sampled[0].logprob == pytest.approx(other.rows[0].sampled[0].logprob, abs=1e-4)
