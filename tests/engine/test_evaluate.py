"""Scores and embeddings of a text, computed in chunks over a ring, against stock mlx-lm on the whole text at once."""

from itertools import pairwise

import mlx.core as mx
import pytest

from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.frames import CacheOp, Frame, Merge, Open
from node.core.rings import Fence
from node.engine.evaluate import HEAD_TOKENS
from node.engine.faults import Faults
from node.engine.runner import Runner
from node.ring.session import PartialEvaluation
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import Whole, load, prompt, shared_model
from tests.engine.test_hidden import stock_hidden

CHUNK = HEAD_TOKENS + 20
RINGS = [(0, 4), (0, 2, 4), (0, 1, 3, 4)]
NAMES = ["llama", "gemma3_text", "qwen3_next", "mamba2", "gpt2"]


def evaluated(directory, bounds, request: EvaluateRequest) -> Evaluation:
    """Evaluate as a driver does."""
    runners = [Runner(load(directory, *pair), directory, Faults()) for pair in pairwise(bounds)]
    evaluation = PartialEvaluation(request)
    ops: tuple[CacheOp, ...] = (Open(0),)
    for begin in range(0, len(request.prompt), CHUNK):
        chunk = request.prompt[begin : begin + CHUNK]
        frame = Frame("r", Fence(1, 1), 0, ops, 0, every=True)
        asked = evaluation.request(len(chunk))
        if len(runners) == 1:
            (verdict,) = runners[0].run(frame, [chunk], chunks=[asked])
        else:
            frame = runners[0].begin(frame, [chunk])
            for stage in runners[1:]:
                frame = stage.relay(frame, last=stage is runners[-1])
            verdict = runners[0].evaluate(frame, [asked])
        (result,) = verdict.results
        ops = ()
        if done := evaluation.add(result):
            return done
    raise AssertionError("the text has no end")


@pytest.mark.parametrize("bounds", RINGS)
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_the_stock_models_log_softmax(name, bounds):
    directory = shared_model(CONFIGURATIONS[name])
    tokens = prompt(2 * CHUNK + 5)
    logits = Whole(directory).step(tokens)[0].astype(mx.float32)
    logprobs = (logits - mx.logsumexp(logits, axis=-1, keepdims=True))[:-1]
    ids = tokens[0].tolist()
    expected = mx.take_along_axis(logprobs, tokens[0, 1:, None], axis=-1)[:, 0]

    scores = evaluated(directory, bounds, EvaluateRequest("x", "m", tuple(ids), top=3)).scores
    assert mx.allclose(mx.array([score.logprob for score in scores]), expected, atol=1e-4)
    for score, row in zip(scores, logprobs, strict=True):
        best = mx.sort(row)[::-1][:3]
        assert mx.allclose(mx.array([logprob for _, logprob in score.top]), best, atol=1e-4)
        assert [row[token].item() for token, _ in score.top] == pytest.approx(best.tolist(), abs=1e-4)
    greedy = (mx.argmax(logprobs, axis=-1) == tokens[0, 1:]).tolist()
    assert [score.logprob == score.top[0][1] for score in scores] == greedy


@pytest.mark.parametrize("bounds", RINGS)
@pytest.mark.parametrize("name", NAMES)
def test_an_embedding_is_the_mean_of_the_stock_models_hidden_states(name, bounds):
    directory = shared_model(CONFIGURATIONS[name])
    tokens = prompt(CHUNK + 9)
    mean = mx.mean(stock_hidden(Whole(directory), tokens)[0].astype(mx.float32), axis=0)
    expected = mean / mx.linalg.norm(mean)
    embedding = evaluated(directory, bounds, EvaluateRequest("x", "m", tuple(tokens[0].tolist()))).embedding
    assert mx.allclose(mx.array(embedding), expected, atol=1e-4)


def test_without_candidates_only_the_tokens_own_score_is_told():
    directory = shared_model(CONFIGURATIONS["llama"])
    tokens = tuple(prompt(10)[0].tolist())
    alone = evaluated(directory, (0, 4), EvaluateRequest("x", "m", tokens, top=0)).scores
    assert [score.top for score in alone] == [()] * 9
    assert [score.logprob for score in alone] == [
        score.logprob for score in evaluated(directory, (0, 4), EvaluateRequest("x", "m", tokens, top=2)).scores
    ]
    assert evaluated(directory, (0, 4), EvaluateRequest("x", "m", tokens[:1], top=2)) == Evaluation([], [])


@pytest.mark.parametrize(("top", "among"), [(None, ()), (2, ()), (None, (3, 5))])
def test_rows_of_different_lengths_are_each_evaluated_for_themselves(top, among):
    directory = shared_model(CONFIGURATIONS["llama"])
    texts = [tuple(prompt(length, seed=length)[0].tolist()) for length in (9, 4, 7)]
    requests = [EvaluateRequest("x", "m", text, top, among=among) for text in texts]
    evaluations = [PartialEvaluation(request) for request in requests]
    runners = [Runner(load(directory, *pair), directory, Faults()) for pair in ((0, 2), (2, 4))]
    ops: list[CacheOp] = [Open(0)]
    for row in range(1, len(texts)):
        ops += [Open(row), Merge(0, row)]
    frame = Frame("r", Fence(1, 1), 0, tuple(ops), 0, every=True, lengths=tuple(map(len, texts)))
    came = runners[1].relay(runners[0].begin(frame, texts), last=True)
    chunks = [evaluation.request(len(text)) for evaluation, text in zip(evaluations, texts, strict=True)]
    results = runners[0].evaluate(came, chunks).results
    for evaluation, request, result in zip(evaluations, requests, results, strict=True):
        together = evaluation.add(result)
        alone = evaluated(directory, (0, 4), request)
        assert together
        assert together.among == pytest.approx(alone.among, abs=1e-4)
        assert together.embedding == pytest.approx(alone.embedding, abs=1e-4)
        assert [s.logprob for s in together.scores] == pytest.approx([s.logprob for s in alone.scores], abs=1e-4)


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("bounds", RINGS)
@pytest.mark.parametrize("length", [1, CHUNK, 2 * CHUNK + 5])
def test_what_comes_next_is_the_softmax_of_the_stock_models_logits_in_the_last_bit(bounds, length, bits):
    directory = shared_model(CONFIGURATIONS["qwen3"], bits=bits)
    tokens, among, stock = prompt(length), (11, 7, 23), Whole(directory)
    logits = [stock.step(tokens[:, begin : begin + CHUNK]) for begin in range(0, length, CHUNK)][-1]
    expected = mx.softmax(logits[0, -1].astype(mx.float32)[mx.array(among)]).tolist()
    asked = EvaluateRequest("x", "m", tuple(tokens[0].tolist()), among=among)
    assert evaluated(directory, bounds, asked) == Evaluation([], [], expected)
