"""Scores and embeddings of texts, and which tokens come after them, from the hidden states of their tokens. Runs in the compute thread."""

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from node.core.evaluation import ChunkRequest, ChunkResult, Score
from node.engine.sampling import score
from node.engine.stage import Stage

HEAD_TOKENS = 64
"""Tokens of a text whose logits are computed at a time: with a vocabulary of 150,000 they take 40 MB."""


def evaluate(stage: Stage, hidden: Sequence[mx.array], row: int, chunk: ChunkRequest) -> ChunkResult:
    """The result of a row, which may not be finite. `stage`: the driver's. `hidden`: what the last stage has sent, of all
    tokens.
    """
    if chunk.among:
        logits = stage.finish(stage.part(hidden, row, chunk.tokens - 1, chunk.tokens))[0].astype(mx.float32)
        among: Any = mx.softmax(logits[mx.array(chunk.among)]).tolist()
        return ChunkResult(chunk.tokens, among=among)
    if chunk.top is None:
        states = stage.hidden(stage.part(hidden, row, 0, chunk.tokens))
        total: Any = mx.sum(states[0].astype(mx.float32), axis=0).tolist()
        return ChunkResult(chunk.tokens, total=total)
    scores: list[Score] = []
    for begin in range(0, len(chunk.following), HEAD_TOKENS):
        following = chunk.following[begin : begin + HEAD_TOKENS]
        part = stage.part(hidden, row, begin, begin + len(following))
        scored = score(stage.finish(part, every=True)[0], following, chunk.top)
        scores += [Score(each.logprob or 0.0, each.top) for each in scored]
    return ChunkResult(chunk.tokens, scores)


def is_finite(result: ChunkResult) -> bool:
    return all(map(math.isfinite, (*result.total, *result.among))) and all(
        math.isfinite(score.logprob) for score in result.scores
    )
