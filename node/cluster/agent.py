"""This node among its peers: membership, election, and which placement holds.

All nodes tell each other their whole state twice a second, and at once when it changes; the head sends its placement to
whoever has an older one. So nothing is ever ordered over the network: a message that is lost is said again.

A node that comes to a new head tells it the placement that it has from the old one. Rings of it that stand are taken over,
so that a partition that heals drops nothing; until that is decided the new head does not tell the node what it placed.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from node.cluster.address_book import AddressBook
from node.cluster.election import (
    BecameHead,
    Effect,
    Election,
    Follow,
    HeadLost,
    PersistTerm,
    SteppedDown,
    within_reach,
)
from node.cluster.membership import FAIL_AFTER_S, Change, Changed, Forgotten, Joined, Membership
from node.cluster.reconciliation import Reconciliation
from node.cluster.term_store import TermStore
from node.core.clock import now
from node.core.errors import Incompatible, NotReady
from node.core.signal import Signal
from node.core.types import (
    Address,
    Caller,
    ClusterView,
    Heartbeat,
    LoadState,
    NodeInfo,
    NodeReport,
    NodeState,
    PeerHint,
    PeerView,
    Placement,
)
from node.host.interfaces import Interface

log = logging.getLogger(__name__)

TICK_S = 0.2
"""How often time's passing is looked at: a ninth of what it takes a node to fail."""
DUPLICATE_SHOWN_S = 300.0
"""How long the status tells of another process with this node's key after it was last there."""
LAG_FADES = 0.995
"""With each tick: a loop that was late once may well be so again, for a minute or so."""


class Agent:
    """`facts` gives this node's report without what the agent knows itself: election, placement, links, peers."""

    def __init__(
        self,
        info: NodeInfo,
        term: int,
        book: AddressBook,
        facts: Callable[[], NodeReport],
        save_term: Callable[[int], None],
        *,
        fail_after_s: float = FAIL_AFTER_S,
    ) -> None:
        self.info = info
        self.placement = Placement()
        self.leaving = False
        self.draining = False
        self.joined_at = -math.inf
        """When a node came last."""
        self.reconciliation = Reconciliation()
        """As head: what nodes bring from another one."""
        self.changed = Signal()
        """Anything in the view changed."""
        self.news = Signal()
        """Something changed that the other nodes have to be told at once."""
        self.adopted = Signal()
        """What this node shall hold changed: there is a new placement, or its work shall be moved away."""
        self.head_due = Signal()
        """The head has reason to plan anew."""
        self._book = book
        self._facts = facts
        self._term_store = TermStore(save_term)
        self._membership = Membership(info, fail_after_s=fail_after_s)
        self.lag_s = 0.0
        """Recent maximum of the event loop's lag."""
        self._election = Election(info.id, term)
        self._duplicate = ""
        self._duplicate_until = -math.inf

    # --- what others see ----------------------------------------------------------------------------------------------

    @property
    def is_head(self) -> bool:
        return self._election.is_head and not self.leaving

    def check_head(self) -> None:
        """Raises NotReady if this node is not the head."""
        if not self.is_head:
            raise NotReady("This node is not the head of the cluster.", hint="Try again in a moment.")

    @property
    def term(self) -> int:
        return self._election.term

    @property
    def head(self) -> str:
        return self._election.head

    def view(self) -> ClusterView:
        peers = self._membership.view(now())
        duplicate = self._duplicate if now() < self._duplicate_until else ""
        return ClusterView(self.info.id, self.term, self.head, peers, self.placement, duplicate)

    def alive(self) -> tuple[NodeReport, ...]:
        """Reports of the nodes that take part, this one included."""
        return self._membership.alive()

    def holders(self, model: str) -> Sequence[tuple[Address, str]]:
        """Addresses of the other nodes that hold a model's files, each with the revision of these."""
        nodes = [
            (report.info.id, held.revision) for report in self.alive() for held in report.models if held.id == model
        ]
        return [(address, revision) for node, revision in nodes if (address := self._book.address_of(node))]

    # --- what this node does ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            self._step()
            due = now() + TICK_S
            await asyncio.sleep(TICK_S)
            self.lag_s = max(now() - due, self.lag_s * LAG_FADES)

    def touch(self) -> None:
        """This node's own state changed."""
        self._step()
        self.changed.notify()
        self.news.notify()

    def set_draining(self, draining: bool) -> None:
        """Whether this node's work shall be moved away."""
        self.draining = draining
        self.adopted.notify()
        self.touch()

    def readdress(self, addresses: tuple[str, ...], interfaces: Sequence[Interface]) -> None:
        """This machine's network changed: a cable was plugged, or Wi-Fi joined."""
        self.info = replace(self.info, addresses=addresses)
        self._book.interfaces = interfaces
        self.touch()

    def supersede(self, duplicate: NodeInfo) -> None:
        """Another process was started with this node's key, and gives way: what it said in this node's name is over."""
        self._duplicate, self._duplicate_until = duplicate.name, now() + DUPLICATE_SHOWN_S
        log.warning(
            "%s at %s was started with a copy of this node's data directory: it gives way and takes an id of its own",
            duplicate.name,
            ", ".join(duplicate.addresses),
        )
        self.info = replace(self.info, incarnation=max(self.info.incarnation, duplicate.incarnation + 1))
        self.touch()

    # --- what comes in ------------------------------------------------------------------------------------------------

    def exchange(self, heartbeat: Heartbeat, caller: Caller) -> Heartbeat:
        """A peer tells its state and gets ours. Raises Incompatible for a node of another cluster."""
        info = heartbeat.report.info
        if info.cluster != self.info.cluster:
            raise Incompatible(f"This is cluster {self.info.cluster}, not {info.cluster}.")
        hint = PeerHint(info.id, info.addresses, info.grpc_port)
        if not self._book.knows(hint):
            self._book.add(hint)
        if info.id == self.info.id:  # this node itself, or a double: not to be taken for what it says of itself
            return self.heartbeat_for(None)
        self._book.note_caller(info.id, caller.address)
        self.heard(heartbeat)
        return self.heartbeat_for(info.id)

    def heard(self, heartbeat: Heartbeat) -> None:
        """A peer told its state, in a call or in an answer."""
        self._note(self._membership.heard(within_reach(heartbeat.report, self.term), now()))
        for hint in heartbeat.report.peers:
            if self._book.hint_of(hint.id) is None:
                self._book.add(hint)
        self._step()
        offered = heartbeat.placement
        sender = heartbeat.report.info.id
        # Only the head itself tells its placement.
        is_of_head = offered and sender == offered.head == self.head and offered.fence.term == self.term
        if offered and is_of_head and offered.fence > self.placement.fence:
            self.adopt(offered)
        elif offered and self.is_head and offered.fence.term < self.term:
            self.reconciliation.offer(offered)
            self.head_due.notify()
        if any(load.state is LoadState.ENDED for load in heartbeat.report.loads):
            self.head_due.notify()
        self.changed.notify()

    def unreachable(self, node: str, gone_at: float | None = None) -> None:
        """A connection to a node was refused or reset; `gone_at`: its process had ended by then."""
        self._note(self._membership.unreachable(node, now(), gone_at))
        if gone_at is not None:
            self._step()

    def left(self, node: str, incarnation: int) -> None:
        """A node said goodbye."""
        self._note(self._membership.goodbye(node, now(), incarnation))
        self._step()

    def adopt(self, placement: Placement) -> None:
        self.placement = placement
        for ring in placement.rings:
            stages = ", ".join(f"{self._name(stage.node)} {stage.start}-{stage.end - 1}" for stage in ring.stages)
            fence, verb = placement.fence, "retires from" if ring.retiring else "on"
            log.info("placement %d.%d: %s %s %s", fence.term, fence.epoch, ring.model, verb, stages)
        for refusal in placement.refused:
            log.warning("placement: %s: %s", refusal.model, refusal.message)
        self.adopted.notify()
        self.touch()

    # --- letting the state machines see the present -------------------------------------------------------------------

    def _step(self) -> None:
        present = now()
        self._term_store.retry(present)
        self._note(self._membership.heard(self._report(), present) + self._membership.tick(present))
        for effect in self._election.tick(present, self._membership.alive(), self._membership.ended()):
            if isinstance(effect, PersistTerm):
                if self._term_store.save(effect.term, present) or not self._election.is_head:
                    continue
                for withdrawn in self._election.withdraw():
                    self._carry_out(withdrawn)
                return
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case BecameHead(term):
                log.info("this node is head of cluster %s, term %d", self.info.cluster, term)
            case Follow(head, term):
                log.info("head is %s, term %d", self._name(head), term)
            case SteppedDown(term, reason):
                log.info("no longer head of term %d: %s", term, reason)
            case HeadLost(head, term):
                log.warning("head %s of term %d is lost", self._name(head), term)
        self._tell()

    def _note(self, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case Joined(node):
                    self.joined_at = now()
                    self.reconciliation.joined(node, self.joined_at)
                    log.info("%s joined", self._name(node))
                case Changed(node, state, reason):
                    log.info("%s is %s%s", self._name(node), state, f": {reason}" if reason else "")
                    if state in (NodeState.FAILED, NodeState.LEFT):
                        self._book.disconnect(node)
                case Forgotten(node):
                    self._book.forget(node)
                    self.reconciliation.forget(node)
            self._tell()

    def _tell(self) -> None:
        self.head_due.notify()
        self.changed.notify()
        self.news.notify()

    def _name(self, node: str) -> str:
        peer = self._peer(node)
        return peer.report.info.name if peer else node

    def _peer(self, node: str) -> PeerView | None:
        return next((peer for peer in self._membership.view(now()) if peer.report.info.id == node), None)

    # --- what goes out ------------------------------------------------------------------------------------------------

    def state_of(self, node: str) -> NodeState | None:
        peer = self._peer(node)
        return peer.state if peer else None

    def heartbeat_for(self, node: str | None) -> Heartbeat:
        """This node's state, with the placement if that node is to adopt it, or may find rings in it."""
        theirs = next((report for report in self.alive() if report.info.id == node), None)
        return Heartbeat(self._report(), self.placement if theirs and self._is_due(theirs) else None)

    def _is_due(self, theirs: NodeReport) -> bool:
        is_current = self.placement.fence.term == self.term
        if self.is_head:
            is_newer = is_current and self.placement.fence > theirs.fence
            return is_newer and not self.reconciliation.rings_of(theirs, self.view(), now())
        return self.head == theirs.info.id and not is_current

    def _report(self) -> NodeReport:
        hints = (self._book.hint_of(report.info.id) for report in self.alive())
        return replace(
            self._facts(),
            term=self.term,
            head=self.head,
            fence=self.placement.fence,
            draining=self.draining,
            links=self._book.links(),
            peers=tuple(hint for hint in hints if hint),
            lag_s=self.lag_s,
            disk_error=self._term_store.error,
        )
