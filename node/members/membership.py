"""Membership as seen by this node: peers are alive, suspect, failed, left or refused. Pure: reports in, changes out.

A node is alive while it is heard. Silence makes it suspect, longer silence failed. A reset connection makes it suspect
at once, and failed if it cannot be reached again a moment later, or as soon as its machine refuses connections to its
port. A node leaves by sending a goodbye. Nodes that are gone stay visible for a while, with the time they were last
seen.
"""

import math
from dataclasses import dataclass

from node.core.limits import MAX_NODES
from node.core.nodes import NodeInfo
from node.core.reports import NodeReport
from node.core.views import PRESENT, PROCESS_ENDED, NodeState, PeerView


@dataclass(frozen=True, slots=True)
class Joined:
    """A node joined: new, back from failure, or restarted (its earlier process is then reported as failed first)."""

    node: str


@dataclass(frozen=True, slots=True)
class Changed:
    """The state of a known node changed, other than by joining."""

    node: str
    state: NodeState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A node that was gone for long is no longer shown."""

    node: str


Change = Joined | Changed | Forgotten

PROTOCOLS_APART = 1
"""Maximum difference of the protocols of nodes that work together, see node.PROTOCOL."""
FORGET_AFTER_S = 300.0
"""A user back at the desk should still see which Mac is missing."""
FAIL_AFTER_S = 1.8
"""Silence after which a node has failed. A node is asked every 0.6 s, and ten times a second when it is suspect, so that the
loss of three messages in a row, as on bad Wi-Fi, changes nothing.
"""
SUSPECT_SHARE = 2 / 3
"""Share of that silence after which a node is suspect: then both of a pair have called, some 0.6 and 1.0 s after it was heard
last, and the answer to the first call has had half a second, as over Wi-Fi.
"""
ANSWER_S = 1.0
"""Time within which a node answers a heartbeat or a probe; a later answer is as good as none."""
GONE_S = 2.0
"""Interval at which a node that is gone is called: it may come back at its old address without an advert."""
MEET_S = GONE_S + ANSWER_S
"""Time within which nodes that can reach each other have met, as after a start or when a partition heals."""
RETURN_S = 0.5
"""Time within which a node whose connection was reset must be heard again; enough for at least one new connection."""
ENDED_S = 10.0
"""Reports and goodbyes take a second or two at most. If a node is still heard this long after the last report of a
later incarnation, or after its goodbye, it has not ended, whatever was reported: its data directory may have been
restored from a backup.
"""


@dataclass(slots=True)
class _Peer:
    report: NodeReport
    state: NodeState
    seen: float
    """Time at which it was last heard."""
    fail_at: float
    """Time at which it has failed, unless it is heard before; of a node that is gone, since when it is."""
    reason: str = ""
    ended: bool = False
    """Whether its process is known to have ended, so that its silence is not due to the network."""


class Membership:
    """Table of peers. Call `tick` a few times a second, and `heard` with every report, including this node's own."""

    def __init__(self, self_info: NodeInfo, *, fail_after_s: float = FAIL_AFTER_S) -> None:
        self._info = self_info
        self._fail_after = fail_after_s
        self._peers: dict[str, _Peer] = {}
        self._own: NodeReport | None = None
        self._due = math.inf
        """Time of the next tick. By what it comes later, this node itself was held up."""

    def heard(self, report: NodeReport, now: float) -> list[Change]:
        """Process a report. One of a lower incarnation or of another cluster is ignored."""
        info = report.info
        if info.cluster != self._info.cluster:
            return []
        if info.id == self._info.id:
            self._own = report
            return []
        peer = self._peers.get(info.id)
        if peer and _outdated(info, peer, now):
            return []
        forgotten: list[Change] = []
        if peer is None and len(self._peers) >= MAX_NODES:  # peers can invent any number
            gone = [node for node, known in self._peers.items() if known.state not in PRESENT]
            if not gone:
                return []
            oldest = min(gone, key=lambda node: self._peers[node].seen)
            del self._peers[oldest]
            forgotten = [Forgotten(oldest)]
        if abs(info.protocol - self._info.protocol) > PROTOCOLS_APART:
            return forgotten + self._refuse(report, now)
        return forgotten + self._admit(report, peer, now)

    def unreachable(self, node: str, now: float, gone_at: float | None = None) -> list[Change]:
        """Process a reset or refused connection: the node is suspect at once, and failed unless it is heard soon.

        `gone_at`: time by which its process had ended; it has failed unless it was heard since.
        """
        peer = self._peers.get(node)
        if not peer or peer.state not in PRESENT:
            return []
        if gone_at is not None and peer.seen < gone_at:
            peer.state, peer.reason, peer.ended = NodeState.FAILED, PROCESS_ENDED, True
            peer.fail_at = now
            return [Changed(node, peer.state, peer.reason)]
        if peer.state is NodeState.SUSPECT:
            return []
        peer.state, peer.reason = NodeState.SUSPECT, "connection lost"
        peer.fail_at = min(peer.fail_at, now + RETURN_S)
        return [Changed(node, peer.state, peer.reason)]

    def goodbye(self, node: str, now: float, incarnation: int) -> list[Change]:
        """Process a goodbye. One of a lower incarnation comes after the node's restart, and is ignored."""
        peer = self._peers.get(node)
        if not peer or peer.state is NodeState.LEFT or incarnation < peer.report.info.incarnation:
            return []
        peer.state, peer.reason, peer.ended = NodeState.LEFT, "said goodbye", True
        peer.seen = peer.fail_at = now
        return [Changed(node, peer.state, peer.reason)]

    def tick(self, now: float) -> list[Change]:
        """Update states to the present time. Deadlines are extended by the time for which this node itself was held up."""
        late_s = max(0.0, now - self._due)
        for peer in self._peers.values():  # asleep, short of processor time, or its event loop was blocked
            peer.fail_at += late_s
        self._due += late_s
        changes: list[Change] = []
        for node, peer in list(self._peers.items()):
            silent_s = now - peer.seen
            if peer.state not in PRESENT:
                if silent_s >= FORGET_AFTER_S:
                    del self._peers[node]
                    changes.append(Forgotten(node))
            elif now >= peer.fail_at:
                before = peer.reason
                peer.reason = f"{before}, {silent_s:.1f} s silent" if before else f"no answer for {silent_s:.1f} s"
                peer.state = NodeState.FAILED
                changes.append(Changed(node, peer.state, peer.reason))
            elif peer.state is NodeState.ALIVE and now >= _suspect_at(peer):
                peer.state = NodeState.SUSPECT
                changes.append(Changed(node, peer.state, peer.reason))
        return changes

    def next_tick(self, latest: float) -> float:
        """Time at which `tick` is to be called again: `latest`, or when a node that stays silent becomes suspect or failed."""
        present = (peer for peer in self._peers.values() if peer.state in PRESENT)
        changes = (_suspect_at(peer) if peer.state is NodeState.ALIVE else peer.fail_at for peer in present)
        self._due = min((latest, *changes))
        return self._due

    def view(self, now: float) -> tuple[PeerView, ...]:
        """All known nodes, this one first, then by name."""
        own = (PeerView(self._own, NodeState.ALIVE),) if self._own else ()
        peers = sorted(self._peers.values(), key=lambda p: (p.report.info.name, p.report.info.id))
        return own + tuple(_view(peer, now) for peer in peers)

    def alive(self) -> tuple[NodeReport, ...]:
        """Last reports of the participating nodes, including this one. Suspects participate: most of them come back."""
        own = (self._own,) if self._own else ()
        return own + tuple(p.report for p in self._peers.values() if p.state in PRESENT)

    def report_of(self, node: str) -> NodeReport | None:
        """The last report of a known node, or of this one."""
        if self._own and node == self._info.id:
            return self._own
        peer = self._peers.get(node)
        return peer.report if peer else None

    def state_of(self, node: str) -> NodeState | None:
        peer = self._peers.get(node)
        return peer.state if peer else None

    def ended(self) -> set[str]:
        """Nodes whose processes are known to have ended and that have not restarted."""
        return {node for node, peer in self._peers.items() if peer.ended}

    def silent_s(self, node: str, now: float) -> float:
        """Seconds for which a peer was not heard; inf if it never was."""
        peer = self._peers.get(node)
        return now - peer.seen if peer else math.inf

    def _admit(self, report: NodeReport, before: _Peer | None, now: float) -> list[Change]:
        info = report.info
        lag_s = max(report.lag_s, 0.0) + (self._own.lag_s if self._own else 0.0)  # an answer waits for threads at both
        fail_at = now + self._fail_after + min(lag_s, self._fail_after)
        self._peers[info.id] = _Peer(report, NodeState.ALIVE, now, fail_at)
        joined = Joined(info.id)
        if not before or before.state not in PRESENT:
            return [joined]
        if info.incarnation > before.report.info.incarnation:
            return [Changed(info.id, NodeState.FAILED, "restarted"), joined]
        return [Changed(info.id, NodeState.ALIVE)] if before.state is NodeState.SUSPECT else []

    def _refuse(self, report: NodeReport, now: float) -> list[Change]:
        theirs, ours = report.info, self._info
        reason = (
            f"runs {theirs.version} (protocol {theirs.protocol}), "
            f"this node runs {ours.version} (protocol {ours.protocol}); update the older one"
        )
        known = self._peers.get(theirs.id)
        self._peers[theirs.id] = _Peer(report, NodeState.REFUSED, now, now, reason)
        if known and known.state is NodeState.REFUSED and known.reason == reason:
            return []
        return [Changed(theirs.id, NodeState.REFUSED, reason)]


def _suspect_at(peer: _Peer) -> float:
    return peer.seen + SUSPECT_SHARE * (peer.fail_at - peer.seen)


def _view(peer: _Peer, now: float) -> PeerView:
    gone_s = 0.0 if peer.state in PRESENT else max(0.0, now - peer.fail_at)
    return PeerView(peer.report, peer.state, max(0.0, now - peer.seen), peer.reason, gone_s)


def _outdated(info: NodeInfo, peer: _Peer, now: float) -> bool:
    """Whether a report comes from a process that has ended: an older one, or the one that said goodbye."""
    if peer.state not in PRESENT and now - peer.seen >= ENDED_S:
        return False
    known = peer.report.info.incarnation
    return info.incarnation < known or (peer.state is NodeState.LEFT and info.incarnation == known)
