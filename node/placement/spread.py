"""Whether one stream of a model that fits on one node is faster on two, by what nodes have measured. Pure.

With guesses, two stages compute two steps of one stream at once; a frame of several tokens makes one node faster, too. So the formula
of node/placement/frame_rows.py decides, for both at their best numbers of tokens, with the time of a step and of the wire.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import isfinite

from node.core.models import ModelSpec, Shard
from node.core.reports import NodeReport, StageState
from node.core.row_family import RowFamily
from node.placement.footprint import footprint
from node.placement.frame_rows import family_of_ring, speed
from node.placement.speed import Pace
from node.placement.split import split, wire_ms

MIN_GAIN = 1.1
"""How many times as fast as on one node a single stream must be on two: formula and measurements have some error."""
_MOST_NODES = 8
"""Up to so many nodes, all pairs are tried."""
_CONTEXT = 2048
"""Of KV beside the layers when these are divided: each of the nodes has room for all layers."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What was measured of sessions that had a ring of one stage to themselves."""

    node: str
    token_ms: float
    foretold: float
    """Share of tokens that the best guess at each was right about."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of how many stages a model's rings are to be, by choice: one for each of the nodes, or one if there are none."""

    model: str
    nodes: tuple[str, ...] = ()
    gain: float = 0.0

    @property
    def stages(self) -> int:
        return len(self.nodes) or 1


@dataclass(frozen=True, slots=True)
class Single:
    """One node with the whole model."""

    family: RowFamily
    step_ms: float
    """Of a step of one token."""
    pace: float
    """Of the node: see node.placement.speed."""

    def token_ms(self, foretold: float) -> float:
        """Milliseconds a token of a stream of which this share of tokens is foretold."""
        return 1 / _tokens_per_ms(self.family, foretold, 1, self.step_ms, 0.0)


def best_single(spec: ModelSpec, nodes: Sequence[NodeReport], pace: Pace, stream: Stream) -> Single | None:
    """The node on which the stream is fastest, of those that serve the whole model; None if its own does not."""
    families = {node.info.id: known for node in nodes if (known := families_of_all(spec, node)) is not None}
    if stream.node not in families:
        return None
    own = family_of_ring([families[stream.node]])
    # What frames of several tokens have gained, steps of one would take longer.
    step_ms = stream.token_ms * _tokens_per_ms(own, stream.foretold, 1, 1.0, 0.0)
    singles = [
        Single(family_of_ring([known]), step_ms * pace[name] / pace[stream.node], pace[name])
        for name, known in families.items()
    ]
    return min(singles, key=lambda single: single.token_ms(stream.foretold))


def best_spread(spec: ModelSpec, nodes: Sequence[NodeReport], pace: Pace, stream: Stream) -> Spread | None:
    """The two nodes on which a stream is fastest, over the one node that is best for it. Only those count that serve the whole model,
    so that a ring of them loads nothing, and paths that were measured; None without two.
    """
    loaded = [node for node in nodes if families_of_all(spec, node) is not None][:_MOST_NODES]
    single = best_single(spec, loaded, pace, stream)
    if single is None:
        return None
    costs = footprint(spec, min(spec.max_context, _CONTEXT), 1)
    unit = single.step_ms / costs.work_of_all / single.pace
    measured = {frozenset((node.info.id, path.to)) for node in loaded for path in node.paths}
    found: list[tuple[float, bool, tuple[str, ...]]] = []
    for pair in permutations(loaded, 2):
        names = tuple(node.info.id for node in pair)
        ends = split(spec, costs, [node.memory.usable for node in pair], [pace[name] for name in names])
        if not ends or frozenset(names) not in measured or not isfinite(wire := wire_ms(pair)):
            continue
        work = [costs.work(0, ends[0], driver=True), costs.work(ends[0], spec.layers, driver=False)]
        slowest = max(bytes_ * pace[name] * unit for bytes_, name in zip(work, names, strict=True))
        family = family_of_ring([families_of_all(spec, node) or () for node in pair])
        rate = _tokens_per_ms(family, stream.foretold, 2, 2 * slowest, wire)
        # Of two orders that are alike, that of the node which has the stream's KV as its driver.
        found.append((round(rate * single.token_ms(stream.foretold), 2), names[0] == stream.node, names))
    if not found:
        return None
    gain, _, names = max(found)
    return Spread(spec.id, names, gain)


def families_of_all(spec: ModelSpec, node: NodeReport) -> tuple[RowFamily, ...] | None:
    """What the node has proven of the whole model's steps; None if it does not serve all layers, or is to have none."""
    whole = Shard(spec.version, 0, spec.layers)
    stages = (stage for stage in node.stages if stage.shard == whole and stage.state is StageState.READY)
    return None if node.draining else next((stage.families for stage in stages), None)


def _tokens_per_ms(family: RowFamily, right: float, stages: int, step_ms: float, wire: float) -> float:
    """With the best number of tokens a step. `step_ms`: of one token in all stages. `wire`: milliseconds a round."""
    costs = ((count, cost * step_ms + wire) for count, cost in family.costs)
    return max(speed(count, cost, right=right, stages=stages, in_flight=stages) for count, cost in costs)
