"""Head election. Pure: takes the reports of the live nodes, returns effects in the order in which to carry them out.

No quorum: a head serves the nodes that reach it. A node follows the head of the highest term and keeps it while it is
alive, even if a better ranked node joins later. Without a head, the best ranked live node claims the term after the
highest it has seen. Nodes that have just started come last, including a restarted head, as they first have to discover
the others. Two heads of one term (after a partition, or of simultaneous claims) are resolved by rank: the lower steps
down, the higher claims a new term, which all accept. No node accepts two heads in one term, so that two of them can
never both command one stage under the same fence.

All nodes of a fully connected group agree on the same head and term. Where A reaches B and B reaches C but A not C, a
node that cannot reach its neighbours' head stays without one instead of competing with it.

Terms of nodes that were separated differ by the elections that each side held. A peer's term is capped at `MAX_TERM_LEAD` above
this node's own: a node further behind catches up in a few heartbeats, and nobody can raise terms to where peers would
refuse the next one (that takes 2⁴³ heartbeats).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from node.core.reports import NodeReport
from node.core.rings import Fence


@dataclass(frozen=True, slots=True)
class PersistTerm:
    """Write the term to disk before carrying out the following effects: a restarted node must not claim an old term
    again.

    If that fails, a claim must be withdrawn; a node that only follows may do so in an unsaved term.
    """

    term: int


@dataclass(frozen=True, slots=True)
class BecameHead:
    """This node is head. Also returned when a head moves to a higher term."""

    term: int


@dataclass(frozen=True, slots=True)
class Follow:
    head: str
    term: int


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """This node is no longer head; a Follow comes next, or later."""

    term: int
    """The term in which it was head."""
    reason: str


@dataclass(frozen=True, slots=True)
class HeadLost:
    """The head that this node followed is gone or gave up; for now there is none."""

    head: str
    term: int


Effect = PersistTerm | BecameHead | Follow | SteppedDown | HeadLost


MAX_TERM_LEAD = 1024
SETTLE_S = 2.0
"""Two rounds of mDNS queries (at 0 and 1 s), a connection and a heartbeat. A shorter time risks a needless election when a
node joins a running cluster; a longer one only delays the first start.
"""


def cap_term(report: NodeReport, term: int) -> NodeReport:
    """A peer's report with its term capped for a node of this term."""
    return replace(report, term=min(report.term, term + MAX_TERM_LEAD))


def rank(report: NodeReport) -> tuple[int, str]:
    """Rank of a node, smallest first: one with more memory most likely drives a model and stays plugged in."""
    return (-report.memory.usable, report.info.id)


def _turn(report: NodeReport) -> tuple[bool, bool, int, str]:
    """Order in which nodes claim without a head. With a placement, one has followed a head, and knows the others."""
    return (bool(report.disk_error), report.fence == Fence(), *rank(report))


class Election:
    """Election state of one node. `tick` after every report and membership change, and a few times a second."""

    def __init__(self, self_id: str, term: int = 0) -> None:
        self._id = self_id
        self._started: float | None = None
        self.term = term
        """Highest term in which this node accepted a head or asked for a new one; part of its reports."""
        self.head = ""
        """Head that this node follows now, maybe itself; empty if none; part of its reports."""
        self._accepted = ""
        """The only head accepted in this term. A restart may forget it, as the stages it commanded are gone, too."""
        self._life = 0
        """The incarnation in which it claimed this term."""
        self._before_claim = (term, "", "")
        """(Term, head, accepted head) before the last claim."""

    @property
    def is_head(self) -> bool:
        return self.head == self._id

    def tick(self, now: float, alive: Sequence[NodeReport], ended: Collection[str] = ()) -> list[Effect]:
        """Update from the last reports of all participating nodes, including this one.

        `ended`: nodes whose processes are known to have ended. A peer that still follows one has not noticed yet.
        """
        if self._started is None:
            self._started = now
        peers = {r.info.id: r for r in alive if r.info.id != self._id}
        own = next(r for r in alive if r.info.id == self._id)
        claim = min(filter(_claims, peers.values()), key=lambda p: (-p.term, rank(p)), default=None)
        if claim and claim.term > self.term:
            return self._follow(claim)
        if self.is_head:
            return self._defend(own, peers)
        head = peers.get(self.head)
        # A report from before its claim does not count. After a restart it may have lost its term: its disk had not kept it.
        if head and (_claims(head) or (head.term < self.term and head.info.incarnation == self._life)):
            return []
        lost: list[Effect] = [HeadLost(self.head, self.term)] if self.head else []
        self.head = ""
        return lost + self._seek(now, own, peers, claim, ended)

    def withdraw(self) -> list[Effect]:
        """Undo the claim of the last tick, because its term could not be saved."""
        self.term, head, self._accepted = self._before_claim
        self.head = ""
        return [SteppedDown(self.term, "no higher term could be saved")] if head else []

    def _defend(self, own: NodeReport, peers: dict[str, NodeReport]) -> list[Effect]:
        """Step for a head, when no live node claims a higher term."""
        for peer in peers.values():
            others = peer.head not in ("", self._id)
            if peer.term < self.term or not others:
                continue
            if peer.head not in peers:
                return self._step_down(f"{peer.info.name} follows a head of term {peer.term} not reached from here")
            rival = peers[peer.head]
            if _claims(rival) and rival.term == self.term and rank(rival) < rank(own):
                return self._step_down(f"{rival.info.name} is head of the same term and ranks higher")
        rivals = any(_claims(p) and p.term == self.term for p in peers.values())
        if not rivals and self._highest(peers) == self.term:
            return []
        return self._step_down("no higher term can be saved") if own.disk_error else self._claim(peers)

    def _seek(
        self,
        now: float,
        own: NodeReport,
        peers: dict[str, NodeReport],
        claim: NodeReport | None,
        ended: Collection[str],
    ) -> list[Effect]:
        """Step for a node without a head, when no live node claims a higher term."""
        if claim and claim.term == self.term:
            if self._accepted in ("", claim.info.id):
                return self._follow(claim)
            self.term, self._accepted = self.term + 1, ""  # a higher term makes that head claim again
            return [PersistTerm(self.term)]
        if claim:
            return []  # that node will see our higher term, and claim the next
        elsewhere = {p.head for p in peers.values()} - {"", self._id} - peers.keys() - set(ended)
        met = bool(self._accepted)  # a node that has followed a head knows the others
        settled = met or (self._started is not None and now - self._started >= SETTLE_S)
        if elsewhere or not settled or own.disk_error or any(_turn(p) < _turn(own) for p in peers.values()):
            return []
        return self._claim(peers)

    def _claim(self, peers: dict[str, NodeReport]) -> list[Effect]:
        self._before_claim = (self.term, self.head, self._accepted)
        self.term = self._highest(peers) + 1
        self.head = self._accepted = self._id
        return [PersistTerm(self.term), BecameHead(self.term)]

    def _follow(self, claim: NodeReport) -> list[Effect]:
        effects: list[Effect] = [PersistTerm(claim.term)] if claim.term > self.term else []
        if self.is_head:
            effects.append(SteppedDown(self.term, f"{claim.info.name} is head of term {claim.term}"))
        self.term = claim.term
        self.head, self._life = claim.info.id, claim.info.incarnation
        self._accepted = self.head
        return [*effects, Follow(self.head, self.term)]

    def _step_down(self, reason: str) -> list[Effect]:
        self.head = ""
        return [SteppedDown(self.term, reason)]

    def _highest(self, peers: dict[str, NodeReport]) -> int:
        return max([self.term, *(p.term for p in peers.values())])


def _claims(report: NodeReport) -> bool:
    return report.head == report.info.id
