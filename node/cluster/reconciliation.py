"""Takes over rings that another head placed, as after a partition heals. Pure: views and times in, rings out."""

import math

from node.cluster.readiness import RingState, ring_state
from node.core.models import ModelSpec
from node.core.reports import NodeReport, StageState
from node.core.rings import Placement, Ring
from node.core.views import PRESENT, ClusterView
from node.members.membership import MEET_S


class Reconciliation:
    """Collects what joining nodes report of another head's placement. Used by the head."""

    def __init__(self) -> None:
        self._joined_at: dict[str, float] = {}
        """Time at which each node joined last."""
        self._offered: dict[str, Ring] = {}
        """Rings of other heads' placements, by id."""
        self.specs: dict[str, ModelSpec] = {}
        """Those heads' descriptions of the models of these rings."""

    def joined(self, node: str, now: float) -> None:
        self._joined_at[node] = now

    def forget(self, node: str) -> None:
        self._joined_at.pop(node, None)

    def offer(self, placement: Placement) -> None:
        """Add another head's placement, received from a node that followed it."""
        self._offered |= {ring.id: ring for ring in placement.rings}
        self.specs |= {spec.id: spec for spec in placement.specs}

    def working(self, view: ClusterView) -> tuple[Ring, ...]:
        """Offered rings that are ready and not placed here, whose nodes have adopted no placement of this term."""
        fences = {peer.report.info.id: peer.report.fence for peer in view.peers}
        held = {report.ring for peer in view.peers for report in peer.report.stages} - _placed(view)
        self._offered = {ring.id: ring for ring in self._offered.values() if ring.id in held}
        models = {ring.model for ring in self._offered.values()}
        self.specs = {model: spec for model, spec in self.specs.items() if model in models}
        peers = view.by_id
        ready = [ring for ring in self._offered.values() if ring_state(ring, peers) is RingState.READY]
        return tuple(ring for ring in ready if all(fences[node].term < view.term for node in ring.nodes))

    def is_pending(self, view: ClusterView, now: float) -> bool:
        """Whether a node that has just joined holds a stage of a ring whose other nodes may still join."""
        present = [peer.report for peer in view.peers if peer.state in PRESENT]
        rings = [ring for report in present for ring in self.rings_of(report, view, now)]
        return any(not self._is_complete(ring, view) for ring in rings)

    def rings_of(self, report: NodeReport, view: ClusterView, now: float) -> set[str]:
        """Ids of another head's rings that a node holds and that may work; empty MEET_S after it joined.

        Until then a head can't know which rings still work: nodes of theirs may be about to join.
        """
        met_s = now - self._joined_at.get(report.info.id, -math.inf)
        if report.fence.term >= view.term or met_s >= MEET_S:
            return set()
        held = {stage.ring for stage in report.stages if stage.state is StageState.READY} - _placed(view)
        return {ring for ring in held if self._may_work(ring, view, met_s)}

    def _may_work(self, ring_id: str, view: ClusterView, met_s: float) -> bool:
        """False if a node of the ring was heard since the meeting, `met_s` ago, and is gone: it is not about to join."""
        ring = self._offered.get(ring_id)
        if ring is None:
            return True  # its node will offer it
        gone = [peer for peer in view.peers if peer.report.info.id in ring.nodes and peer.state not in PRESENT]
        if any(peer.last_seen_s < met_s for peer in gone):
            return False
        return not self._is_complete(ring_id, view) or ring_state(ring, view.by_id) is RingState.READY

    def _is_complete(self, ring_id: str, view: ClusterView) -> bool:
        """Whether all nodes of a ring are known and present."""
        ring = self._offered.get(ring_id)
        present = {peer.report.info.id for peer in view.peers if peer.state in PRESENT}
        return ring is not None and present.issuperset(ring.nodes)


def _placed(view: ClusterView) -> set[str]:
    return {ring.id for ring in view.placement.rings}
