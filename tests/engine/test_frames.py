"""Steps of several tokens of a session: whatever was guessed, and however many guesses were right, every event is the same
bit by bit as without guesses.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import count, cycle, pairwise
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

import mlx.core as mx
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from node.core.errors import PippinError
from node.core.frames import Frame, Open
from node.core.generation import GenerateRequest, PromptProgress, Sampling, TokenEvent
from node.core.models import ModelVersion
from node.core.rings import Fence, Ring, StageSpec
from node.core.row_family import RowFamily
from node.engine.faults import Faults
from node.engine.plan import make_plan
from node.engine.runner import Runner
from node.engine.stage import Stage
from node.engine.verdict import Verdict
from node.ring.flight import Step
from node.ring.limits import RingLimits
from node.ring.pipeline import Pipeline
from node.ring.scheduler import Scheduler
from node.ring.session import Session
from node.text.constraint import Constraint, GrammarLost
from tests.engine.configurations import CONFIGURATIONS, each
from tests.engine.models import PROMPT_TOKENS, load, prompt, shared_model, write_model
from tests.engine.test_not_finite import changed
from tests.engine.test_quantized_kv import config as with_wide_heads

RING = Ring("m@1.1", ModelVersion("m"), (StageSpec("a", 0, 4),), 4096, 4, fence=Fence(1, 1))
PLAIN = [name for name, config in CONFIGURATIONS.items() if make_plan(config).trimmable and name != "phi3small"]
"""All whose caches can be trimmed, but the one whose answer depends on how a prompt is divided."""
GREEDY = Sampling(temperature=0, logprobs=3)
SEEDED = Sampling(temperature=1.2, top_p=0.95, seed=11, logprobs=1)
PENALIZED = Sampling(temperature=0.7, seed=3, repetition_penalty=1.3, presence_penalty=0.5, logprobs=0)
TOKENS = 30
EVERY = (2, 4, 9, 1000)
"""Of the predicted tokens each of these is wrong."""
PAIRS = RowFamily(((2, 1.0),))
FOURS = RowFamily(((4, 1.0),))
FROM_TWO = RowFamily(((2, 1.0), (3, 1.1), (4, 1.2)))
FROM_ONE = RowFamily(((1, 1.0), (2, 1.02), (3, 1.03), (4, 1.04)))


class Played:
    """A ring whose stages are runners of this thread: what a driver does, without its tasks. `steps` counts those that
    were computed for an answer, and `tokens` how many each had.
    """

    def __init__(self, stages: Sequence[Stage], family: RowFamily, *, guesses: bool = True) -> None:
        self.runners = [Runner(stage.sibling(), Path(), Faults()) for stage in stages]
        plan = self.runners[0].plan
        limits = RingLimits(context=512, max_sessions=4, max_queue=4, max_rows=4, chunk=64)
        self.scheduler = Scheduler(limits, plan, count(1 << 16), len(stages), guesses=guesses)
        self.scheduler.keep_to(family)
        self.pipeline = Pipeline(RING, None, print)
        self.in_flight: deque[tuple[Step, Frame]] = deque()
        self.tokens: list[int] = []

    def answer(self, request: GenerateRequest, constraint: Constraint | None = None) -> list[TokenEvent]:
        (events,) = self.answers([Session(request, constraint)])
        return events

    def answers(self, sessions: Sequence[Session]) -> list[list[TokenEvent]]:
        for session in sessions:
            self.scheduler.admission.submit(session)
        self.tokens = []
        while not all(session.finished for session in sessions):
            while not self.scheduler.flight.is_full and (step := self.scheduler.next() or self.scheduler.guess()):
                self._send(step)
            if self.in_flight:
                self._land(*self.in_flight.popleft())
        return [list(self._events(session)) for session in sessions]

    def _events(self, session: Session) -> Iterator[TokenEvent]:
        while not session.events.empty():
            event = session.events.get_nowait()
            assert isinstance(event, TokenEvent | PromptProgress), event
            if isinstance(event, TokenEvent):
                yield event

    def _send(self, step: Step) -> None:
        frame = self.pipeline.frame(step=step)
        is_of_answer = step.lane < 1 << 16
        if len(self.runners) == 1:
            pays = Event()  # a guess, so no further step begins without one
            run = self.runners[0].run
            for verdict in run(frame, step.tokens, step.draws(), (), step.ahead, lambda: not pays.is_set()):
                self.tokens += [len(step.tokens[0]) if step.tokens else 1] if is_of_answer else []
                step = self.scheduler.landed(step, verdict, 0.01) or step
                if self.scheduler.has_guesses(step):
                    pays.set()
        else:
            self.tokens += [len(step.tokens[0])] if is_of_answer else []
            self._go_round(step, self.runners[0].begin(frame, step.tokens, step.seen))

    def _go_round(self, step: Step, frame: Frame) -> None:
        for runner in self.runners[1:]:
            frame = runner.relay(frame, last=runner is self.runners[-1])
        self.in_flight.append((step, frame))

    def _land(self, step: Step, frame: Frame) -> None:
        following = self.scheduler.returned(step, 0.0)
        if following is None:
            return
        verdict = self.runners[0].finish(frame, step.draws(), following) if step.samples else Verdict()
        begun = self.scheduler.landed(step, verdict, 0.01)
        assert (begun is None) == (verdict.begun is None)
        if begun and verdict.begun:
            self.tokens.append(len(begun.tokens[0]) if begun.tokens else 1)
            self._go_round(begun, verdict.begun)


@cache
def stages(name: str, number: int, kv_bits: int = 0) -> list[Stage]:
    config = with_wide_heads(name) if kv_bits else CONFIGURATIONS[name]
    plan = make_plan(config, kv_bits=kv_bits)
    cuts = [round(part * len(plan.cuts) / number) for part in range(1, number)]
    bounds = [0, *(plan.cuts[cut] for cut in cuts if cut < len(plan.cuts)), plan.layers]
    directory = shared_model(config)
    return [load(directory, begin, end, kv_bits) for begin, end in pairwise(bounds)]


def asked(sampling: Sampling, **given: Any) -> GenerateRequest:
    ids: Any = prompt(13)[0].tolist()
    return GenerateRequest("x", "m", tuple(ids), TOKENS, sampling=sampling, **given)


def predicted(events: Sequence[TokenEvent], every: int) -> tuple[int, ...]:
    tokens = [event.token for event in events]
    return tuple((token + (k % every == every - 1)) % PROMPT_TOKENS for k, token in enumerate(tokens))


def told(events: Sequence[TokenEvent]) -> list[TokenEvent]:
    """Without what only tells how the prediction did."""
    return [replace(event, accepted_prediction_tokens=0) for event in events]


def check(ring: Sequence[Stage], family: RowFamily, request: GenerateRequest, grammar: str = "") -> list[TokenEvent]:
    """The events without guesses, to which all others are equal."""

    def constraint() -> Constraint | None:
        return Constraint(LLMatcher(tokenizer(), grammar)) if grammar else None

    plain = Played(ring, family, guesses=False)
    expected = plain.answer(request, constraint())
    assert {*plain.tokens} == {family.costs[0][0]}
    played = Played(ring, family)
    for every in EVERY:
        answer = played.answer(replace(request, prediction=predicted(expected, every)), constraint())
        assert told(answer) == told(expected), f"every {every}th guess is wrong"
    assert played.scheduler.guessed_right > 0
    return expected


@pytest.mark.parametrize("name", each(PLAIN))
@pytest.mark.parametrize("family", [PAIRS, FOURS], ids=["2", "4"])
def test_guesses_change_no_bit(name: str, family: RowFamily) -> None:
    for number, sampling in zip(cycle([1, 2, 3]), (GREEDY, SEEDED, PENALIZED), strict=False):
        check(stages(name, number), family, asked(sampling))


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("family", [FROM_ONE, FROM_TWO, PAIRS, FOURS], ids=["1-4", "2-4", "2", "4"])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, PENALIZED], ids=["greedy", "seeded", "penalized"])
def test_in_rings_of_any_length(number: int, family: RowFamily, sampling: Sampling) -> None:
    """With the family that has one, these are the events of a ring that knows of no steps of several tokens."""
    ring = stages("llama", number)
    expected = check(ring, family, asked(sampling))
    if family is FROM_ONE:
        assert expected == Played(ring, RowFamily(), guesses=False).answer(asked(sampling))


BAD = 7
"""A token whose embedding, and so its KV, is NaN."""


def damaged(directory: Path, number: int) -> list[Stage]:
    path = write_model(directory, CONFIGURATIONS["llama"])
    changed(path, "model.embed_tokens.weight", lambda w: mx.where(mx.arange(128)[:, None] == BAD, math.nan, w))
    return [load(path, begin, end) for begin, end in pairwise([0, *range(1, number), 4])]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("family", [FROM_ONE, FROM_TWO, FOURS], ids=["1-4", "2-4", "4"])
@pytest.mark.parametrize("sampling", [GREEDY, PENALIZED], ids=["greedy", "penalized"])
def test_a_guess_whose_kv_is_not_finite_changes_no_bit(
    number: int, family: RowFamily, sampling: Sampling, tmp_path: Path
) -> None:
    """Attention multiplies its values by 0 for the tokens before it in the step, which gives NaN."""
    ring = damaged(tmp_path, number)
    expected = Played(ring, family, guesses=False).answer(asked(sampling))
    tokens = [event.token for event in expected]
    assert BAD not in tokens, "the test needs another prompt"
    for every in (1, 2, 3, 7):
        played = Played(ring, family)
        wrong = tuple(BAD if k % every == every - 1 else token for k, token in enumerate(tokens))
        assert told(played.answer(replace(asked(sampling), prediction=wrong))) == told(expected)
        assert played.scheduler.guessed_right or every == 1


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("family", [FROM_ONE, FROM_TWO], ids=["1-4", "2-4"])
def test_a_token_whose_kv_is_not_finite_ends_its_session_whatever_is_guessed(
    number: int, family: RowFamily, tmp_path: Path
) -> None:
    ring = damaged(tmp_path, number)
    request = asked(Sampling(temperature=0, logit_bias={BAD: 100.0}))
    for prediction in ((), (BAD, 1, 2, 3), (1, BAD, 3, BAD)):
        session = Session(replace(request, prediction=prediction))
        with pytest.raises(AssertionError, match="is not finite"):
            Played(ring, family).answers([session])
        assert session.tokens[len(request.prompt) :] == [BAD]


class _Ascii:
    """A tokenizer of one byte each, and of an end."""

    bos_token_id = None
    eos_token_id = 0
    special_token_ids = (0,)
    tokens: ClassVar = [b"<end>", *(bytes([token]) for token in range(1, PROMPT_TOKENS))]

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError
        return list(text.encode())


@cache
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Ascii()), eos_token=[0], slices=None)


COLOUR = LLMatcher.grammar_from_regex(r'\{"colour": "(red|green)", "size": [0-9]{1,9}\}')


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("family", [FROM_ONE, FROM_TWO, FOURS], ids=["1-4", "2-4", "4"])
@pytest.mark.parametrize("sampling", [GREEDY, PENALIZED], ids=["greedy", "penalized"])
def test_a_grammar_sees_what_is_verified(number: int, family: RowFamily, sampling: Sampling) -> None:
    """What it forces is guessed, too: that takes fewer steps, without a client's prediction."""
    ring, request = stages("llama", number), asked(sampling, stop_tokens=frozenset({0}))
    text = bytes(event.token for event in check(ring, family, request, COLOUR)).decode()
    assert text.startswith('{"colour": "')
    played, plain = Played(ring, family), Played(ring, family, guesses=False)
    for each_ring in (played, plain):
        assert each_ring.answer(request, Constraint(LLMatcher(tokenizer(), COLOUR)))[:12]
    assert len(played.tokens) < len(plain.tokens)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("at", range(9, 14))
def test_an_answer_ends_within_a_step(number: int, at: int) -> None:
    """At a stop token, wherever it is in its step, or at its last token. What it left serves the next turn."""
    ring = stages("llama", number)
    whole = Played(ring, FOURS, guesses=False).answer(asked(SEEDED))
    tokens = [event.token for event in whole]
    assert tokens[at] not in tokens[:at], "the test needs another prompt"
    played, plain = Played(ring, FOURS), Played(ring, FOURS, guesses=False)
    for given in ({"stop_tokens": frozenset({tokens[at]})}, {}):
        request = replace(asked(SEEDED), **given) if given else replace(asked(SEEDED), max_tokens=at + 1)
        expected = plain.answer(request)
        assert len(expected) == at + 1
        assert told(played.answer(replace(request, prediction=tuple(tokens)))) == told(expected)
        turn = replace(asked(SEEDED), prompt=(*request.prompt, *tokens[: at + 1], 5))
        again, other = played.answer(turn), plain.answer(turn)
        assert [event.token for event in again] == [event.token for event in other]
        assert again[0].cached_tokens >= 13 + at - 3


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_with_quantized_kv(name: str) -> None:
    for number in (1, 2):
        check(stages(name, number, 8), FOURS, asked(GREEDY))


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("family", [FROM_ONE, FROM_TWO], ids=["1-4", "2-4"])
def test_sessions_come_and_go(number: int, family: RowFamily) -> None:
    """They share lanes for a while, in which a step has one token of each. Each gets its own tokens."""
    ring = stages("llama", number)
    samplings = (GREEDY, SEEDED, PENALIZED, replace(SEEDED, seed=4))
    requests = [
        replace(asked(each), prompt=asked(each).prompt[k:], max_tokens=10 + 9 * k) for k, each in enumerate(samplings)
    ]
    alone = [Played(ring, family, guesses=False).answer(request) for request in requests]
    predictions = [predicted(events, 5) for events in alone]
    played = Played(ring, family)
    pairs = zip(requests, predictions, strict=True)
    found = played.answers([Session(replace(request, prediction=prediction)) for request, prediction in pairs])
    assert [[event.token for event in events] for events in found] == [
        [event.token for event in events] for events in alone
    ]
    assert {1} < {*played.tokens}


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_next", "mamba2"])
@pytest.mark.parametrize("number", [1, 2])
def test_caches_that_cannot_be_trimmed_have_steps_of_one_token(name: str, number: int) -> None:
    ring = stages(name, number)
    expected = Played(ring, RowFamily(), guesses=False).answer(asked(GREEDY))
    played = Played(ring, FROM_TWO)
    assert told(played.answer(replace(asked(GREEDY), prediction=predicted(expected, 4)))) == told(expected)
    assert {*played.tokens} == {1}


def test_a_stage_refuses_a_guess_of_several_tokens_that_it_cannot_trim() -> None:
    (stage,) = stages("mamba2", 1)
    stage = stage.sibling()
    stage.lanes.apply(Open(1))
    with pytest.raises(PippinError, match="A guess of a mamba2 model has one token, not 3"):
        stage.run(1, prompt(3), unverified=2)


@pytest.mark.parametrize("name", each([name for name in PLAIN if make_plan(CONFIGURATIONS[name]).batchable]))
def test_a_session_that_is_alone_again_has_the_same_bits(name: str) -> None:
    """It had its lane with another one, from their first token on, so its caches are those of a batch."""
    ring = stages(name, 1)
    short = replace(asked(SEEDED), prompt=asked(SEEDED).prompt[::-1], max_tokens=4)

    def answer(prediction: tuple[int, ...], *, guesses: bool) -> list[TokenEvent]:
        played = Played(ring, FOURS, guesses=guesses)
        events, _ = played.answers([Session(replace(asked(GREEDY), prediction=prediction)), Session(short)])
        assert {*played.tokens} == {1, 4}
        return told(events)

    plain = answer((), guesses=False)
    for every in EVERY:
        assert answer(predicted(plain, every), guesses=True) == plain


class LosesItsWay:
    """A grammar that allows any token, and can't be followed after eight: the first ones of a session come without guesses."""

    binds = True

    def __init__(self) -> None:
        self.error: PippinError | None = None
        self.forced: list[int] = []
        self.memory = 0

    def allowed(self, generated: Sequence[int]) -> None:
        if len(generated) >= 8:
            self.error = GrammarLost("It can't be followed.")

    def look_ahead(self, token: int) -> None:
        pass


@pytest.mark.parametrize("number", [1, 2])
def test_the_tokens_before_a_grammar_is_lost_in_mid_frame_are_delivered(number):
    ring, request = stages("llama", number), asked(GREEDY)
    expected = [event.token for event in Played(ring, FROM_ONE, guesses=False).answer(request)]
    played = Played(ring, FROM_ONE)
    grammar: Any = LosesItsWay()
    session = Session(replace(request, prediction=tuple(expected)), grammar)
    with pytest.raises(AssertionError, match="can't be followed"):
        played.answers([session])
    assert max(played.tokens) > 3, "the grammar is lost in mid-frame"
    assert session.tokens[len(request.prompt) :] == expected[:8]
