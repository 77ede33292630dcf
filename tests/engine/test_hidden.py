"""The hidden states for embeddings: equal to the stock model's, whole or cut, for every architecture."""

from operator import attrgetter

import mlx.core as mx
import pytest

from node.core.errors import ModelUnsupported
from node.engine.architectures import SUPPORTED, WITHOUT_EMBEDDINGS, module_of
from node.engine.plan import make_plan
from tests.engine.configurations import CONFIGURATIONS, each
from tests.engine.models import Stages, Whole, plan_of, prompt, same, shared_model

TRUNKS = ("language_model.model", "model", "backbone", "transformer")
"""Paths of the module whose output is the head's input in mlx-lm's models."""
EMBEDDING = [name for name, config in CONFIGURATIONS.items() if module_of(config) not in WITHOUT_EMBEDDINGS]


def stock_hidden(whole: Whole, tokens: mx.array) -> mx.array:
    for path in TRUNKS:
        try:
            trunk = attrgetter(path)(whole.model)
        except AttributeError:
            continue
        return trunk(tokens, cache=whole.caches)
    raise AssertionError(f"{type(whole.model).__module__} has its layers in another place")


@pytest.mark.parametrize("name", each(EMBEDDING))
def test_hidden_states_are_those_of_the_stock_model(name):
    directory = shared_model(CONFIGURATIONS[name])
    plan = plan_of(directory)
    tokens = prompt(9)
    expected = stock_hidden(Whole(directory), tokens)
    assert expected.shape == (1, 9, plan.width)
    stages = Stages(directory)
    for bounds in ((0, plan.layers), (0, plan.cuts[len(plan.cuts) // 2], plan.layers)):
        assert same(stages.ring(*bounds).hidden(tokens), expected)


@pytest.mark.parametrize("name", WITHOUT_EMBEDDINGS)
def test_without_embeddings(name):
    assert name in SUPPORTED
    plan = make_plan(CONFIGURATIONS[name])
    assert not plan.embeds
    ring = Stages(shared_model(CONFIGURATIONS[name])).ring(0, plan.layers)
    with pytest.raises(ModelUnsupported, match="no embeddings"):
        ring.hidden(prompt(9))


def test_asking_for_hidden_states_leaves_the_model_as_it_was():
    directory = shared_model(CONFIGURATIONS["llama"])
    ring, whole = Stages(directory).ring(0, 2, 4), Whole(directory)
    ring.hidden(prompt(9))
    whole.step(prompt(9))
    assert same(ring.step(prompt(3, seed=5)), whole.step(prompt(3, seed=5)))
