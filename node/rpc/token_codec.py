"""Converts the answers of drivers to gateways. Written by hand, as this is on the token path."""

from collections.abc import Iterable, Iterator, Sequence

from node.core.evaluation import Evaluation, Score
from node.core.generation import Finish, TokenEvent
from node.wire import serving_pb2 as pb

SCORES_AT_ONCE = 4096
"""Scores per message; with 20 candidates each they take 1 MB."""


def encode_event(event: TokenEvent) -> pb.TokenEvent:
    return pb.TokenEvent(
        position=event.position,
        token=event.token,
        logprob=event.logprob,
        top=_candidates(event.top),
        finish=event.finish,
        cached_tokens=event.cached_tokens,
        accepted_prediction_tokens=event.accepted_prediction_tokens,
    )


def decode_event(message: pb.TokenEvent) -> TokenEvent:
    finish: Finish | None = None
    if message.HasField("finish"):
        finish = "stop" if message.finish == "stop" else "length"
    return TokenEvent(
        position=message.position,
        token=message.token,
        logprob=message.logprob if message.HasField("logprob") else None,
        top=_likeliest(message.top),
        finish=finish,
        cached_tokens=message.cached_tokens,
        accepted_prediction_tokens=message.accepted_prediction_tokens,
    )


def encode_evaluation(evaluation: Evaluation) -> Iterator[pb.Evaluation]:
    """Yield the evaluation in parts of limited size; at least one."""
    for begin in range(0, max(len(evaluation.scores), 1), SCORES_AT_ONCE):
        scores = evaluation.scores[begin : begin + SCORES_AT_ONCE]
        yield pb.Evaluation(
            scores=[pb.Score(logprob=score.logprob, top=_candidates(score.top)) for score in scores],
            embedding=evaluation.embedding,
        )


def decode_evaluation(parts: Sequence[pb.Evaluation]) -> Evaluation:
    scores = [Score(score.logprob, _likeliest(score.top)) for part in parts for score in part.scores]
    return Evaluation(scores, [value for part in parts for value in part.embedding])


def _candidates(top: Iterable[tuple[int, float]]) -> list[pb.Candidate]:
    return [pb.Candidate(token=token, logprob=logprob) for token, logprob in top]


def _likeliest(top: Iterable[pb.Candidate]) -> list[tuple[int, float]]:
    return [(candidate.token, candidate.logprob) for candidate in top]
