"""Finds rings that need no loading: of layers that nodes already have in memory, such as those of a lost ring. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from node.core.models import ModelSpec
from node.core.reports import NodeReport, StageState
from node.core.rings import Ring, StageSpec
from node.placement.footprint import footprint
from node.placement.search import Goal, new_ring
from node.placement.split import boundaries

_MOST_TRIED = 256
"""Maximum partial rings that are tried: peers can report any number of shards."""
_MOST_SHARDS = 8
"""Maximum shards considered of one model on one node."""


def rings_of_loaded_layers(
    spec: ModelSpec, nodes: Sequence[NodeReport], free: Mapping[str, int], goal: Goal
) -> list[Ring]:
    """Rings of loaded layers, without ids: each with the longest context that fits, and then the most sessions."""
    found: list[Ring] = []
    chains = list(_chains(spec, nodes))
    for context in goal.contexts_for(spec):
        for sessions in goal.sessions if chains else ():
            costs = footprint(spec, context, sessions)
            fitting = [
                chain
                for chain in chains
                if all(costs.stage(s.start, s.end, driver=s is chain[0]) <= free[s.node] for s in chain)
            ]
            chains = [chain for chain in chains if chain not in fitting]
            found += [new_ring(spec, chain, context, sessions) for chain in fitting]
    return found


def _chains(spec: ModelSpec, nodes: Sequence[NodeReport]) -> Iterator[tuple[StageSpec, ...]]:
    """Yield chains of stages that have all layers once, in order, each stage on a different node."""
    allowed_ends = set(boundaries(spec))
    stages: dict[int, list[StageSpec]] = {}
    for node in nodes:
        used = [report.shard for report in node.stages if report.state in (StageState.READY, StageState.ENDED)]
        shards = [
            shard
            for shard in dict.fromkeys([*used, *node.idle])
            if shard.version == spec.version and {shard.start, shard.end} <= allowed_ends
        ]
        for shard in shards[:_MOST_SHARDS]:
            stages.setdefault(shard.start, []).append(StageSpec(node.info.id, shard.start, shard.end))
    begun: list[tuple[StageSpec, ...]] = [()]
    for _ in range(_MOST_TRIED):
        if not begun:
            return
        chain = begun.pop()
        end = chain[-1].end if chain else 0
        if end == spec.layers:
            yield chain
            continue
        taken = {stage.node for stage in chain}
        begun += [(*chain, stage) for stage in reversed(stages.get(end, ())) if stage.node not in taken]
