"""Moves work from one ring to another without interrupting it: when to begin, and when the old ring is done.

Pure: views and times in, answers out. A new head measures the times anew, which only delays the move.
"""

from node.cluster.readiness import ready_rings
from node.core.rings import Placement, Ring, RingPlace
from node.core.views import ClusterView

SETTLE_S = 10.0
"""Time for which a placement must be better: links are measured several times by then, and short visits of nodes end."""
COLD_S = 300.0
"""Time without a request after which a ring may be moved for speed. A chat that goes on sooner finds its KV: to compute it anew on
another ring takes longer than that ring would ever save.
"""


class Handover:
    def __init__(self) -> None:
        self._better: set[RingPlace] = set()
        self._better_since = 0.0
        self._requests: dict[str, int] = {}
        """Requests that each ring had taken when it was seen last."""
        self._used_at: dict[RingPlace, float] = {}
        """When each ring that ever had a request was seen with one for the last time; its successors have its KV."""

    def warm(self, view: ClusterView, now: float) -> frozenset[RingPlace]:
        """Places of the rings that may not be moved for speed yet. Call it for each view, as it notes who is used."""
        self._note_use(view, now)
        return frozenset(place for place, at in self._used_at.items() if now - at < COLD_S)

    def is_due(self, better: Placement, plan: Placement, now: float) -> bool:
        """Whether a placement that moves rings has been better than the plan for SETTLE_S. Call once for each plan."""
        places = _places(better)
        if places != self._better:
            self._better, self._better_since = places, now
        return places != _places(plan) and now - self._better_since >= SETTLE_S

    def _note_use(self, view: ClusterView, now: float) -> None:
        places = {ring.id: ring.place for ring in view.placement.rings}
        traffic = [load for peer in view.peers for load in peer.report.traffic if load.ring in places]
        for load in traffic:
            if load.running or load.queued or load.requests != self._requests.get(load.ring, 0):
                self._used_at[places[load.ring]] = now
        self._requests = {load.ring: load.requests for load in traffic}
        self._used_at = {place: at for place, at in self._used_at.items() if place in places.values()}

    def remaining(self, view: ClusterView) -> tuple[Ring, ...]:
        """The placement's rings without those that have retired."""
        return tuple(ring for ring in view.placement.rings if not (ring.retiring and _is_done(ring, view)))


def _is_done(ring: Ring, view: ClusterView) -> bool:
    """Whether another ring can take its sessions, and it has none, or one of its nodes is draining.

    Else they end where their prompts were computed: that is bounded by the context, and the placement has set the memory aside.
    """
    if all(each.retiring for each in ready_rings(view, ring.model)):
        return False
    reports = [peer.report for peer in view.peers]
    if any(report.draining for report in reports if report.info.id in ring.nodes):
        return True
    return not any(load.running or load.queued for report in reports for load in report.traffic if load.ring == ring.id)


def _places(placement: Placement) -> set[RingPlace]:
    return {ring.place for ring in placement.rings if not ring.retiring}
