"""What this node measured of its speed, and which measurements count. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from node.core.lru_cache import keep
from node.core.models import HeldModel, Shard
from node.core.reports import Speed
from node.core.rings import StageSpec
from node.core.row_family import Groups, LayerKind, RowFamily, equal_in_both

MOST_SPEEDS = 64
"""Maximum models whose speed is remembered, and shards of which it is known which numbers of tokens have equal bits."""
REMEASURE_S = 3600.0
"""Minimum time between two measurements of a model whose speed is known: one lasts some tenths of a second, in which a ring may wait."""
UNTRIED: Groups = ((1,),)
"""Of layers of which others could not be tried, as that would take long."""
AGREE = 1.25
"""Two measurements agree if neither is more than so many times the other: quiet machines vary by less, busy ones by more."""


@dataclass(frozen=True, slots=True)
class _Known:
    measured_at: float
    best: Speed
    agreed: Speed | None


@dataclass(frozen=True, slots=True)
class _Rows:
    kinds: frozenset[LayerKind]
    """Of the shard's layers."""
    groups: Groups
    seconds: Mapping[int, float]
    ahead: bool
    derived: bool = False
    """Whether the seconds are those of other layers."""


class Speeds:
    """The best measurement of each model, kept when the model is unloaded.

    Other work on the machine only makes a measurement slower, so the best one is the truest. But while several programs
    load, one may be fourteen times as slow as the next: a measurement counts once a second one agrees with it.
    """

    def __init__(self) -> None:
        self._known: dict[HeldModel, _Known] = {}
        """The model that was measured last is the last one."""
        self._rows: dict[Shard, _Rows] = {}

    def note(self, speed: Speed, now: float) -> None:
        shard = speed.shard
        known = self._known.get(shard.version.files) or _Known(now, speed, None)
        before = known.best
        weights, prompts = (before.bytes_per_s, speed.bytes_per_s), (_prompt_rate(before), _prompt_rate(speed))
        # The better of each rate, as one may be disturbed and the other not.
        head_s = min(filter(None, (before.head_s, speed.head_s)), default=0.0)
        best = Speed(shard, max(weights), max(prompts) / (shard.end - shard.start), head_s)
        agree = all(max(rates) <= AGREE * min(rates) for rates in (weights, prompts))
        agreed = best if agree and speed is not before else known.agreed  # the first one has none to agree with
        keep(self._known, shard.version.files, _Known(now, best, agreed), MOST_SPEEDS)

    def note_rows(
        self,
        shard: Shard,
        kinds: frozenset[LayerKind],
        groups: Groups,
        seconds: Mapping[int, float],
        *,
        ahead: bool = False,
    ) -> None:
        """Numbers of tokens of one session in a step, in groups of equal bits, and the seconds of such steps; `ahead`, if those of one
        token were begun ahead. As with speeds, the quickest step is the truest; bits don't change.
        """
        known = self._rows.get(shard)
        before = known.seconds if known and not known.derived else {}
        quickest = {count: min(took, before.get(count, took)) for count, took in seconds.items()}
        keep(self._rows, shard, _Rows(kinds, self.groups(shard) or groups, quickest, ahead), MOST_SPEEDS)

    def derive_rows(self, shard: Shard, kinds: frozenset[LayerKind], *, ahead: bool = False) -> None:
        """What is proven of all kinds of a shard's layers, by other shards of the model, is proven of them. Their steps are nearly in
        the proportion of others that were timed the same way.
        """
        others = [rows for other, rows in self._rows.items() if other.version == shard.version and rows.kinds & kinds]
        alike = [rows for rows in others if rows.groups != UNTRIED]
        seconds = next((rows.seconds for rows in alike if rows.seconds and rows.ahead == ahead), {})
        if (
            shard not in self._rows
            and seconds
            and kinds <= frozenset[LayerKind]().union(*(rows.kinds for rows in alike))
        ):
            groups = reduce(equal_in_both, (rows.groups for rows in alike))
            keep(self._rows, shard, _Rows(kinds, groups, dict(seconds), ahead, derived=True), MOST_SPEEDS)

    def groups(self, shard: Shard) -> Groups:
        """The groups of equal bits; empty if they are not known."""
        known = self._rows.get(shard)
        return known.groups if known else ()

    def families(self, shard: Shard) -> tuple[RowFamily, ...]:
        """What the other nodes are told of a shard: the groups, and what their steps cost."""
        known = self._rows.get(shard)
        if not known or not known.seconds:
            return ()
        cost = {count: max(1.0, took / known.seconds[1]) for count, took in known.seconds.items()}
        timed = (tuple(count for count in group if count in cost) for group in known.groups)
        return tuple(RowFamily(tuple((count, cost[count]) for count in group)) for group in timed if group)

    def is_stale(self, shard: Shard, now: float) -> bool:
        """Whether the shard should be measured: no two measurements of its model agree, the last one is long ago, or it is not known
        which numbers of tokens have equal bits.
        """
        known = self._known.get(shard.version.files)
        return shard not in self._rows or not known or not known.agreed or now >= known.measured_at + REMEASURE_S

    def best(self, shard: Shard) -> Speed | None:
        """The best measurement of the shard's model, whether another agrees or not."""
        known = self._known.get(shard.version.files)
        return known.best if known else None

    def agreed(self) -> Iterator[Speed]:
        """What the other nodes are told."""
        return (known.agreed for known in self._known.values() if known.agreed)


def slowest_token_s(stages: Sequence[StageSpec], known: Mapping[str, Speed]) -> float:
    """Seconds for each token of a prompt on the slowest of these stages, of one model; 0 if no speed is `known`, by node. Nodes of
    which none is known count as the slowest of the others.
    """
    rates = {node: rate for node, speed in known.items() if (rate := _prompt_rate(speed)) > 0}
    least = min(rates.values(), default=math.inf)
    return max((stage.end - stage.start) / rates.get(stage.node, least) for stage in stages)


def _prompt_rate(speed: Speed) -> float:
    """Layers that the tokens of a prompt pass through, per second: comparable between shards of a model."""
    return speed.tokens_per_s * (speed.shard.end - speed.shard.start)
