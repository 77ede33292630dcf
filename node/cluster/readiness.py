"""Whether a ring can be used, by its nodes' reports of their stages, and whether it can do without a node. Pure."""

from collections.abc import Mapping
from enum import StrEnum

from node.core.reports import StageState
from node.core.rings import Ring, StageSpec
from node.core.views import PRESENT, ClusterView, NodeState, PeerView


class RingState(StrEnum):
    READY = "ready"
    LOADING = "loading"
    """A node is loading its layers, or the ring has ended and its successor is about to be placed."""
    FAILED = "failed"
    """A load failed, or a node is gone."""


def ring_state(ring: Ring, peers: Mapping[str, PeerView]) -> RingState:
    """State of a ring. `peers`: by id."""
    states = set()
    for stage in ring.stages:
        peer = peers.get(stage.node)
        states.add(stage_state(peer, ring, stage) if peer and peer.state in PRESENT else StageState.FAILED)
    if StageState.FAILED in states:
        return RingState.FAILED
    return RingState.READY if states == {StageState.READY} else RingState.LOADING


def stage_state(peer: PeerView, ring: Ring, stage: StageSpec) -> StageState:
    """What the peer says of its stage of the ring; if it says nothing, it is about to load it."""
    layers = (stage.start, stage.end)
    reports = (report for report in peer.report.stages if report.ring == ring.id)
    states = (report.state for report in reports if (report.shard.start, report.shard.end) == layers)
    return next(states, StageState.LOADING)


def ready_rings(view: ClusterView, model: str) -> list[Ring]:
    """Rings of the model that are ready; retiring ones only if there are no others."""
    peers = view.by_id
    rings = [ring for ring in view.placement.rings if ring.model == model]
    ready = [ring for ring in rings if ring_state(ring, peers) is RingState.READY]
    return [ring for ring in ready if not ring.retiring] or ready


def usable_rings(view: ClusterView, model: str) -> list[Ring]:
    """Rings to send requests to: ready ones, else those that seem ready except for stages unreachable from here."""
    if ready := ready_rings(view, model):
        return ready
    peers = view.by_id
    return [ring for ring in _kept(view, model) if _seems_ready(ring, peers)]


def driver_out_of_reach(view: ClusterView, model: str) -> PeerView | None:
    """If rings exist but none has a driver that is reachable from this node: one of those drivers; else None."""
    peers = view.by_id
    drivers = [peer for ring in _kept(view, model) if (peer := peers.get(ring.driver))]
    return drivers[0] if drivers and all(map(_unheard, drivers)) else None


def _kept(view: ClusterView, model: str) -> list[Ring]:
    """Rings of the model that are not retiring, if there is a head."""
    return [ring for ring in view.placement.rings if view.head and ring.model == model and not ring.retiring]


def _seems_ready(ring: Ring, peers: Mapping[str, PeerView]) -> bool:
    def ready(stage: StageSpec) -> bool:
        peer = peers.get(stage.node)
        return bool(peer and peer.state in PRESENT and stage_state(peer, ring, stage) is StageState.READY)

    driver, *others = ring.stages
    return ready(driver) and all(ready(stage) or _unheard(peers.get(stage.node)) for stage in others)


def _unheard(peer: PeerView | None) -> bool:
    """Whether a node of a ring that the head keeps is gone for so long that it is only unreachable from this node."""
    return peer is not None and peer.state not in PRESENT and peer.gone_s >= 5.0


def is_needed(view: ClusterView) -> bool:
    """Whether the end of this node would interrupt requests that nodes which stay could take over."""
    stay = [p.report for p in view.peers if p.state is NodeState.ALIVE and not p.report.draining]
    busy = {each.ring for peer in view.peers for each in peer.report.traffic if each.running or each.queued}
    rings = [ring for ring in view.placement.rings if view.self_id in ring.nodes]
    return any(ring.id in busy for ring in rings) and any(report.info.id != view.self_id for report in stay)
