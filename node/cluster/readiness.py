"""Whether a ring can be used: what its nodes say of their loads. Pure."""

from collections.abc import Mapping
from enum import StrEnum

from node.core.types import ClusterView, LoadReport, LoadState, NodeState, PeerView, Ring, StageSpec

HERE = (NodeState.ALIVE, NodeState.SUSPECT)
"""A suspect still counts: most suspicions pass, and its ring works until it is declared failed."""


class RingState(StrEnum):
    READY = "ready"
    LOADING = "loading"
    FAILED = "failed"
    """A load failed, or a node is gone."""


def ring_state(ring: Ring, peers: Mapping[str, PeerView]) -> RingState:
    """`peers` by their ids."""
    loads = []
    for stage in ring.stages:
        peer = peers.get(stage.node)
        if peer is None or peer.state not in HERE:
            return RingState.FAILED
        load = load_of(peer, ring, stage)
        loads.append(load.state if load else LoadState.LOADING)
    if LoadState.FAILED in loads:
        return RingState.FAILED
    return RingState.READY if all(load is LoadState.READY for load in loads) else RingState.LOADING


def load_of(peer: PeerView, ring: Ring, stage: StageSpec) -> LoadReport | None:
    """What the peer says of its stage of the ring."""
    shard = (stage.start, stage.end)
    loads = (load for load in peer.report.loads if load.ring == ring.id)
    return next((load for load in loads if (load.shard.start, load.shard.end) == shard), None)


def ready_rings(view: ClusterView, model: str) -> list[Ring]:
    """Those that can be asked now: rings that retire only when there are no others."""
    peers = {peer.report.info.id: peer for peer in view.peers}
    rings = [ring for ring in view.placement.rings if ring.model == model]
    ready = [ring for ring in rings if ring_state(ring, peers) is RingState.READY]
    return [ring for ring in ready if not ring.retiring] or ready
