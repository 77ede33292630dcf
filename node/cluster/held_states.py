"""Which reports this node and its peers have of each other, so that heartbeats carry only those that are missing. Pure.

A report has a digest. Each heartbeat tells the digest of the sender's own report, and which one the sender has of the
receiver. If that is not the receiver's present one, the receiver's next heartbeat has the report. Nothing depends on the order
of messages: what one side believes of the other is corrected by the next message.
"""

from dataclasses import replace
from hashlib import blake2b

from node.core.limits import MAX_NODES
from node.core.lru_cache import keep
from node.core.reports import Heartbeat, NodeReport
from node.core.rings import Placement

RECENT = 64
"""Number of this node's last reports whose digests are remembered."""


class HeldStates:
    def __init__(self) -> None:
        self._theirs: dict[str, tuple[int, NodeReport]] = {}
        """Last report of each peer, with its digest."""
        self._ours: dict[str, int] = {}
        """Digest of this node's report that each peer said it has."""
        self.own: NodeReport | None = None
        """This node's, as of its last change or tick."""
        self._own_digest = 0
        self._recent: dict[int, None] = {}
        """Digests of this node's last reports that have its news: peers with one of them need not be told at once."""

    def renew(self, report: NodeReport) -> bool:
        """Set this node's report. Returns whether it has news, which the peers have to be told at once."""
        if self.own == report:
            return False
        is_news = self.own is None or _news(report) != _news(self.own)
        text = repr(report).encode(errors="surrogatepass")
        self.own, self._own_digest = report, int.from_bytes(blake2b(text, digest_size=8).digest(), "big") or 1
        if is_news:
            self._recent.clear()
        keep(self._recent, self._own_digest, None, RECENT)
        return is_news

    def outgoing(self, placement: Placement | None, to: str | None) -> Heartbeat:
        """This node's heartbeat for a peer, once it has a report. With that, if the peer lacks it or is not known."""
        digest, held = self._own_digest, self.digest_of(to or "")
        if self.own and to and self._ours.get(to) == digest:
            return Heartbeat(None, placement, self.own.info.id, digest, held)
        return Heartbeat(self.own, placement, "", digest, held)

    def incoming(self, heartbeat: Heartbeat) -> Heartbeat | None:
        """A peer's heartbeat with its report; None if this node lacks the report."""
        node = heartbeat.sender
        keep(self._ours, node, heartbeat.held, MAX_NODES)
        if heartbeat.report:
            keep(self._theirs, node, (heartbeat.digest, heartbeat.report), MAX_NODES)
            return heartbeat
        digest, report = self._theirs.get(node, (0, None))
        return replace(heartbeat, report=report) if report and digest and digest == heartbeat.digest else None

    def digest_of(self, node: str) -> int:
        """Of the report that this node has of a peer; 0 for none."""
        return self._theirs.get(node, (0, None))[0]

    def lacks_news(self, node: str) -> bool:
        """Whether a peer has no report of this node since it had news last."""
        return self._ours.get(node, 0) not in self._recent

    def forget(self, node: str) -> None:
        self._theirs.pop(node, None)
        self._ours.pop(node, None)


def _news(report: NodeReport) -> tuple[object, ...]:
    """What peers are told at once when it changes. Measurements, and how much the node has to do, wait for a heartbeat."""
    return (
        report.info,
        report.memory.usable,
        (report.term, report.head, report.fence, report.draining, report.disk_error),
        [(stage.ring, stage.shard, stage.state, stage.error) for stage in report.stages],
        [(ring.ring, ring.running + ring.queued > 0) for ring in report.traffic],
        (report.models, report.preload, report.drafts, report.min_stages, report.idle, report.speeds),
        (report.aliases, report.presets, report.crashed),
        report.peers,
        [issue.code for issue in report.issues],
    )
