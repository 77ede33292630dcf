"""Requests that generate, in tokens, their sampling options, and the events of generated tokens."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from node.core.pictures import Picture
from node.core.units import format_duration

RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 10),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
"""Sampling options that a model, or a preset, may give to requests that do not say them; the lowest and the highest value."""


CONVERSATION: Mapping[str, float] = {"temperature": 0.7, "top_p": 0.95}
"""Sampling in `cluster run` and `cluster chat` where neither user nor model says it: at OpenAI's temperature of 1 small models
derail. The page has the same.
"""


def in_range(name: str, value: Any) -> bool:
    """Whether a stranger's value of one of `RANGES` can be used."""
    low, high = RANGES[name]
    is_number = type(value) in (int, float) and low <= value <= high  # NaN is in no range
    return is_number and (name != "top_k" or value == int(value))


def parse_sampling(name: str, written: str) -> float:
    """A user's value of one of `RANGES`. Raises ValueError, which says what can be written."""
    if name not in RANGES:
        raise ValueError(f"there is no {name!r}, only {', '.join(RANGES)}")
    try:
        value = int(written) if name == "top_k" else float(written)
    except ValueError:
        value = math.nan
    if not in_range(name, value):
        raise ValueError(f"{name} must be a number from {RANGES[name][0]} to {RANGES[name][1]}, not {written!r}")
    return value


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
    min_tokens: int = 0
    """Number of tokens of the answer before which none of `late` comes; where a grammar allows nothing else, it comes all the same."""
    late: tuple[int, ...] = ()
    only: tuple[int, ...] = ()
    """The tokens that may come; empty: all."""
    logprobs: int | None = None
    """k: report the chosen token's log-probability and the k likeliest tokens; None: report none."""

    @property
    def penalizes(self) -> bool:
        """Whether sampling depends on the tokens so far."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """How long an answer may think. What it forces depends on the answer's tokens alone, so a session can be replayed."""

    tokens: int
    """Tokens of thoughts after which they are ended."""
    begin: tuple[int, ...]
    """The mark after which thoughts begin; empty: the answer begins with them."""
    ends: tuple[int, ...]
    """Tokens that end thoughts: the last one of their end mark, and the first one of a call."""
    closing: tuple[int, ...]
    """What ends them: words of the family, if it has some, and the end mark."""

    def forced(self, answer: Sequence[int]) -> int | None:
        """The token that must come after so much of an answer; None: any."""
        if len(answer) < self.tokens + len(self.begin):
            return None
        start = _end_of(self.begin, answer)
        if start is None or not 0 <= (closed := len(answer) - start - self.tokens) < len(self.closing):
            return None
        thoughts = answer[start : start + self.tokens]
        return None if any(end in thoughts for end in self.ends) else self.closing[closed]

    def is_over(self, answer: Sequence[int]) -> bool:
        """Whether it forces nothing any more."""
        start = _end_of(self.begin, answer)
        if start is None:
            return False
        thoughts, most = answer[start : start + self.tokens], start + self.tokens + len(self.closing)
        return len(answer) >= most or any(end in thoughts for end in self.ends)


def _end_of(part: Sequence[int], tokens: Sequence[int]) -> int | None:
    """Index behind the first occurrence of `part`; None if there is none."""
    if not part:
        return 0
    start = -1
    with suppress(ValueError):
        while True:
            start = tokens.index(part[0], start + 1)
            if tuple(tokens[start : start + len(part)]) == tuple(part):
                return start + len(part)
    return None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A gateway's request to a driver."""

    id: str
    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    """Tokens that end the generation (EOS); empty to go on to max_tokens."""
    sampling: Sampling = Sampling()
    grammar: str = ""
    """Grammar of the answer, as node/text/grammar.py writes it; the answer ends only where the grammar is complete."""
    resume: tuple[int, ...] = ()
    """Tokens already generated and delivered by a driver that was lost; the first new one has position len(resume)."""
    client: str = ""
    """Pseudonym of the client; rings share their time fairly among clients."""
    revision: str = ""
    """Revision of the model whose tokenizer made the prompt; only rings of the same revision serve it."""
    prediction: tuple[int, ...] = ()
    """Tokens of the answer that the client expects; right or wrong, they change only how fast it comes."""
    pictures: tuple[Picture, ...] = ()
    """Those whose places the prompt has, as Picture.numbers; see node.core.pictures."""
    thinking: ThinkingBudget | None = None
    """None: it may think for as long as it likes."""


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How much of a prompt is computed, in tokens; it comes after each chunk but the last. A request that resumes has its answer so far
    in its prompt, too.
    """

    done: int
    """Including those whose KV was there."""
    total: int

    def told(self, tokens_per_s: float) -> str:
        """For people, like "prompt: 1280 of 4096 tokens, 21 tokens/s, 2 min left"; without a rate, only the numbers."""
        share = f"prompt: {self.done} of {self.total} tokens"
        if tokens_per_s <= 0:
            return share
        left = format_duration((self.total - self.done) / tokens_per_s)
        return f"{share}, {tokens_per_s:.{1 if tokens_per_s < 99.5 else 0}f} tokens/s, {left} left"


Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token. Positions count from 0 at the first generated token, without gaps.

    The token that ends a generation with `stop` is a control token; gateways do not show it.
    """

    position: int
    token: int
    logprob: float | None = None
    top: Sequence[tuple[int, float]] = ()
    finish: Finish | None = None
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused; set in the first event of a driver."""
    accepted_prediction_tokens: int = 0
    """Tokens of the request's prediction that the answer has so far; the others count as rejected."""
