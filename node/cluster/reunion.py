"""What a head does with rings that nodes bring from another head, as when a partition heals: it takes over what stands.

Pure: the cluster as the head sees it and the time in, answers out.
"""

import math

from node.cluster.readiness import HERE, RingState, ring_state
from node.core.types import ClusterView, LoadState, ModelSpec, NodeReport, Placement, Ring

MEET_S = 3.0
"""Nodes that find each other again after a partition all do so within this time of the first (a lost one is tried every
2 s, for 1 s): a head that has just met one does not know yet what stands, nor that a model has no place."""


class Reunion:
    def __init__(self) -> None:
        self._came: dict[str, float] = {}
        """When each node joined last."""
        self._offered: dict[str, Ring] = {}
        """Rings of other heads' placements, by id."""
        self.specs: dict[str, ModelSpec] = {}
        """What those heads knew of the models of these rings."""

    def came(self, node: str, now: float) -> None:
        self._came[node] = now

    def forgotten(self, node: str) -> None:
        self._came.pop(node, None)

    def offered(self, placement: Placement) -> None:
        """A node told the placement that it has from another head."""
        self._offered |= {ring.id: ring for ring in placement.rings}
        self.specs |= {spec.id: spec for spec in placement.specs}

    def found(self, view: ClusterView) -> tuple[Ring, ...]:
        """Rings that the placement lacks and that stand: all their nodes are here, hold them, and know of nothing newer."""
        fences = {peer.report.info.id: peer.report.fence for peer in view.peers}
        held = {load.ring for peer in view.peers for load in peer.report.loads} - _known(view)
        self._offered = {ring.id: ring for ring in self._offered.values() if ring.id in held}
        models = {ring.model for ring in self._offered.values()}
        self.specs = {model: spec for model, spec in self.specs.items() if model in models}
        whole = [ring for ring in self._offered.values() if _state(ring, view) is RingState.READY]
        return tuple(ring for ring in whole if all(fences[stage.node].term < view.term for stage in ring.stages))

    def is_under_way(self, view: ClusterView, now: float) -> bool:
        """Whether a node that came just now holds a stage of a ring that may be found once all its nodes have come."""
        here = [peer.report for peer in view.peers if peer.state in HERE]
        brought = [ring for report in here for ring in self.brought(report, view, now)]
        return any(not self._is_whole(ring, view) for ring in brought)

    def brought(self, report: NodeReport, view: ClusterView, now: float) -> set[str]:
        """Ids of the rings of another head that a node holds and that may stand; for as long as it takes to know."""
        met_s = now - self._came.get(report.info.id, -math.inf)
        if report.fence.term >= view.term or met_s >= MEET_S:
            return set()
        held = {load.ring for load in report.loads if load.state is LoadState.READY} - _known(view)
        return {ring for ring in held if self._may_stand(ring, view, met_s)}

    def _may_stand(self, ring_id: str, view: ClusterView, met_s: float) -> bool:
        """Not if one of its nodes was seen since the meeting, `met_s` ago, and is gone now: that one is not on its way."""
        ring = self._offered.get(ring_id)
        if ring is None:
            return True  # its node will tell
        nodes = {stage.node for stage in ring.stages}
        gone = [peer for peer in view.peers if peer.report.info.id in nodes and peer.state not in HERE]
        if any(peer.last_seen_s < met_s for peer in gone):
            return False
        return not self._is_whole(ring_id, view) or _state(ring, view) is RingState.READY

    def _is_whole(self, ring_id: str, view: ClusterView) -> bool:
        """Whether all nodes of a ring are known and here."""
        ring = self._offered.get(ring_id)
        here = {peer.report.info.id for peer in view.peers if peer.state in HERE}
        return ring is not None and here.issuperset(stage.node for stage in ring.stages)


def _known(view: ClusterView) -> set[str]:
    return {ring.id for ring in view.placement.rings}


def _state(ring: Ring, view: ClusterView) -> RingState:
    return ring_state(ring, {peer.report.info.id: peer for peer in view.peers})
