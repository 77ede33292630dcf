"""Which node is head. Pure: the reports of the nodes that are alive in, effects out, in the order to carry them out.

No quorum: a head serves whoever reaches it. A node takes the head that the highest term names and keeps it while it is
alive, however good a later comer is. Without a head, the best ranked of the nodes alive claims the term after the
highest it has seen; those that have just started come last, a head that restarted among them: they would first have to
look who is there. Two heads of one term (a partition, or claims that crossed) are told apart by rank: the lower steps
down, the higher claims a new term, which all accept. Nobody accepts two heads in one term, so that two of them can
never both command one stage under the same fence.

Every node of a fully connected group comes to the same head and term. Where A reaches B and B reaches C but A not C,
a node that can't reach its neighbours' head stays without one rather than fight over it.

Terms of nodes that were apart differ by the elections that each side held. What a peer tells is taken as `REACH` above this
node's own term at most: who is further behind catches up in a few heartbeats, and nobody can push terms up to where peers
would refuse the next one (it takes 2⁴³ heartbeats).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from node.core.types import Fence, NodeReport


@dataclass(frozen=True, slots=True)
class PersistTerm:
    """Write the term to disk before the effects after it: a restarted node must not claim an old term anew.

    Where that fails, a claim is to be withdrawn; a node that only follows does so in a term that it has not written.
    """

    term: int


@dataclass(frozen=True, slots=True)
class BecameHead:
    """The node itself is head. Also told to a head that moves to a higher term."""

    term: int


@dataclass(frozen=True, slots=True)
class Follow:
    head: str
    term: int


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """The node itself is head no more; a Follow comes next, or later."""

    term: int
    """The term in which it was head."""
    reason: str


@dataclass(frozen=True, slots=True)
class HeadLost:
    """The head that this node followed is gone or gave up; there is none for now."""

    head: str
    term: int


Effect = PersistTerm | BecameHead | Follow | SteppedDown | HeadLost


REACH = 1024


def within_reach(report: NodeReport, term: int) -> NodeReport:
    """A peer's report as a node of that term takes it."""
    return replace(report, term=min(report.term, term + REACH))


def rank(report: NodeReport) -> tuple[int, str]:
    """Smallest is best. More memory first: the head's node is likeliest to drive a model and to stay plugged in."""
    return (-report.memory.usable, report.info.id)


def _turn(report: NodeReport) -> tuple[bool, bool, int, str]:
    """Smallest claims first where there is no head. Who has a placement has followed a head, so need not settle first."""
    return (bool(report.disk_error), report.fence == Fence(), *rank(report))


class Election:
    """Call `tick` after every report and every membership change, and a few times a second."""

    def __init__(
        self,
        self_id: str,
        term: int = 0,
        *,
        # Two rounds of mDNS queries (at 0 and 1 s), a connection and a heartbeat. Shorter risks a needless election when
        # a node joins a running cluster; longer only delays the first start.
        settle_s: float = 2.0,
    ) -> None:
        self._id = self_id
        self._settle = settle_s
        self._started: float | None = None
        self.term = term
        """The highest term in which this node accepted a head or asked for a new one; goes into its reports."""
        self.head = ""
        """The head it follows now, maybe itself; empty if none; goes into its reports."""
        self._accepted = ""
        """The one head accepted in this term. A restart forgets it, and may: the stages it commanded are gone too."""

        self._before_claim = (term, "", "")
        """Term, head and accepted head, as they were."""

    @property
    def is_head(self) -> bool:
        return self.head == self._id

    def tick(self, now: float, alive: Sequence[NodeReport], ended: Collection[str] = ()) -> list[Effect]:
        """Decide anew from the last reports of all nodes that take part, this one included.

        `ended`: nodes whose processes are known to have ended. Who still follows one has not noticed yet.
        """
        if self._started is None:
            self._started = now
        peers = {r.info.id: r for r in alive if r.info.id != self._id}
        own = next(r for r in alive if r.info.id == self._id)
        claim = self._best_claim(peers)
        if claim and claim.term > self.term:
            return self._follow(claim)
        if self.is_head:
            return self._defend(own, peers)
        if self.head and not self._gave_up(peers.get(self.head)):
            return []
        lost: list[Effect] = [HeadLost(self.head, self.term)] if self.head else []
        self.head = ""
        return lost + self._seek(now, own, peers, claim, ended)

    def withdraw(self) -> list[Effect]:
        """The term of the claim that the last tick made could not be persisted, so the claim was not made."""
        self.term, head, self._accepted = self._before_claim
        self.head = ""
        return [SteppedDown(self.term, "no higher term could be saved")] if head else []

    def _defend(self, own: NodeReport, peers: dict[str, NodeReport]) -> list[Effect]:
        """As head, while no node alive claims a higher term."""
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
        """Without a head, while no node alive claims a higher term."""
        if claim and claim.term == self.term:
            return self._follow(claim) if self._accepted in ("", claim.info.id) else self._ask_for_new_term()
        if claim:
            return []  # it sees our higher term and claims the next
        elsewhere = {p.head for p in peers.values()} - {"", self._id} - peers.keys() - set(ended)
        met = bool(self._accepted)  # who has followed a head knows the others
        settled = met or (self._started is not None and now - self._started >= self._settle)
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
        self.head = self._accepted = claim.info.id
        return [*effects, Follow(self.head, self.term)]

    def _step_down(self, reason: str) -> list[Effect]:
        self.head = ""
        return [SteppedDown(self.term, reason)]

    def _ask_for_new_term(self) -> list[Effect]:
        """The head of this term is one that this node may not accept: a higher term makes it claim again."""
        self.term += 1
        self._accepted = ""
        return [PersistTerm(self.term)]

    def _highest(self, peers: dict[str, NodeReport]) -> int:
        return max(self.term, *(p.term for p in peers.values())) if peers else self.term

    def _best_claim(self, peers: dict[str, NodeReport]) -> NodeReport | None:
        return min(filter(_claims, peers.values()), key=lambda p: (-p.term, rank(p)), default=None)

    def _gave_up(self, head: NodeReport | None) -> bool:
        """Whether it is gone, or says itself that it is not head; a report from before its claim says nothing."""
        return head is None or (head.term >= self.term and not _claims(head))


def _claims(report: NodeReport) -> bool:
    return report.head == report.info.id
