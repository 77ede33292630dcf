"""Steps of guessed tokens: whether they turn out right or are taken back, later steps compute the same bits."""

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from node.core.errors import PippinError
from node.core.frames import Back, CacheOp, Filter, Held, Merge, Open, Reuse
from node.engine.plan import make_plan
from tests.engine.configurations import CONFIGURATIONS, each
from tests.engine.models import Ring, Stages, Whole, likeliest, prompt, same, shared_model
from tests.engine.test_quantized_kv import config as with_wide_heads

LANE = 7
STEPS = 9
"""With the prompt of 13, more tokens than the windows of all configurations (16)."""


def begin(ring: Ring, *, shared: bool) -> mx.array:
    """Run a prompt, in a lane that it has `shared` with another one for a while; returns the first token."""
    ring.apply(Open(1))
    logits = ring.step(prompt(13), lane=1)
    ops: list[CacheOp] = [Merge(LANE, 1)]
    if shared:
        ring.apply(Open(2))
        ring.step(prompt(5, seed=2), lane=2)
        ops += [Merge(LANE, 2), Filter(LANE, (0,))]
    ring.apply(*ops)
    return likeliest(logits)


def go_on(ring: Ring, token: mx.array) -> tuple[list[mx.array], list[mx.array]]:
    """Step by greedy step; returns the steps' tokens and their logits."""
    tokens, logits = [token], [ring.step(token, LANE)]
    while len(logits) < STEPS:
        tokens.append(likeliest(logits[-1]))
        logits.append(ring.step(tokens[-1], LANE))
    return tokens, logits


def go_on_with_guesses(ring: Ring, tokens: Sequence[mx.array], rng: random.Random) -> list[mx.array]:
    """The logits of these tokens' steps. Up to three of them are guessed, and up to three wrong guesses are taken back."""
    logits: list[mx.array] = []
    while len(logits) < len(tokens):
        logits.append(ring.step(tokens[len(logits)], LANE))
        right = min(rng.randint(0, 3), len(tokens) - len(logits))
        for guesses in range(1, right + 1):
            logits.append(ring.step(tokens[len(logits)], LANE, unverified=guesses))
        wrong = rng.randint(0, 3)
        for guesses in range(1, wrong + 1):
            right = rng.randint(0, right)  # the ones that are not verified yet
            ring.step(prompt(1, seed=guesses), LANE, unverified=right + guesses)
        if wrong:
            ring.apply(Back(LANE, wrong))
    return logits


def check(config: dict[str, Any], kv_bits: int = 0) -> None:
    plan = make_plan(config, kv_bits=kv_bits)
    ring = Stages(shared_model(config), kv_bits).ring(0, 2, plan.layers)
    other = Ring([stage.sibling() for stage in ring.stages])
    tokens, expected = go_on(ring, begin(ring, shared=plan.batchable))
    assert same(begin(other, shared=plan.batchable), tokens[0])
    got = go_on_with_guesses(other, tokens, random.Random(plan.model_type))
    assert [step for step, pair in enumerate(zip(got, expected, strict=True)) if not same(*pair)] == []


@pytest.mark.parametrize("name", each(CONFIGURATIONS))
def test_guesses_change_nothing(name: str) -> None:
    check(CONFIGURATIONS[name])


@pytest.mark.parametrize("name", ["llama/sliding", "qwen3_next"])
def test_guesses_change_nothing_with_quantized_kv(name: str) -> None:
    check(with_wide_heads(name), kv_bits=8)


def end(ring: Ring, *held: Held) -> tuple[Held, ...]:
    """End the ring, and begin its successor."""
    for stage in ring.stages:
        stage.lanes.leave(stage.leftover)
        held = stage.lanes.inherit(stage.leftover, held)
    return held


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "mamba2"])
def test_kv_of_guesses_is_not_inherited(name: str) -> None:
    """A wrong guess and the right token in its place give as many tokens: the last stage has not heard of the latter."""
    ring = Stages(shared_model(CONFIGURATIONS[name])).ring(0, 2, 4)
    token = begin(ring, shared=False)
    ring.step(token, LANE)
    ring.step(prompt(1, seed=5), LANE, unverified=1)
    driver, _ = ring.stages
    driver.lanes.apply(Back(LANE, 1))
    driver.run(LANE, token)
    can_trim = driver.plan.trimmable
    assert end(ring, Held(1, 15)) == ((Held(1, 14),) if can_trim else ())
    if can_trim:
        whole = Whole(shared_model(CONFIGURATIONS[name]))
        whole.step(prompt(13))
        whole.step(token)
        ring.apply(Reuse(9, 1, 14))
        assert same(ring.step(token, 9), whole.step(token))


def test_a_lane_forgets_its_guesses_when_another_one_joins() -> None:
    ring = Stages(shared_model(CONFIGURATIONS["llama"])).ring(0, 2, 4)
    token = begin(ring, shared=False)
    ring.step(token, LANE)
    ring.step(token, LANE, unverified=1)  # it turns out right
    ring.apply(Open(2))
    ring.step(prompt(20, seed=2), lane=2)
    ring.apply(Merge(LANE, 2))
    assert end(ring, Held(1, 15), Held(2, 20)) == (Held(1, 15), Held(2, 20))


def test_only_guesses_are_taken_back() -> None:
    ring = Stages(shared_model(CONFIGURATIONS["llama"])).ring(0, 2, 4)
    token = begin(ring, shared=False)
    ring.step(token, LANE)
    with pytest.raises(PippinError, match="Lane 7 has 0 guesses, of which 1 can't be taken back"):
        ring.apply(Back(LANE, 1))
    with pytest.raises(PippinError, match="Lane 7 has 0 guesses, not 1 that may be wrong"):
        ring.step(token, LANE, unverified=2)
    with pytest.raises(PippinError, match="Lane 7 has 0 guesses, not 1 that may be wrong"):
        ring.step(prompt(3), LANE, unverified=4)
