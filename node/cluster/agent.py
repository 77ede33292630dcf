"""This node's state in the cluster: membership, election, and the current placement.

All nodes exchange heartbeats, at once when their state changes, and have each other's whole state. The head adds its placement
for nodes that have an older one. A placement is state, not a command, so a lost message does no harm: the next one repeats it.

A node that joins a new head sends it the old head's placement. The new head takes over rings of it that still work, so that
a healed partition interrupts nothing; until it has decided, it sends the node no placement.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from node.cluster.cluster_log import ClusterLog
from node.cluster.held_states import HeldStates
from node.cluster.reconciliation import Reconciliation
from node.core.clock import GRID_S, in_step, now
from node.core.errors import Incompatible, NotReady
from node.core.nodes import Address, Caller, NodeInfo, PeerHint
from node.core.reports import Heartbeat, NodeReport, StageState
from node.core.rings import Placement
from node.core.signal import Signal
from node.core.views import ClusterView, NodeState
from node.host.interfaces import Interface
from node.members.address_book import AddressBook
from node.members.election import Election, PersistTerm, cap_term
from node.members.membership import FAIL_AFTER_S, Change, Changed, Forgotten, Joined, Membership
from node.members.term_store import TermStore

ELECTED_S = 10.0
"""Time for which a request that the head decides waits for one. An election takes two seconds at most."""
LAG_DECAY = 0.99
"""Factor per tick, for about a minute: a loop that was late once may be late again."""


class Agent:
    def __init__(
        self,
        info: NodeInfo,
        term: int,
        book: AddressBook,
        local_report: Callable[[], NodeReport],
        save_term: Callable[[int], None],
        *,
        fail_after_s: float = FAIL_AFTER_S,
    ) -> None:
        """`local_report`: returns this node's report without the agent's part, which is election, placement, paths and peers.

        `save_term`: writes a term to disk; may raise OSError.
        """
        self.info = info
        self.placement = Placement()
        self.leaving = False
        self.draining = False
        self.last_joined_at = -math.inf
        """Time at which a node joined last."""
        self.reconciliation = Reconciliation()
        """Rings of other heads' placements; used by the head."""
        self.changed = Signal()
        self.news = Signal()
        """The other nodes have to be told something at once."""
        self.adopted = Signal()
        """The placement changed, or whether this node is draining."""
        self.head_due = Signal()
        """The head has a reason to plan again."""
        self.lag_s = 0.0
        """Recent maximum of the event loop's lag."""
        self.book = book
        self.membership = Membership(info, fail_after_s=fail_after_s)
        self.states = HeldStates()
        self._local_report = local_report
        self._term_store = TermStore(save_term)
        self._election = Election(info.id, term)
        self._log = ClusterLog(info.cluster, self._name)

    # --- state --------------------------------------------------------------------------------------------------------

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

    async def elected(self) -> str:
        """The id of the head. While there is none, as in a cluster's first seconds, wait for one. Raises NotReady."""
        deadline = now() + ELECTED_S
        while not self.head:
            if not await self.changed.wait(max(deadline - now(), 0)):
                problem = f"The cluster has had no head, which has to decide this, for {ELECTED_S:.0f} s."
                raise NotReady(problem, hint="Try again in a moment.")
        return self.head

    def view(self) -> ClusterView:
        return ClusterView(self.info.id, self.term, self.head, self.membership.view(now()), self.placement)

    def alive(self) -> tuple[NodeReport, ...]:
        """Reports of the participating nodes, including this one."""
        return self.membership.alive()

    def holders(self, model: str) -> Sequence[tuple[Address, str]]:
        """Addresses of the other nodes that have all files of a model, each with their revision."""
        return [
            (address, held.revision)
            for report in self.alive()
            if (address := self.book.address_of(report.info.id))
            for held in report.models
            if held.id == model
        ]

    def others(self) -> Sequence[Address]:
        """Addresses of the other participating nodes."""
        return [address for report in self.alive() if (address := self.book.address_of(report.info.id))]

    def with_kv(self) -> Sequence[Address]:
        """Addresses of the other nodes that have KV on their disks."""
        told = [report.info.id for report in self.alive() if report.kv_disk]
        return [address for node in told if (address := self.book.address_of(node))]

    def is_member(self, caller: Caller) -> bool:
        """Whether a call comes from one of the participating nodes."""
        return any(self.book.is_from(report.info.id, caller) for report in self.alive())

    # --- changes of this node -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            self._step()
            due = self.membership.next_tick(now() + in_step(GRID_S))
            await asyncio.sleep(due - now())
            self.lag_s = max(now() - due, self.lag_s * LAG_DECAY)

    def touch(self) -> None:
        """Process a change of this node's own state."""
        self._step()
        self.changed.notify()
        self.news.notify()

    def set_draining(self, draining: bool) -> None:
        """Set whether this node's work is to be moved away."""
        self.draining = draining
        self.adopted.notify()
        self.touch()

    def readdress(self, addresses: tuple[str, ...], interfaces: Sequence[Interface]) -> bool:
        """Use this machine's present interfaces. Returns whether its addresses changed, as when a cable is plugged in.

        Addresses that stay may have moved to another interface, whose zone peers' link-local addresses then need.
        """
        self.book.interfaces = interfaces
        for info in [report.info for report in self.alive() if report.info.id != self.info.id]:
            self._know(info)  # its addresses come again only when they change
        if addresses == self.info.addresses:
            return False
        self.info = replace(self.info, addresses=addresses)
        self.touch()
        return True

    def _know(self, info: NodeInfo) -> None:
        """Take note of a node's addresses."""
        hint = PeerHint(info.id, info.addresses, info.grpc_port)
        if not self.book.knows(hint):
            self.book.add(hint)

    # --- messages from peers ------------------------------------------------------------------------------------------

    def exchange(self, heartbeat: Heartbeat, caller: Caller) -> Heartbeat:
        """Process a peer's heartbeat and return this node's. Raises Incompatible for a node of another cluster."""
        if heartbeat.report:
            info = heartbeat.report.info
            if info.cluster != self.info.cluster:
                raise Incompatible(f"This is cluster {self.info.cluster}, not {info.cluster}.")
            self._know(info)
        if heartbeat.sender == self.info.id:  # this node itself, or a process with a copy of its key
            return self.heartbeat_for(None)
        self.book.note_caller(heartbeat.sender, caller.address)
        self.heard(heartbeat)
        return self.heartbeat_for(heartbeat.sender)

    def heard(self, heartbeat: Heartbeat) -> bool:
        """Process a peer's heartbeat, received in a call or in an answer. Returns whether this node lacks the report of it."""
        complete = self.states.incoming(heartbeat)
        if not complete or not complete.report:
            return True
        report = complete.report
        changes = self.membership.heard(cap_term(report, self.term), now())
        self._handle_changes(changes)
        if changes or heartbeat.report or heartbeat.placement or report.term > self.term:
            self._learn(report, complete.placement)
        return False

    def _learn(self, report: NodeReport, offered: Placement | None) -> None:
        """Take note of what is new in a peer's heartbeat."""
        for hint in report.peers:
            if self.book.hint_of(hint.id) is None:
                self.book.add(hint)
        self._step()
        sender = report.info.id
        # Only the head itself may announce its placement.
        is_of_head = offered and sender == offered.head == self.head and offered.fence.term == self.term
        if offered and is_of_head and offered.fence > self.placement.fence:
            self.adopt(offered)
        elif offered and self.is_head and offered.fence.term < self.term:
            self.reconciliation.offer(offered)
            self.head_due.notify()
        if any(stage.state is StageState.ENDED for stage in report.stages):
            self.head_due.notify()
        self.changed.notify()

    def unreachable(self, node: str, gone_at: float | None) -> None:
        """Process a refused or reset connection. `gone_at`: time by which the node's process had ended, if known."""
        self._handle_changes(self.membership.unreachable(node, now(), gone_at))
        if gone_at is not None:
            self._step()

    def left(self, node: str, incarnation: int) -> None:
        """Process a node's goodbye."""
        self._handle_changes(self.membership.goodbye(node, now(), incarnation))
        self._step()

    def adopt(self, placement: Placement) -> None:
        is_over = all(report.draining for report in self.alive())  # as all nodes stop
        self._log.tell_placement(placement, self.placement, is_over=is_over)
        self.placement = placement
        self.adopted.notify()
        self.touch()

    # --- membership and election --------------------------------------------------------------------------------------

    def _step(self) -> None:
        present = now()
        self._term_store.retry(present)
        if self.states.own is None:
            self.membership.heard(self._report(), present)  # the election wants one of this node
        self._handle_changes(self.membership.tick(present))
        self._elect(present)
        self.renew()

    def renew(self) -> None:
        """Have what this node's parts say of it now: a request may have come since the last tick."""
        report = self._report()
        self.membership.heard(report, now())
        if self.states.renew(report):
            self.news.notify()

    def _elect(self, present: float) -> None:
        effects = self._election.tick(present, self.alive(), self.membership.ended())
        for effect in effects:
            if not isinstance(effect, PersistTerm):
                self._log.tell(effect)
            elif not self._term_store.save(effect.term, present) and self._election.is_head:
                for withdrawn in self._election.withdraw():
                    self._log.tell(withdrawn)
                break
        if effects:
            self._notify()

    def _handle_changes(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._log.tell(change)
            match change:
                case Joined(node):
                    self.last_joined_at = now()
                    self.reconciliation.joined(node, self.last_joined_at)
                case Changed(node, NodeState.FAILED | NodeState.LEFT):
                    self.book.disconnect(node)
                case Forgotten(node):
                    self.book.forget(node)
                    self.states.forget(node)
                    self.reconciliation.forget(node)
        if changes:
            self._notify()

    def _notify(self) -> None:
        for signal in (self.head_due, self.changed, self.news):
            signal.notify()

    def _name(self, node: str) -> str:
        report = self.membership.report_of(node)
        return report.info.name if report else node

    # --- heartbeats to peers ------------------------------------------------------------------------------------------

    def heartbeat_for(self, node: str | None) -> Heartbeat:
        """This node's state, with the placement if the node should adopt it or, as a new head, take over rings of it."""
        if self.states.own is None:
            self._step()
        theirs = next((report for report in self.alive() if report.info.id == node), None)
        placement = self.placement if theirs and self._needs_placement(theirs) else None
        return self.states.outgoing(placement, node)

    def _needs_placement(self, theirs: NodeReport) -> bool:
        is_current = self.placement.fence.term == self.term
        if self.is_head:
            is_newer = is_current and self.placement.fence > theirs.fence
            return is_newer and not self.reconciliation.rings_of(theirs, self.view(), now())
        return self.head == theirs.info.id and not is_current

    def _report(self) -> NodeReport:
        """This node's: the part that other parts of the node know, and the agent's own."""
        hints = (self.book.hint_of(report.info.id) for report in self.alive())
        return replace(
            self._local_report(),
            term=self.term,
            head=self.head,
            fence=self.placement.fence,
            draining=self.draining,
            paths=self.book.paths_to_peers(),
            peers=tuple(hint for hint in hints if hint),
            lag_s=round(20 * self.lag_s) / 20,  # in steps, so that a report seldom changes
            disk_error=self._term_store.error,
        )
