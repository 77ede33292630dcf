"""Requests that evaluate a text without generating, their results, and the same for one chunk of a text."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvaluateRequest:
    """Asks a driver for the score of each token of a text, for what comes after it, or for the text's embedding."""

    id: str
    model: str
    prompt: tuple[int, ...]
    top: int | None = None
    """k: scores, each with the k likeliest tokens in its place; None: the embedding, unless there is `among`."""
    client: str = ""
    """As in GenerateRequest."""
    revision: str = ""
    """Revision of the model whose tokenizer made the prompt."""
    among: tuple[int, ...] = ()
    """Tokens of which one is to come after the text: their probabilities among each other."""


@dataclass(frozen=True, slots=True)
class Score:
    """The log-probability of a token after those before it, and the likeliest tokens in its place, likeliest first."""

    logprob: float
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Has scores, an embedding, or probabilities."""

    scores: Sequence[Score] = ()
    """Of every token but the first."""
    embedding: Sequence[float] = ()
    """Mean of the tokens' hidden states after the final norm, scaled to length 1."""
    among: Sequence[float] = ()
    """The probability of each of the request's `among`; they sum to 1."""


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """Asks the driver's runner about one row of a step: the scores of `following`, the sum of the hidden states,
    or the probabilities of `among` after its last token.
    """

    tokens: int
    """Tokens of the row."""
    following: tuple[int, ...] = ()
    """For each token of the row the next one; the last token of a text has none."""
    top: int | None = None
    """As in EvaluateRequest."""
    among: tuple[int, ...] = ()
    """As in EvaluateRequest; empty before the last chunk."""


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """Has scores, a total, or probabilities."""

    tokens: int
    scores: Sequence[Score] = ()
    total: Sequence[float] = ()
    """Sum of the hidden states after the final norm."""
    among: Sequence[float] = ()
    """As in Evaluation."""
