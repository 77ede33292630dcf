"""Whether a ring can be used: what its nodes say of their loads. Pure."""

from collections.abc import Mapping
from enum import StrEnum

from node.core.types import ClusterView, LoadReport, LoadState, NodeState, PeerView, Ring, StageSpec

HERE = (NodeState.ALIVE, NodeState.SUSPECT)
"""A suspect still counts: most suspicions pass, and its ring works until it is declared failed."""


UNHEARD_S = 5.0
"""Who is not heard for so long is only out of this node's reach, if the head still keeps it in a ring: a ring of which a
node is gone is replaced before that."""


class RingState(StrEnum):
    READY = "ready"
    LOADING = "loading"
    """A node loads its layers, or the ring has ended and its successor is about to be placed."""
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


def usable_rings(view: ClusterView, model: str) -> list[Ring]:
    """Those to ask: ready ones, or else those that this node can't see to be ready, as stages are out of its reach."""
    if ready := ready_rings(view, model):
        return ready
    peers = {peer.report.info.id: peer for peer in view.peers}
    return [ring for ring in _kept(view, model) if _seems_ready(ring, peers)]


def driver_out_of_reach(view: ClusterView, model: str) -> PeerView | None:
    """Why none can be asked from here, though there is one: its driver."""
    peers = {peer.report.info.id: peer for peer in view.peers}
    drivers = [peer for ring in _kept(view, model) if (peer := peers.get(ring.driver))]
    return drivers[0] if drivers and all(map(_unheard, drivers)) else None


def _kept(view: ClusterView, model: str) -> list[Ring]:
    """By a head that is heard."""
    return [ring for ring in view.placement.rings if view.head and ring.model == model and not ring.retiring]


def _seems_ready(ring: Ring, peers: Mapping[str, PeerView]) -> bool:
    def ready(stage: StageSpec) -> bool:
        peer = peers.get(stage.node)
        load = load_of(peer, ring, stage) if peer and peer.state in HERE else None
        return load is not None and load.state is LoadState.READY

    driver, *others = ring.stages
    return ready(driver) and all(ready(stage) or _unheard(peers.get(stage.node)) for stage in others)


def _unheard(peer: PeerView | None) -> bool:
    return peer is not None and peer.state not in HERE and peer.last_seen_s >= UNHEARD_S
