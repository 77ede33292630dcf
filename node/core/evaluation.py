"""What is asked of a driver about a text that is there already, and its answer: nothing is generated."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvaluateRequest:
    """How likely a model thinks each token of a text; or the text as a vector."""

    id: str
    model: str
    prompt: tuple[int, ...]
    top: int | None = None
    """k: scores, each with the k likeliest tokens in its place; None: the embedding."""
    client: str = ""
    """As in GenerateRequest."""
    revision: str = ""
    """Of the model whose tokenizer made the prompt."""


@dataclass(frozen=True, slots=True)
class Score:
    """The log-probability of a token after those before it, and the likeliest tokens in its place, likeliest first."""

    logprob: float
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One of the two."""

    scores: Sequence[Score] = ()
    """Of every token but the first."""
    embedding: Sequence[float] = ()
    """The mean of the tokens' hidden states after the final norm, made 1 long."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be found out about a row of a step: scores of the tokens that follow each, or their hidden states."""

    tokens: int
    following: tuple[int, ...] = ()
    """The next token after each; the last one of a text has none."""
    top: int | None = None
    """As in EvaluateRequest."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The answer; `total` is the sum of the hidden states after the final norm."""

    tokens: int
    scores: Sequence[Score] = ()
    total: Sequence[float] = ()
