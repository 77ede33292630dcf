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

    def warm(self, now: float) -> frozenset[RingPlace]:
        """Places of the rings that may not be moved for speed yet."""
        return frozenset(place for place, at in self._used_at.items() if now - at < COLD_S)

    def is_due(self, better: Placement, plan: Placement, now: float) -> bool:
        """Whether a placement that moves rings has been better than the plan for SETTLE_S. Call once for each plan."""
        places = _places(better)
        if places != self._better:
            self._better, self._better_since = places, now
        return places != _places(plan) and now - self._better_since >= SETTLE_S

    def note_use(self, view: ClusterView, now: float) -> set[str]:
        """Take note of the rings that are used. Call it for each view. Returns the models of these rings.

        The counts tell of requests that were so short that no report shows them running.
        """
        places = {ring.id: ring.place for ring in view.placement.rings}
        traffic = [each for peer in view.peers for each in peer.report.traffic if each.ring in places]
        used = {
            places[each.ring]
            for each in traffic
            if each.running or each.queued or each.requests != self._requests.get(each.ring, 0)
        }
        self._requests = {each.ring: each.requests for each in traffic}
        self._used_at = {place: at for place, at in self._used_at.items() if place in places.values()}
        self._used_at |= dict.fromkeys(used, now)
        return {model for model, _ in used}

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
    return not any(each.running or each.queued for report in reports for each in report.traffic if each.ring == ring.id)


def _places(placement: Placement) -> set[RingPlace]:
    return {ring.place for ring in placement.rings if not ring.retiring}
