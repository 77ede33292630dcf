"""A draft model: whatever was guessed before, it draws what it would draw after the same tokens from the beginning."""

import random
from dataclasses import replace

import mlx.core as mx
import pytest

from node.core.generation import Sampling
from node.engine.draft import DraftFailed, DraftModel
from node.engine.sampling import Draw, History
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import load, plan_of, shared_model

GREEDY = Draw(Sampling(temperature=0), 0, History(), lambda _: False)
FAMILIES = ["llama", "llama/sliding", "gpt_oss", "mamba2", "qwen3_next", "gemma3_text"]


def draft_model(name: str, vocabulary: int = 0) -> DraftModel:
    directory = shared_model(CONFIGURATIONS[name])
    plan = plan_of(directory)
    return DraftModel(load(directory, 0, plan.layers).sibling(), vocabulary or plan.vocabulary)


def drawn(draft: DraftModel, tokens: list[int], verified: int, draw: Draw = GREEDY) -> int:
    while (token := draft.guess(tokens, verified, draw)) is None:
        pass
    return token


@pytest.mark.parametrize("name", FAMILIES)
def test_it_goes_back_to_what_is_certain(name: str) -> None:
    draft, rng = draft_model(name), random.Random(name)
    tokens = [rng.randrange(90) for _ in range(20)]
    for _ in range(15):
        guessed = list[int]()
        for _ in range(rng.randint(0, 3)):
            token = drawn(draft, tokens + guessed, len(tokens))
            assert token == drawn(draft_model(name), tokens + guessed, len(tokens))
            guessed.append(token if rng.random() < 0.7 else rng.randrange(90))
        right = rng.randint(0, len(guessed))
        tokens += [*guessed[:right], rng.randrange(90)]


@pytest.mark.parametrize("name", FAMILIES)
def test_it_goes_on_with_another_session(name: str) -> None:
    draft, rng = draft_model(name), random.Random(name)
    system = [rng.randrange(90) for _ in range(30)]
    for size in (4, 0, 9, 2, 30):
        chat = [*system, *(rng.randrange(90) for _ in range(size))]
        for verified in (len(chat), len(chat) - 2):
            assert drawn(draft, chat, verified) == drawn(draft_model(name), chat, len(chat))


def test_a_long_prompt_takes_several_calls() -> None:
    draft, rng = draft_model("llama"), random.Random(1)
    tokens = [rng.randrange(90) for _ in range(300)]
    calls = 1
    while (token := draft.guess(tokens, 300, GREEDY)) is None:
        calls += 1
    assert calls > 1
    assert token == drawn(draft_model("llama"), tokens, 300)
    assert draft.kv_bytes > 0
    draft.clear()
    assert draft.kv_bytes == 0


def test_it_draws_with_the_random_numbers_of_the_larger_model() -> None:
    tokens = list(range(20))
    draws = [replace(GREEDY, sampling=Sampling(temperature=5.0, seed=seed), position=3) for seed in range(20)]
    one, other = draft_model("llama"), draft_model("llama")
    assert [drawn(one, tokens, 20, draw) for draw in draws] == [drawn(other, tokens, 20, draw) for draw in draws]
    assert len({drawn(one, tokens, 20, draw) for draw in draws}) > 5


@pytest.mark.parametrize("more", [-40, 40])
def test_the_larger_models_vocabulary_may_be_padded_in_another_way(more: int) -> None:
    vocabulary = plan_of(shared_model(CONFIGURATIONS["llama"])).vocabulary + more
    draft = draft_model("llama", vocabulary)
    draws = [replace(GREEDY, sampling=Sampling(temperature=50.0, seed=seed)) for seed in range(50)]
    assert {drawn(draft, [1, 2, 3], 3, draw) < min(vocabulary, vocabulary - more) for draw in draws} == {True}


def test_a_failure_frees_its_memory() -> None:
    draft = draft_model("llama")
    drawn(draft, [1, 2, 3], 3)
    weight = draft._stage.model.model.norm.weight
    draft._stage.model.model.norm.weight = weight * mx.array(mx.nan)
    try:
        with pytest.raises(DraftFailed, match="not finite"):
            draft.guess([1, 2, 3, 4], 4, GREEDY)
    finally:
        draft._stage.model.model.norm.weight = weight
    assert draft.kv_bytes == 0
    assert drawn(draft, [1, 2, 3, 4], 4) == drawn(draft_model("llama"), [1, 2, 3, 4], 4)
