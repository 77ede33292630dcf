"""Rings that nobody has to load: of layers that nodes have in memory already, as those of a ring that is gone. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from node.cluster.footprint import Footprint
from node.cluster.search import Wish
from node.cluster.split import edges
from node.core.types import LoadState, ModelSpec, NodeReport, Ring, Shard, StageSpec

_MOST_TRIED = 256
"""Ways to begin a ring that are looked at: peers can name as many shards as they like."""
_MOST_SHARDS = 8
"""Of one model on one node that are considered."""


def loaded_rings(spec: ModelSpec, nodes: Sequence[NodeReport], free: Mapping[str, int], wish: Wish) -> list[Ring]:
    """Without ids; each with the longest context that its nodes have room for, and with as many sessions of that."""
    found: list[Ring] = []
    chains = list(_chains(spec, nodes))
    for context in wish.contexts_of(spec):
        for sessions in wish.sessions if chains else ():
            costs = Footprint(spec, context, sessions)
            fitting = [chain for chain in chains if _fits(chain, costs, free)]
            chains = [chain for chain in chains if chain not in fitting]
            found += [
                Ring("", spec.id, chain, context, sessions, spec.shared_ends, revision=spec.revision)
                for chain in fitting
            ]
    return found


def _fits(chain: Sequence[StageSpec], costs: Footprint, free: Mapping[str, int]) -> bool:
    return all(costs.stage(stage.start, stage.end, driver=stage is chain[0]) <= free[stage.node] for stage in chain)


def _chains(spec: ModelSpec, nodes: Sequence[NodeReport]) -> Iterator[tuple[StageSpec, ...]]:
    """All layers once, in order, each stage on a node of its own."""
    marks = set(edges(spec))
    stages: dict[int, list[StageSpec]] = {}
    for node in nodes:
        shards = [
            shard
            for shard in _in_memory(node)
            if (shard.model, shard.revision) == (spec.id, spec.revision) and {shard.start, shard.end} <= marks
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


def _in_memory(node: NodeReport) -> list[Shard]:
    used = [load.shard for load in node.loads if load.state in (LoadState.READY, LoadState.ENDED)]
    return list(dict.fromkeys([*used, *node.idle]))
