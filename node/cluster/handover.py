"""How work goes from one ring to another without being interrupted: when to begin, and when the old ring is done.

Pure: the cluster as the head sees it and the time in, answers out. A new head starts to count anew, which only takes
longer.
"""

from node.cluster.readiness import ready_rings
from node.core.types import ClusterView, Placement, Ring, StageSpec

SETTLE_S = 10.0
"""A better placement must be better for so long: links are measured anew several times by then, and a node that only
looked in is gone."""
FINISH_S = 30.0
"""What a ring that retires may take to finish its sessions; the rest is handed over, and replayed on the new ring."""


Shape = set[tuple[str, tuple[StageSpec, ...]]]


class HandOver:
    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """When each ring that retires could first be done without."""
        self._better: Shape = set()
        self._better_since = 0.0

    def is_due(self, better: Placement, plan: Placement, now: float) -> bool:
        """Whether a placement that moves rings has been better than the plan without for long enough. Ask at each plan."""
        shape = _shape(better)
        if shape != self._better:
            self._better, self._better_since = shape, now
        return shape != _shape(plan) and now - self._better_since >= SETTLE_S

    def remaining(self, view: ClusterView, now: float) -> tuple[Ring, ...]:
        """The placement's rings without those that have retired."""
        rings = view.placement.rings
        self._since = {ring: since for ring, since in self._since.items() if any(each.id == ring for each in rings)}
        return tuple(ring for ring in rings if not (ring.retiring and self._is_done(ring, view, now)))

    def _is_done(self, ring: Ring, view: ClusterView, now: float) -> bool:
        """Another ring can take its sessions, and it has none, was to leave its nodes, or had its time."""
        if all(each.retiring for each in ready_rings(view, ring.model)):
            self._since.pop(ring.id, None)
            return False
        reports = [peer.report for peer in view.peers]
        nodes = {stage.node for stage in ring.stages}
        if any(report.draining for report in reports if report.info.id in nodes):
            return True
        busy = any(load.running or load.queued for report in reports for load in report.rings if load.ring == ring.id)
        return not busy or now - self._since.setdefault(ring.id, now) >= FINISH_S


def _shape(placement: Placement) -> Shape:
    return {(ring.model, ring.stages) for ring in placement.rings if not ring.retiring}
