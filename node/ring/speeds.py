"""What this node measured of its speed, and which measurements count. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from node.core.models import HeldModel, Shard
from node.core.reports import Speed

MOST_SPEEDS = 64
"""Maximum models whose speed is remembered."""
REMEASURE_S = 3600.0
"""Minimum time between two measurements of a model whose speed is known: one lasts some tenths of a second, in which a ring may wait."""
AGREE = 1.25
"""Two measurements agree if neither is more than so many times the other: quiet machines vary by less, busy ones by more."""


@dataclass(frozen=True, slots=True)
class _Known:
    measured_at: float
    best: Speed
    agreed: Speed | None


class Speeds:
    """The best measurement of each model, kept when the model is unloaded.

    Other work on the machine only makes a measurement slower, so the best one is the truest. But while several programs
    load, one may be fourteen times as slow as the next: a measurement counts once a second one agrees with it.
    """

    def __init__(self) -> None:
        self._known: dict[HeldModel, _Known] = {}
        """The model that was measured last is the last one."""

    def note(self, speed: Speed, now: float) -> None:
        known = self._known.pop(speed.shard.version.files, None) or _Known(now, speed, None)
        best = _best(known.best, speed)
        # The first one has none to agree with.
        agreed = best if speed is not known.best and _agree(known.best, speed) else known.agreed
        self._known[speed.shard.version.files] = _Known(now, best, agreed)
        if len(self._known) > MOST_SPEEDS:
            del self._known[next(iter(self._known))]

    def is_known(self, shard: Shard) -> bool:
        """Whether two measurements of the shard's model agree."""
        known = self._known.get(shard.version.files)
        return known is not None and known.agreed is not None

    def is_stale(self, shard: Shard, now: float) -> bool:
        """Whether the shard's model should be measured when it is loaded."""
        known = self._known.get(shard.version.files)
        return not known or not known.agreed or now >= known.measured_at + REMEASURE_S

    def best(self, shard: Shard) -> Speed | None:
        """The best measurement of the shard's model, whether another agrees or not."""
        known = self._known.get(shard.version.files)
        return known.best if known else None

    def agreed(self) -> Iterator[Speed]:
        """What the other nodes are told."""
        return (known.agreed for known in self._known.values() if known.agreed)


def _prompt_rate(speed: Speed) -> float:
    """Layers that the tokens of a prompt pass through, per second: comparable between shards of a model."""
    return speed.tokens_per_s * (speed.shard.end - speed.shard.start)


def _best(one: Speed, other: Speed) -> Speed:
    """The better of each rate, as one may be disturbed and the other not; for the layers of `other`."""
    tokens_per_s = max(map(_prompt_rate, (one, other))) / (other.shard.end - other.shard.start)
    return Speed(other.shard, max(one.bytes_per_s, other.bytes_per_s), tokens_per_s)


def _agree(one: Speed, other: Speed) -> bool:
    pairs = (one.bytes_per_s, other.bytes_per_s), (_prompt_rate(one), _prompt_rate(other))
    return all(max(pair) <= AGREE * min(pair) for pair in pairs)
