"""Draws the next token of each row.

The order of things, all in float32: penalties and bias change the logits; what a grammar forbids goes; temperature
scales them; top_k, top_p and min_p restrict them, top_p and min_p looking at what is left; then a token is drawn.
Log-probabilities are of the model's own distribution, before all of that.

Drawing adds Gumbel noise to the logits and takes the largest. The noise belongs to token ids, so tiny differences between
machines in the logits change the outcome only where it was a near tie. It is made from (seed, position) alone.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np

from node.core.generation import Sampling


class History(NamedTuple):
    """The tokens of a session so far."""

    prompt: Sequence[int] = ()
    generated: Sequence[int] = ()


NO_TOKEN = -1
"""In place of a token, where the logits are no numbers to draw from."""
MIN_LOGPROB = -9999.0
"""The log-probability of a token that cannot be, in JSON, which has no infinity."""


class Sampled(NamedTuple):
    """A token that was drawn, or NO_TOKEN; `logprob` and `top` (likeliest first) only where `Sampling.logprobs` asks for them."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample(
    logits: mx.array,
    params: Sequence[Sampling],
    positions: Sequence[int],
    histories: Sequence[History],
    allowed: Sequence[bytes | None] = (),
) -> list[Sampled]:
    """Draw one token for each row of logits [rows, vocabulary] of any floating dtype.

    `positions` are those of the tokens to draw, counted from 0 at the first generated one: with the seed they are the
    state of the random numbers, so the same request draws the same tokens wherever and however often it runs. `allowed`
    has a bit for each token of the vocabulary, from the lowest of each byte, for the rows that are not free to draw all.
    """
    total = mx.logsumexp(logits, axis=-1, keepdims=True)
    if all(map(_is_plain, params)):
        # As mlx-lm does it, so that ties that rounding makes fall alike: on log-probabilities in the model's own dtype.
        tokens = mx.argmax(_forbid(logits - total, allowed), axis=-1)
    else:
        tokens = _draw(logits, params, positions, histories, allowed)
    # In the same evaluation: a row of which any logit is NaN or infinite, or all are -inf, has no finite total.
    ids = cast(list[int], mx.where(mx.isfinite(total[:, 0]), tokens.astype(mx.int32), NO_TOKEN).tolist())
    wanted = [row for row, each in enumerate(params) if each.logprobs is not None and ids[row] != NO_TOKEN]
    if not wanted:
        return [Sampled(token) for token in ids]
    most = max(params[row].logprobs or 0 for row in wanted)
    scored = dict(zip(wanted, score(logits[mx.array(wanted)], [ids[row] for row in wanted], most), strict=True))
    return [
        Sampled(token, scored[row].logprob, scored[row].top[: params[row].logprobs])
        if row in scored
        else Sampled(token)
        for row, token in enumerate(ids)
    ]


def score(logits: mx.array, tokens: Sequence[int], top: int) -> list[Sampled]:
    """Log-probabilities of given tokens, one for each row of logits [rows, vocabulary], and of the `top` likeliest.

    They are NaN where the logits are no numbers, and MIN_LOGPROB at least.
    """
    raw = logits.astype(mx.float32)
    logprobs = mx.maximum(raw - mx.logsumexp(raw, axis=-1, keepdims=True), MIN_LOGPROB)
    chosen = mx.take_along_axis(logprobs, mx.array(list(tokens), mx.int32)[:, None], axis=-1)[:, 0]
    top = min(top, logprobs.shape[-1])
    if top == 0:
        return [Sampled(token, value) for token, value in zip(tokens, cast(list[float], chosen.tolist()), strict=True)]
    best = mx.argpartition(-logprobs, top - 1, axis=-1)[:, :top]
    values = mx.take_along_axis(logprobs, best, axis=-1)
    order = mx.argsort(-values, axis=-1)
    best, values = mx.take_along_axis(best, order, axis=-1), mx.take_along_axis(values, order, axis=-1)
    mx.eval(chosen, best, values)
    rows: Any = zip(best.tolist(), values.tolist(), strict=True)  # type: ignore[arg-type]
    tops = [tuple(zip(ids, logs, strict=True)) for ids, logs in rows]
    return [Sampled(*scored) for scored in zip(tokens, cast(list[float], chosen.tolist()), tops, strict=True)]


def _is_plain(sampling: Sampling) -> bool:
    """Greedy, and the model's logits as they are."""
    return sampling.temperature == 0 and not sampling.logit_bias and not sampling.penalizes


def _draw(
    logits: mx.array,
    params: Sequence[Sampling],
    positions: Sequence[int],
    histories: Sequence[History],
    allowed: Sequence[bytes | None],
) -> mx.array:
    x = logits.astype(mx.float32)
    if any(p.logit_bias or p.penalizes for p in params):
        x = mx.stack([_adjust(row, p, h) for row, p, h in zip(x, params, histories, strict=True)])
    x = _forbid(x, allowed)
    if all(p.temperature == 0 for p in params):
        return mx.argmax(x, axis=-1)
    x = x / mx.array([[p.temperature or 1.0] for p in params])
    return mx.argmax(_restrict(x, params) + _noise(x.shape[-1], params, positions), axis=-1)


def _adjust(row: mx.array, sampling: Sampling, history: History) -> mx.array:
    """Apply penalties and bias to logits [vocabulary].

    Repetition as Hugging Face does (prompt and generated tokens), presence and frequency as OpenAI (generated ones).
    """
    if sampling.repetition_penalty != 1 and (seen := sorted({*history.prompt, *history.generated})):
        ids = mx.array(seen, mx.int32)
        values = row[ids]
        penalty = sampling.repetition_penalty
        row = row.at[ids].add(mx.where(values < 0, values * penalty, values / penalty) - values)
    changes: Counter[int] = Counter()
    if sampling.presence_penalty or sampling.frequency_penalty:
        for token, count in Counter(history.generated).items():
            changes[token] -= sampling.presence_penalty + sampling.frequency_penalty * count  # type: ignore[assignment]
    for token, bias in sampling.logit_bias.items():
        changes[token] += bias  # type: ignore[assignment]
    changes = Counter({token: change for token, change in changes.items() if 0 <= token < row.size})
    if changes:
        row = row.at[mx.array(list(changes), mx.int32)].add(mx.array(list(changes.values()), mx.float32))
    return row


def _forbid(x: mx.array, allowed: Sequence[bytes | None]) -> mx.array:
    """Put -inf where a row's bits are 0, in x [rows, vocabulary]; rows without bits stay as they are."""
    if not any(allowed):
        return x
    return mx.stack([row if bits is None else _keep(row, bits) for row, bits in zip(x, allowed, strict=True)])


def _keep(row: mx.array, bits: bytes) -> mx.array:
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=row.size, bitorder="little")
    return mx.where(mx.array(flags), row, -mx.inf)


def _restrict(x: mx.array, params: Sequence[Sampling]) -> mx.array:
    """Put -inf where top_k, top_p and min_p exclude tokens. The likeliest token always stays."""
    size = x.shape[-1]
    if any(p.top_k > 0 or p.top_p < 1 for p in params):
        order = mx.argsort(-x, axis=-1)
        best = mx.take_along_axis(x, order, axis=-1)
        rank = mx.arange(size)[None]
        best = mx.where(rank < mx.array([[p.top_k if p.top_k > 0 else size] for p in params]), best, -mx.inf)
        before = mx.cumsum(mx.softmax(best, axis=-1, precise=True), axis=-1, inclusive=False)
        # Rounding may let the sum reach 1 early: a top_p of 1 keeps all.
        top_p = mx.array([[p.top_p if p.top_p < 1 else 2.0] for p in params])
        best = mx.where((before < top_p) | (rank == 0), best, -mx.inf)
        x = mx.put_along_axis(x, order, best, axis=-1)
    if any(p.min_p > 0 for p in params):
        least = mx.log(mx.array([[max(p.min_p, 0.0)] for p in params]))
        x = mx.where(x < mx.max(x, axis=-1, keepdims=True) + least, -mx.inf, x)
    return x


def _noise(size: int, params: Sequence[Sampling], positions: Sequence[int]) -> mx.array:
    """Gumbel noise [rows, size]; none for greedy rows."""
    return mx.stack(
        [
            mx.random.gumbel((size,), key=mx.random.key(_mix(p.seed, position))) if p.temperature else mx.zeros((size,))
            for p, position in zip(params, positions, strict=True)
        ]
    )


def _mix(seed: int, position: int) -> int:
    """64 bits that differ wildly between neighbouring seeds and positions (the finisher of splitmix64, twice)."""
    mask = (1 << 64) - 1
    value = seed & mask
    for step in (0, position):
        value = (value + (step + 1) * 0x9E3779B97F4A7C15) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        value ^= value >> 31
    return value
