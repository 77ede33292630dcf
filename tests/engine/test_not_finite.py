"""Logits that are not finite: the row gets an error that names the layers, and all other rows continue."""

import math
from itertools import pairwise

import mlx.core as mx
import pytest

from node.core.evaluation import ChunkRequest
from node.core.frames import Frame, Merge, Open
from node.core.generation import Sampling
from node.core.rings import Fence
from node.engine.faults import Faults
from node.engine.runner import Runner
from node.engine.sampling import MIN_LOGPROB, NO_TOKEN, Draw, History, Sampled, score
from node.engine.verdict import Following, StepFailed
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import load, sample, write_model

BAD = 7
"""A token whose embedding is NaN."""


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0), Sampling(logprobs=2), Sampling(top_k=3)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_without_numbers_is_told_from_the_others(sampling, dtype, bad):
    good = mx.random.normal((1, 20)).astype(dtype)
    one = mx.where(mx.arange(20) == 3, bad, good).astype(dtype)
    none = mx.full((1, 20), -math.inf, dtype)
    banned = mx.where(mx.arange(20) == 3, -math.inf, good).astype(dtype)
    rows = mx.concatenate([good, one, none, banned])
    drawn = sample(rows, [sampling] * 4, [0] * 4, [History()] * 4)
    assert [each.token == NO_TOKEN for each in drawn] == [False, True, True, False]
    (alone,) = sample(good, [sampling], [0], [History()])
    assert drawn[0].token == alone.token
    for each in drawn:
        assert all(math.isfinite(logprob) for _, logprob in each.top)


def test_a_token_that_cannot_be_has_a_log_probability_that_json_has():
    (scored,) = score(mx.array([[0.0, -math.inf, 0.0]]), [1], 3)
    assert scored.logprob == MIN_LOGPROB
    assert min(logprob for _, logprob in scored.top) == MIN_LOGPROB


def runners(directory, *bounds):
    return [Runner(load(directory, *pair), directory, Faults()) for pair in pairwise(bounds)]


def stepped(ring, tokens, **frame):
    ops = (Open(0), Open(1), Merge(0, 1))
    began = Frame("r", Fence(1, 1), 0, ops=ops, lane=0, **frame)
    if len(ring) == 1:
        return began
    step = ring[0].begin(began, tokens)
    for stage in ring[1:]:
        step = stage.relay(step, last=stage is ring[-1])
    return step


def draws():
    return [Draw(Sampling(temperature=0), 0, History(), lambda _: False) for _ in range(2)]


def changed(directory, name, value):
    path = directory / "model.safetensors"
    weights = mx.load(str(path))
    mx.eval(weights)
    weights[name] = value(weights[name])
    mx.save_safetensors(str(path), weights)


@pytest.mark.parametrize(
    ("bounds", "where"),
    [((0, 4), "layers 0-3 or the LM head"), ((0, 2, 4), "layers 0-1"), ((0, 1, 3, 4), "layers 0-0")],
)
def test_only_the_row_fails_and_its_first_layers_are_named(bounds, where, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    changed(directory, "model.embed_tokens.weight", lambda w: mx.where(mx.arange(128)[:, None] == BAD, math.nan, w))
    ring, tokens = runners(directory, *bounds), [[1, 2, 3], [1, BAD, 3]]
    step = stepped(ring, tokens, sampled=True)
    if len(ring) == 1:
        (verdict,) = ring[0].run(step, tokens, draws())
    else:
        verdict = ring[0].finish(step, draws(), Following(chain=True))
        assert verdict.begun is None
    good, bad = verdict.results
    assert isinstance(good, Sampled)
    assert isinstance(bad, StepFailed)
    assert f"The output of {where} is not finite" in bad.message


@pytest.mark.parametrize(
    ("tensor", "where"),
    [
        ("model.layers.2.mlp.up_proj.weight", "layers 1-2"),
        ("model.layers.3.input_layernorm.weight", "layers 3-3"),
        ("lm_head.weight", "the final norm or the LM head"),
    ],
)
def test_the_stage_that_they_come_from_is_named(tensor, where, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    changed(directory, tensor, lambda w: mx.full(w.shape, math.inf))
    ring = runners(directory, 0, 1, 3, 4)
    verdict = ring[0].finish(stepped(ring, [[1, 2], [3, 4]], sampled=True), draws(), Following(chain=True))
    assert [f"The output of {where} is not finite" in str(each) for each in verdict.results] == [True, True]


@pytest.mark.parametrize("chunk", [ChunkRequest(3, (2, 3), 2), ChunkRequest(3, (2, 3), 0), ChunkRequest(3)])
def test_a_text_that_is_evaluated_fails_alone(chunk, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    changed(directory, "model.embed_tokens.weight", lambda w: mx.where(mx.arange(128)[:, None] == BAD, math.nan, w))
    ring = runners(directory, 0, 2, 4)
    good, bad = ring[0].evaluate(stepped(ring, [[1, 2, 3], [1, BAD, 3]], every=True), [chunk, chunk]).results
    assert not isinstance(good, StepFailed)
    assert "The output of layers 0-1 is not finite" in str(bad)
