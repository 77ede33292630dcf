"""Samples the next token of each row.

In this order, in float32: penalties and bias are added to the logits; tokens that the grammar or the request forbids are excluded;
the logits are divided by the temperature; top_k, top_p and min_p exclude tokens, top_p and min_p among the remaining
ones; a token is drawn. Log-probabilities are of the model's own distribution, before all of this.

Drawing adds Gumbel noise to the logits and takes the largest. Each token id has its own noise, which depends on (seed,
position) alone, so small differences of the logits between machines change the token only at near ties.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np

from node.core.generation import Sampling, ThinkingBudget
from node.text.constraint import Constraint

Flags = np.ndarray[Any, np.dtype[np.bool_]]

NO_TOKEN = -1
"""Stands for a token if the logits are not finite."""


class History(NamedTuple):
    """Tokens of a session so far."""

    prompt: Sequence[int] = ()
    generated: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Draw:
    """The sampler's input for one row: the next token has `position`, from 0, and follows `history`."""

    sampling: Sampling
    position: int
    history: History
    ends: Callable[[int], bool] = lambda _: False
    """Whether the session ends with this token."""
    constraint: Constraint | None = None
    """The tokens that the session's grammar allows; needs the generated tokens of `history`."""
    thinking: ThinkingBudget | None = None
    """May force the token; needs them as well. None: there is none, or it is over."""

    @property
    def needs_tokens(self) -> bool:
        """Whether the tokens before it must be known."""
        return self.constraint is not None or self.thinking is not None or self.sampling.penalizes

    def next(self, token: int = NO_TOKEN) -> "Draw":
        """The input for the token after this one, if that is not the last; and if it is known, or needs not be."""
        if token == NO_TOKEN or self.ends(token) or not self.needs_tokens:
            return replace(self, position=self.position + 1, constraint=None)
        history = self.history._replace(generated=[*self.history.generated, token])
        return replace(self, position=self.position + 1, history=history)


MIN_LOGPROB = -9999.0
"""Log-probability of an impossible token, as JSON has no infinity."""


class Sampled(NamedTuple):
    """A sampled token, or NO_TOKEN. `logprob` and `top`, likeliest first, are set if `Sampling.logprobs` asks for them."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Drawn:
    """Drawn tokens, one for each row, which are not read yet: the next step can begin with them."""

    def __init__(self, tokens: mx.array, ids: mx.array, scores: Sequence[mx.array], asked: Mapping[int, int]) -> None:
        """`tokens`: int32 [rows], where the logits are not finite any token; `ids`: NO_TOKEN there. `asked`: the rows that
        ask for log-probabilities, and of how many of the likeliest tokens; `scores`: see `_scores`, of these rows.
        """
        self.tokens = tokens[:, None]
        """The next step's tokens, int32 [rows, 1]."""
        self.after: Sequence[int] = ()
        """The tokens of the step itself, one for each row, where it has begun ahead."""
        self.hidden: Sequence[mx.array] = ()
        """What the layers made of that step, where it has begun ahead and is to be told."""
        self._ids = ids
        self._scores = scores
        self._asked = asked
        self._rows = list(range(tokens.size))

    def filter(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.after = [self.after[row] for row in rows]
        self._rows = [self._rows[row] for row in rows]
        self.tokens = self.tokens[mx.array(list(rows))]

    def read(self) -> list[Sampled]:
        """Wait for the tokens."""
        ids = cast(list[int], self._ids.tolist())
        sampled = [Sampled(token) for token in ids]
        scored = _scored([ids[row] for row in self._asked], self._scores) if self._asked else ()
        for (row, top), each in zip(self._asked.items(), scored, strict=True):
            if each.token != NO_TOKEN:
                sampled[row] = each._replace(top=each.top[:top])
        return [sampled[row] for row in self._rows]


def begin_draw(logits: mx.array, draws: Sequence[Draw], beside: Sequence[mx.array] = ()) -> Drawn:
    """Draw one token for each row of logits [rows, vocabulary] of any floating dtype. Its evaluation has begun, with that
    of the arrays `beside` it. Seed and position are the state of the random numbers, so a request gets the same tokens
    on every node and in every run.
    """
    allowed = [_allowed(draw, logits.shape[-1]) for draw in draws]
    total = mx.logsumexp(logits, axis=-1, keepdims=True)
    if all(p.temperature == 0 and not p.logit_bias and not p.penalizes for p in (draw.sampling for draw in draws)):
        # On log-probabilities in the model's own dtype, as in mlx-lm, so that ties due to rounding are resolved alike.
        tokens = mx.argmax(_forbid(logits - total, allowed), axis=-1)
    else:
        tokens = _choose(logits, draws, allowed)
    tokens = tokens.astype(mx.int32)
    # In the same evaluation: a row with any NaN or +inf, or with only -inf, has no finite total.
    ids = mx.where(mx.isfinite(total[:, 0]), tokens, NO_TOKEN)
    scores: list[mx.array] = []
    asked = {row: draw.sampling.logprobs for row, draw in enumerate(draws) if draw.sampling.logprobs is not None}
    if asked:
        rows = mx.array(list(asked))
        scores = _scores(logits[rows], tokens[rows], max(asked.values()))
    mx.async_eval(tokens, ids, scores, beside)  # type: ignore[no-untyped-call]
    return Drawn(tokens, ids, scores, asked)


def score(logits: mx.array, tokens: Sequence[int], top: int) -> list[Sampled]:
    """Log-probabilities of given tokens, one for each row of logits [rows, vocabulary], and of the `top` likeliest. They
    are at least MIN_LOGPROB, and NaN if the logits are not finite.
    """
    return _scored(tokens, _scores(logits, mx.array(list(tokens), mx.int32), top))


def _scores(logits: mx.array, tokens: mx.array, top: int) -> list[mx.array]:
    """Log-probabilities of tokens, int32 [rows]; then unless `top` is 0, the likeliest tokens and their
    log-probabilities, [rows, top]. Not evaluated.
    """
    raw = logits.astype(mx.float32)
    logprobs = mx.maximum(raw - mx.logsumexp(raw, axis=-1, keepdims=True), MIN_LOGPROB)
    chosen = mx.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]
    top = min(top, logprobs.shape[-1])
    if top == 0:
        return [chosen]
    best = mx.argpartition(-logprobs, top - 1, axis=-1)[:, :top]
    values = mx.take_along_axis(logprobs, best, axis=-1)
    order = mx.argsort(-values, axis=-1)
    return [chosen, mx.take_along_axis(best, order, axis=-1), mx.take_along_axis(values, order, axis=-1)]


def _scored(tokens: Sequence[int], scores: Sequence[mx.array]) -> list[Sampled]:
    """Read the result of `_scores`."""
    mx.eval(scores)
    chosen, *top = (cast(Any, each.tolist()) for each in scores)
    tops = [tuple(zip(*row, strict=True)) for row in zip(*top, strict=True)] if top else [()] * len(tokens)
    return [Sampled(*scored) for scored in zip(tokens, chosen, tops, strict=True)]


def _choose(logits: mx.array, draws: Sequence[Draw], allowed: Sequence[bytes | None]) -> mx.array:
    x = logits.astype(mx.float32)
    params = [draw.sampling for draw in draws]
    if any(p.logit_bias or p.penalizes for p in params):
        x = mx.stack([_adjust(row, draw.sampling, draw.history) for row, draw in zip(x, draws, strict=True)])
    x = _forbid(x, allowed)
    if all(p.temperature == 0 for p in params):
        return mx.argmax(x, axis=-1)
    x = x / mx.array([[p.temperature or 1.0] for p in params])
    size, noise = x.shape[-1], list[mx.array]()
    for p, draw in zip(params, draws, strict=True):
        if p.temperature:
            noise.append(mx.random.gumbel((size,), key=mx.random.key(_mix(p.seed, draw.position))))
        else:  # greedy
            noise.append(mx.zeros((size,)))
    return mx.argmax(_restrict(x, params) + mx.stack(noise), axis=-1)


def _adjust(row: mx.array, sampling: Sampling, history: History) -> mx.array:
    """Apply penalties and bias to logits [vocabulary]: repetition penalty as in transformers (prompt and generated
    tokens), presence and frequency penalty as in OpenAI's API (generated tokens).
    """
    if sampling.repetition_penalty != 1 and (seen := sorted({*history.prompt, *history.generated})):
        ids = mx.array(seen, mx.int32)
        values = row[ids]
        penalty = sampling.repetition_penalty
        row = row.at[ids].add(mx.where(values < 0, values * penalty, values / penalty) - values)
    changes = defaultdict[int, float](float)
    if sampling.presence_penalty or sampling.frequency_penalty:
        for token, count in Counter(history.generated).items():
            changes[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    for token, bias in sampling.logit_bias.items():
        changes[token] += bias
    known = {token: change for token, change in changes.items() if 0 <= token < row.size}
    if known:
        row = row.at[mx.array(list(known), mx.int32)].add(mx.array(list(known.values()), mx.float32))
    return row


def _allowed(draw: Draw, size: int) -> bytes | None:
    """Bits of the tokens that may come, as in `_forbid`; None: all of them."""
    forced = draw.thinking.forced(draw.history.generated) if draw.thinking else None
    if forced is not None:  # a grammar binds after the thoughts only, and reads their tokens then
        return np.packbits(_set((forced,), size), bitorder="little").tobytes()
    bits = draw.constraint.allowed(draw.history.generated) if draw.constraint else None
    sampling = draw.sampling
    late = sampling.late if draw.position < sampling.min_tokens else ()
    if not (late or sampling.only):
        return bits
    flags = _flags(bits, size) if bits is not None else np.ones(size, bool)
    if sampling.only:
        flags &= _set(sampling.only, size)
    if late and (others := flags & ~_set(late, size)).any():
        flags = others
    return np.packbits(flags, bitorder="little").tobytes()


def _set(tokens: Sequence[int], size: int) -> Flags:
    flags = np.zeros(size, bool)
    flags[[token for token in tokens if token < size]] = True
    return flags


def _flags(bits: bytes, size: int) -> Flags:
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=size, bitorder="little").astype(bool)


def _forbid(x: mx.array, allowed: Sequence[bytes | None]) -> mx.array:
    """Set x [rows, vocabulary] to -inf where a row's bit is 0, lowest bit of each byte first; rows without bits stay."""
    if not any(allowed):
        return x
    rows = list(x)
    for k, bits in enumerate(allowed):
        if bits is not None:
            rows[k] = mx.where(mx.array(_flags(bits, x.shape[-1])), rows[k], -mx.inf)
    return mx.stack(rows)


def _restrict(x: mx.array, params: Sequence[Sampling]) -> mx.array:
    """Set tokens that top_k, top_p and min_p exclude to -inf. The likeliest token always stays."""
    size = x.shape[-1]
    if any(p.top_k > 0 or p.top_p < 1 for p in params):
        order = mx.argsort(-x, axis=-1)
        best = mx.take_along_axis(x, order, axis=-1)
        rank = mx.arange(size)[None]
        best = mx.where(rank < mx.array([[p.top_k if p.top_k > 0 else size] for p in params]), best, -mx.inf)
        before = mx.cumsum(mx.softmax(best, axis=-1, precise=True), axis=-1, inclusive=False)
        # Due to rounding the sum may reach 1 early, but a top_p of 1 must keep all tokens.
        top_p = mx.array([[p.top_p if p.top_p < 1 else 2.0] for p in params])
        best = mx.where((before < top_p) | (rank == 0), best, -mx.inf)
        x = mx.put_along_axis(x, order, best, axis=-1)
    if any(p.min_p > 0 for p in params):
        least = mx.log(mx.array([[max(p.min_p, 0.0)] for p in params]))
        x = mx.where(x < mx.max(x, axis=-1, keepdims=True) + least, -mx.inf, x)
    return x


def _mix(seed: int, position: int) -> int:
    """Hash seed and position to 64 bits (finalizer of splitmix64, applied twice)."""
    mask = (1 << 64) - 1
    value = seed & mask
    for step in (0, position):
        value = (value + (step + 1) * 0x9E3779B97F4A7C15) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        value ^= value >> 31
    return value
