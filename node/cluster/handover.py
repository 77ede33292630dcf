"""Moves work from one ring to another without interrupting it: when to begin, and when the old ring is done.

Pure: views and times in, answers out. A new head measures the times anew, which only delays the move.
"""

from node.cluster.readiness import ready_rings
from node.core.types import ClusterView, Placement, Ring, StageSpec

SETTLE_S = 10.0
"""Time for which a placement must be better: links are measured several times by then, and short visits of nodes end."""
FINISH_S = 30.0
"""Time in which a retiring ring may finish its sessions. The rest is handed over, and replayed on the new ring."""

_Shape = set[tuple[str, tuple[StageSpec, ...]]]
"""Model and stages of each ring that is not retiring."""


class Handover:
    def __init__(self) -> None:
        self._replaceable_since: dict[str, float] = {}
        """Since when another ring can serve instead of a retiring one, by the latter's id."""
        self._better: _Shape = set()
        self._better_since = 0.0

    def is_due(self, better: Placement, plan: Placement, now: float) -> bool:
        """Whether a placement that moves rings has been better than the plan for SETTLE_S. Call once for each plan."""
        shape = _shape(better)
        if shape != self._better:
            self._better, self._better_since = shape, now
        return shape != _shape(plan) and now - self._better_since >= SETTLE_S

    def remaining(self, view: ClusterView, now: float) -> tuple[Ring, ...]:
        """The placement's rings without those that have retired."""
        rings, since = view.placement.rings, self._replaceable_since
        self._replaceable_since = {ring.id: since[ring.id] for ring in rings if ring.id in since}
        return tuple(ring for ring in rings if not (ring.retiring and self._is_done(ring, view, now)))

    def _is_done(self, ring: Ring, view: ClusterView, now: float) -> bool:
        """Whether another ring can take its sessions, and it has none, one of its nodes is draining, or its time is up."""
        if all(each.retiring for each in ready_rings(view, ring.model)):
            self._replaceable_since.pop(ring.id, None)
            return False
        reports = [peer.report for peer in view.peers]
        nodes = ring.nodes
        if any(report.draining for report in reports if report.info.id in nodes):
            return True
        busy = any(load.running or load.queued for report in reports for load in report.traffic if load.ring == ring.id)
        return not busy or now - self._replaceable_since.setdefault(ring.id, now) >= FINISH_S


def _shape(placement: Placement) -> _Shape:
    return {ring.place for ring in placement.rings if not ring.retiring}
