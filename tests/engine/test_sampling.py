"""Sampling: the formulas against numbers computed by hand; random numbers depend on (seed, position) alone."""

import math
from typing import Any

import mlx.core as mx
import pytest

from node.core.generation import GenerateRequest, Sampling, ThinkingBudget
from node.engine.sampling import Draw, History, Sampled, begin_draw, score
from node.ring.session import Session
from tests.engine.models import sample

LOGITS = [2.0, 1.0, 0.0, -1.0, -2.0]
NONE = History()


def draw(logits, sampling, *, position=0, history=NONE):
    return sample(mx.array([logits]), [sampling], [position], [history])[0].token


def counts(logits, sampling, draws=2000, history=NONE):
    """Count each token, sampled at successive positions."""
    rows = mx.broadcast_to(mx.array(logits), (draws, len(logits)))
    drawn = sample(rows, [sampling] * draws, range(draws), [history] * draws)
    found = [0] * len(logits)
    for each in drawn:
        found[each.token] += 1
    return found


def test_greedy_takes_the_largest_and_of_equals_the_first():
    assert sample(mx.array([[0.0, 3.0, 3.0], [5.0, 1.0, 2.0]]), [Sampling(temperature=0)] * 2, [0, 0], [NONE] * 2) == [
        Sampled(1),
        Sampled(0),
    ]


def test_greedy_ties_fall_as_in_mlx_lm():
    """In bfloat16, subtracting the normalizer makes ties that the logits do not have."""
    logits = mx.random.normal((64, 4000), key=mx.random.key(3)).astype(mx.bfloat16)
    logits[:, 0] = 40.0
    logits = logits - 35
    expected = mx.argmax(logits - mx.logsumexp(logits, axis=-1, keepdims=True), axis=-1).tolist()
    drawn = sample(logits, [Sampling(temperature=0)] * 64, [0] * 64, [NONE] * 64)
    assert [each.token for each in drawn] == expected


def test_the_same_seed_and_position_draw_the_same():
    flat = [0.0] * 1000
    sampling = Sampling(seed=11)
    first = [draw(flat, sampling, position=p) for p in range(20)]
    assert [draw(flat, sampling, position=p) for p in reversed(range(20))] == first[::-1]
    assert len(set(first)) > 15
    assert [draw(flat, Sampling(seed=12), position=p) for p in range(20)] != first
    rows = sample(mx.zeros((20, 1000)), [sampling] * 20, range(20), [NONE] * 20)
    assert [each.token for each in rows] == first, "what else is in the batch must not matter"


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 + 5])
def test_any_seed_will_do(seed):
    assert 0 <= draw([0.0] * 10, Sampling(seed=seed), position=10**6) < 10


def test_neighbouring_seeds_are_strangers():
    drawn = {draw([0.0] * 100_000, Sampling(seed=s), position=p) for s in range(8) for p in range(8)}
    assert len(drawn) > 60


def test_the_global_random_state_is_not_touched():
    mx.random.seed(1)
    expected = mx.random.uniform().item()
    mx.random.seed(1)
    draw(LOGITS, Sampling(seed=3))
    assert mx.random.uniform().item() == expected


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability_says(temperature):
    weights = [math.exp(x / temperature) for x in LOGITS]
    expected = [2000 * w / sum(weights) for w in weights]
    for got, want in zip(counts(LOGITS, Sampling(temperature=temperature)), expected, strict=True):
        assert abs(got - want) < 5 * math.sqrt(want) + 1


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        # probabilities at temperature 1: 0.636, 0.234, 0.086, 0.032, 0.012
        (Sampling(top_k=1), {0}),
        (Sampling(top_k=2), {0, 1}),
        (Sampling(top_k=50), {0, 1, 2, 3, 4}),
        (Sampling(top_p=0.0), {0}),
        (Sampling(top_p=0.6), {0}),
        (Sampling(top_p=0.7), {0, 1}),
        (Sampling(top_p=0.9), {0, 1, 2}),
        (Sampling(top_p=1.0), {0, 1, 2, 3, 4}),
        (Sampling(min_p=0.3), {0, 1}),
        (Sampling(min_p=0.1), {0, 1, 2}),
        (Sampling(min_p=1.0), {0}),
        # top_k leaves two, of which the first has 0.73
        (Sampling(top_k=2, top_p=0.7), {0}),
        # at temperature 3 the first has 0.35, the second 0.25
        (Sampling(temperature=3, top_p=0.4), {0, 1}),
        (Sampling(temperature=0.0, top_k=3), {0}),
    ],
)
def test_what_is_restricted_never_comes(sampling, left):
    assert {token for token, count in enumerate(counts(LOGITS, sampling)) if count} == left


def test_top_k_of_equals_takes_exactly_k():
    assert sum(count > 0 for count in counts([1.0] * 8, Sampling(top_k=3))) == 3


def test_rows_have_their_own_parameters():
    params = [Sampling(temperature=0), Sampling(top_k=1), Sampling(logit_bias={4: 100}), Sampling(min_p=0.9)]
    drawn = sample(mx.array([LOGITS] * 4), params, [0, 1, 2, 3], [NONE] * 4)
    assert [each.token for each in drawn] == [0, 0, 4, 0]


GREEDY_HISTORY = History(prompt=(3,), generated=(0, 0, 1))


@pytest.mark.parametrize(
    ("sampling", "token"),
    [
        (Sampling(temperature=0), 0),
        # presence subtracts the same from 0 and 1, whatever their count: 1.1, 0.1, 0
        (Sampling(temperature=0, presence_penalty=0.9), 0),
        # 0.4, -0.6, 0
        (Sampling(temperature=0, presence_penalty=1.6), 0),
        # -0.1, -1.1, 0
        (Sampling(temperature=0, presence_penalty=2.0 - 1e-9 + 0.1), 2),
        # frequency counts: 2 - 2 * 0.6, 1 - 0.6
        (Sampling(temperature=0, frequency_penalty=0.6), 0),
        # 2 - 2 * 0.9 = 0.2, 1 - 0.9 = 0.1
        (Sampling(temperature=0, frequency_penalty=0.9), 0),
        # 2 - 2 * 1.1 = -0.2, 1 - 1.1 = -0.1, 0
        (Sampling(temperature=0, frequency_penalty=1.1), 2),
        # both: 2 - 2 * 0.5 - 0.5 = 0.5, 1 - 0.5 - 0.5 = 0
        (Sampling(temperature=0, frequency_penalty=0.5, presence_penalty=0.5), 0),
        # negative penalties favour: 1 + 1.5 = 2.5, 2 + 3 = 5
        (Sampling(temperature=0, frequency_penalty=-1.5), 0),
        # repetition divides logits above zero: 0.8, 0.4, 0
        (Sampling(temperature=0, repetition_penalty=2.5), 0),
        (Sampling(temperature=0, logit_bias={4: 100}), 4),
        (Sampling(temperature=0, logit_bias={0: -100}), 1),
        (Sampling(temperature=0, logit_bias={0: -100, 1: -100.0, 2: -0.5, 3: 0.6}), 3),
        (Sampling(temperature=0, logit_bias={99: 100}), 0),
    ],
)
def test_penalties_and_bias_by_hand(sampling, token):
    assert draw(LOGITS, sampling, history=GREEDY_HISTORY) == token


def test_repetition_multiplies_what_is_below_zero_and_counts_the_prompt():
    logits = [-1.0, -2.5, -1.9]
    sampling = Sampling(temperature=0, repetition_penalty=2.0)
    assert draw(logits, sampling) == 0
    assert draw(logits, sampling, history=History(prompt=(0,))) == 2  # -2, -2.5, -1.9
    assert draw(logits, sampling, history=History(generated=(0, 2))) == 0  # -2, -2.5, -3.8
    assert draw(logits, sampling, history=History(prompt=(0, 0, 0), generated=(2, 0))) == 0  # once, not thrice


def test_presence_and_frequency_do_not_count_the_prompt():
    sampling = Sampling(temperature=0, presence_penalty=2, frequency_penalty=2)
    assert draw(LOGITS, sampling, history=History(prompt=(0, 0, 0))) == 0


def test_bias_forces_and_bans_when_sampling():
    assert counts(LOGITS, Sampling(logit_bias={4: 100}), draws=200) == [0, 0, 0, 0, 200]
    assert counts([0.0, 0.0], Sampling(temperature=2, logit_bias={0: -100}), draws=200) == [0, 200]


def test_logprobs_are_the_models_own():
    """At temperature 1, before penalties and bias, whatever the sampling."""
    total = math.log(sum(map(math.exp, LOGITS)))
    for sampling in (
        Sampling(temperature=0, logprobs=2),
        Sampling(temperature=0.3, logit_bias={4: 100}, presence_penalty=1.0, logprobs=2),
    ):
        (drawn,) = sample(mx.array([LOGITS]), [sampling], [0], [History(generated=(0,))])
        assert drawn.token == (4 if sampling.logit_bias else 0)
        assert drawn.logprob == pytest.approx(LOGITS[drawn.token] - total, abs=1e-5)
        assert [token for token, _ in drawn.top] == [0, 1]
        assert [value for _, value in drawn.top] == pytest.approx([2 - total, 1 - total], abs=1e-5)


def test_logprobs_only_where_they_are_asked_for():
    params = [Sampling(temperature=0), Sampling(temperature=0, logprobs=0), Sampling(temperature=0, logprobs=3)]
    plain, zero, three = sample(mx.array([LOGITS] * 3), params, [0] * 3, [NONE] * 3)
    assert plain.logprob is None
    assert plain.top == ()
    assert zero.logprob == pytest.approx(three.logprob)
    assert zero.logprob <= 0
    assert zero.top == ()
    assert len(three.top) == 3


def test_score_gives_the_prompts_own():
    total = math.log(sum(map(math.exp, LOGITS)))
    scored = score(mx.array([LOGITS, LOGITS]).astype(mx.float16), [3, 0], top=9)
    assert [each.logprob for each in scored] == pytest.approx([-1 - total, 2 - total], abs=1e-3)
    assert [token for token, _ in scored[0].top] == [0, 1, 2, 3, 4]
    assert score(mx.array([LOGITS]), [1], top=0)[0].top == ()


def test_a_request_may_name_the_only_tokens():
    only = (1, 3, 4, 99)
    for temperature in (0, 1):
        sampling = Sampling(temperature=temperature, only=only, seed=5)
        drawn = {draw(LOGITS, sampling, position=p) for p in range(100)}
        assert drawn == ({1} if temperature == 0 else {1, 3, 4})


def test_what_ends_an_answer_comes_late():
    for temperature in (0, 1):
        sampling = Sampling(temperature=temperature, min_tokens=3, late=(0, 2), seed=5)
        drawn = [[draw(LOGITS, sampling, position=p) for p in (0, 1, 2)] for _ in range(3)]
        assert {token for each in drawn for token in each} <= {1, 3, 4}
        free = Sampling(temperature=temperature, seed=5)
        after = [draw(LOGITS, sampling, position=p) for p in range(3, 60)]
        assert after == [draw(LOGITS, free, position=p) for p in range(3, 60)]
        assert 0 in after


def test_where_a_grammar_allows_only_an_end_it_comes_early():
    class Ended:
        def allowed(self, generated):
            return bytes([0b00101])

    sampling = Sampling(temperature=0, min_tokens=3, late=(0, 2))
    constraint: Any = Ended()
    drawn = begin_draw(mx.array([LOGITS]), [Draw(sampling, 0, NONE, constraint=constraint)]).read()
    assert drawn[0].token == 0


def test_log_probabilities_do_not_depend_on_what_may_come():
    free = Sampling(temperature=0, logprobs=2)
    bound = Sampling(temperature=0, logprobs=2, only=(3,))
    one, other = sample(mx.array([LOGITS] * 2), [free, bound], [0, 0], [NONE] * 2)
    assert one.top == other.top
    assert (one.token, other.token) == (0, 3)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_thinking_budget_forces_tokens_whatever_the_logits(temperature):
    budget = ThinkingBudget(2, (), (4,), (3, 4))
    sampling = Sampling(temperature=temperature, only=(0, 1))
    session = Session(GenerateRequest("x", "m", (9,), 8, sampling=sampling, thinking=budget))
    row = mx.array([[100.0, 0.0, 0.0, 0.0, 0.0]])
    for _ in range(6):
        session.accept(begin_draw(row, [session.draw()]).read()[0].token)
    assert session.tokens == [9, 0, 0, 3, 4, 0, 0]
    assert not session.draw().needs_tokens, "the thoughts are over"
    resumed = Session(GenerateRequest("x", "m", (9,), 8, sampling=sampling, thinking=budget, resume=(0, 0, 3)))
    assert begin_draw(row, [resumed.draw()]).read()[0].token == 4


def test_guesses_beyond_a_thinking_budget_are_judged_by_it():
    budget = ThinkingBudget(2, (), (4,), (3, 4))
    session = Session(GenerateRequest("x", "m", (9,), 8, sampling=Sampling(temperature=0), thinking=budget))
    guesses = [0, 0, 0]
    draws = [session.draw(guesses[:count]) for count in range(4)]
    drawn = begin_draw(mx.broadcast_to(mx.array([1.0, 0.0, 0.0, 0.0, 0.0]), (4, 5)), draws).read()
    assert [each.token for each in drawn] == [0, 0, 3, 4]
