"""What is asked of a driver, and what it gives: sampling, a request in tokens, and one generated token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. Temperature 0 is greedy. The RNG is a counter keyed by (seed, position)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    """None: none wanted; k: of the chosen token and of the k likeliest."""

    @property
    def penalizes(self) -> bool:
        """Whether drawing needs to know the tokens so far."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What a gateway asks of a driver, in tokens."""

    id: str
    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    """Tokens that end the generation (EOS); empty to go on to max_tokens."""
    sampling: Sampling = Sampling()
    grammar: str = ""
    """What the answer must follow, as node/text/grammar.py writes it; it ends only where that is complete."""
    resume: tuple[int, ...] = ()
    """Tokens already generated and delivered by a driver that was lost; the first new one has position len(resume)."""
    client: str = ""
    """Whom a ring's time is shared with: tells clients from each other, and of a client nothing else."""
    revision: str = ""
    """Of the model whose tokenizer made the prompt: no ring of another one may serve it."""


Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token. Positions count from 0 at the first generated token, without gaps.

    The token that ends a generation with `stop` is itself a control token; a gateway never shows it.
    """

    position: int
    token: int
    logprob: float | None = None
    top: Sequence[tuple[int, float]] = ()
    finish: Finish | None = None
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused; told with the first token that a driver gives."""
