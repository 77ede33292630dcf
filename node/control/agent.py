"""This node among its peers: heartbeats, membership, election, and which placement holds.

All nodes tell each other their whole state twice a second, and at once when it changes; whoever has a newer placement
than the other sends it along. So nothing is ever ordered over the network: a message that is lost is said again.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from node.cluster.election import BecameHead, Effect, Election, Follow, HeadLost, PersistTerm, SteppedDown
from node.cluster.membership import Change, Changed, Forgotten, IdTaken, Joined, Membership
from node.cluster.topology import Topology
from node.core.errors import Incompatible, PippinError
from node.core.signal import Signal
from node.core.types import (
    ClusterView,
    Heartbeat,
    NodeInfo,
    NodeReport,
    NodeState,
    PeerHint,
    Placement,
)
from node.host.interfaces import Interface, interface_towards
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
"""Two heartbeats may be lost before a node is suspected, and it is shown as failed within 5 s."""
EXCHANGE_TIMEOUT_S = 1.0
TICK_S = 0.2
PROBE_S = 5.0
"""How often each of a node's addresses is measured: a plugged or pulled cable is noticed within two rounds."""
GONE_INTERVAL_S = 2.0
"""How often a node that is gone is tried: it may come back at its old address without an advert."""


class Agent:
    """`facts` gives this node's report without what the agent knows itself: election, placement, links, peers."""

    def __init__(
        self,
        info: NodeInfo,
        term: int,
        client: RpcClient,
        facts: Callable[[], NodeReport],
        save_term: Callable[[int], None],
        interfaces: Sequence[Interface],
    ) -> None:
        self.info = info
        self.placement = Placement()
        self.leaving = False
        self.changed = Signal()
        """Anything in the view changed."""
        self.adopted = Signal()
        """There is a new placement."""
        self.head_due = Signal()
        """The head has reason to plan anew."""
        self._spread = Signal()
        """This node's own state changed: tell the others now."""
        self._client = client
        self._facts = facts
        self._save_term = save_term
        self._interfaces = interfaces
        self._ways: dict[str, Interface | None] = {}
        self._membership = Membership(info)
        self._election = Election(info.id, term)
        self._topology = Topology()
        self._hints: dict[str, PeerHint] = {}
        self._contacts = asyncio.TaskGroup()

    # --- what others see ----------------------------------------------------------------------------------------------

    @property
    def is_head(self) -> bool:
        return self._election.is_head and not self.leaving

    @property
    def term(self) -> int:
        return self._election.term

    @property
    def head(self) -> str:
        return self._election.head

    def view(self) -> ClusterView:
        peers = self._membership.view(time.monotonic())
        return ClusterView(self.info.id, self.term, self.head, peers, self.placement)

    def alive(self) -> tuple[NodeReport, ...]:
        """Reports of the nodes that take part, this one included."""
        return self._membership.alive()

    def address_of(self, node: str) -> str | None:
        """The best `host:port` of a node's gRPC server."""
        hint = self._hints.get(node)
        if hint is None:
            return None
        link = self._topology.best(node, time.monotonic())
        return _join(link.address if link else hint.addresses[0], hint.grpc_port)

    def holders(self, model: str) -> Sequence[str]:
        """Addresses of the other nodes that hold a model's files."""
        others = [
            report.info.id for report in self.alive() if model in report.models and report.info.id != self.info.id
        ]
        return [address for node in others if (address := self.address_of(node))]

    def touch(self) -> None:
        """This node's own state changed."""
        self._step()
        self.changed.notify()
        self._spread.notify()

    def lead(self, placement: Placement) -> None:
        """As the head: this holds from now on."""
        self._adopt(placement)

    # --- running ------------------------------------------------------------------------------------------------------

    async def run(self, peers: Sequence[str] = ()) -> None:
        """`peers`: `host:port` of nodes to contact without discovery."""
        async with self._contacts:
            for peer in peers:
                self._contacts.create_task(self._seek(peer), name=f"seek {peer}")
            while True:
                self._step()
                await asyncio.sleep(TICK_S)

    async def leave(self) -> None:
        """Say goodbye to all, so that nobody has to wait for this node to fail. As head, decides nothing any more."""
        self.leaving = True
        addresses = [address for report in self.alive() if (address := self.address_of(report.info.id))]
        info = self.info
        calls = [self._client.leave(address, info.id, info.incarnation, EXCHANGE_TIMEOUT_S) for address in addresses]
        await asyncio.gather(*calls, return_exceptions=True)

    def hint(self, hint: PeerHint) -> None:
        """A node may be found there."""
        if hint.id == self.info.id or not hint.addresses:
            return
        known = self._hints.get(hint.id)
        self._hints[hint.id] = hint
        if known is None:
            self._contacts.create_task(self._keep_contact(hint.id), name=f"contact {hint.id}")

    async def _seek(self, peer: str) -> None:
        """Find out who is at an address that the user gave; contact is kept by its id from then on."""
        host, _, port = peer.rpartition(":")
        while True:
            try:
                answer = await self._client.exchange(peer, self._heartbeat(None), EXCHANGE_TIMEOUT_S)
            except PippinError as error:
                log.debug("%s: %s", peer, error)
            else:
                info = answer.report.info
                if info.id == self.info.id:
                    return
                addresses = tuple(dict.fromkeys((host.strip("[]"), *info.addresses)))
                if info.cluster == self.info.cluster and info.id not in self._hints:
                    self.hint(PeerHint(info.id, addresses, int(port)))
                self._heard(answer)
            await asyncio.sleep(GONE_INTERVAL_S)

    async def _keep_contact(self, node: str) -> None:
        """Exchange heartbeats for as long as the node is remembered."""
        probe_at = 0.0
        while hint := self._hints.get(node):
            if time.monotonic() >= probe_at:
                await self._probe(hint)
                probe_at = time.monotonic() + PROBE_S
            await self._beat(hint)
            if self._state(node) in (NodeState.ALIVE, NodeState.SUSPECT, None):
                await self._spread.wait(HEARTBEAT_S)
            else:
                await asyncio.sleep(GONE_INTERVAL_S)

    async def _probe(self, hint: PeerHint) -> None:
        """Measure every way to the node."""

        async def measure(address: str) -> None:
            try:
                # The least of three: the way's length, not what this machine happened to do meanwhile.
                rtt_ms = min(
                    [await self._client.probe(_join(address, hint.grpc_port), EXCHANGE_TIMEOUT_S) for _ in "123"]
                )
            except PippinError as error:
                log.debug("probe of %s: %s", address, error)
                self._topology.failed(hint.id, address)
            else:
                way = self._way_to(address)
                name, kind = (way.name, way.kind) if way else ("", "")
                self._topology.observe(hint.id, address, rtt_ms, time.monotonic(), interface=name, kind=kind)

        await asyncio.gather(*(measure(address) for address in hint.addresses))

    async def _beat(self, hint: PeerHint) -> None:
        """One exchange over the best way, or over any that works."""
        best = self._topology.best(hint.id, time.monotonic())
        ways = dict.fromkeys((*([best.address] if best else []), *hint.addresses))
        for address in ways:
            try:
                answer = await self._client.exchange(
                    _join(address, hint.grpc_port), self._heartbeat(hint.id), EXCHANGE_TIMEOUT_S
                )
            except PippinError as error:
                log.debug("heartbeat to %s: %s", address, error)
                self._topology.failed(hint.id, address)
            else:
                if answer.report.info.id == hint.id:
                    self._heard(answer)
                    return
        self._note(self._membership.unreachable(hint.id, time.monotonic()))

    def _state(self, node: str) -> NodeState | None:
        views = self._membership.view(time.monotonic())
        return next((peer.state for peer in views if peer.report.info.id == node), None)

    # --- what comes in ------------------------------------------------------------------------------------------------

    def exchange(self, heartbeat: Heartbeat) -> Heartbeat:
        """A peer tells its state and gets ours. Raises Incompatible for a node of another cluster."""
        info = heartbeat.report.info
        if info.cluster != self.info.cluster:
            raise Incompatible(f"This is cluster {self.info.cluster}, not {info.cluster}.")
        if info.id not in self._hints or self._hints[info.id].grpc_port != info.grpc_port:
            self.hint(PeerHint(info.id, info.addresses, info.grpc_port))
        self._heard(heartbeat)
        return self._heartbeat(info.id)

    def leave_notice(self, node: str, incarnation: int) -> None:
        self._note(self._membership.goodbye(node, time.monotonic(), incarnation))
        self._step()

    def _heard(self, heartbeat: Heartbeat) -> None:
        report = heartbeat.report
        self._note(self._membership.heard(report, time.monotonic()))
        for hint in report.peers:
            if hint.id not in self._hints:
                self.hint(hint)
        self._step()
        offered = heartbeat.placement
        if offered and offered.fence > self.placement.fence and self._is_of_head(offered):
            self._adopt(offered)
        self.changed.notify()

    def _is_of_head(self, placement: Placement) -> bool:
        return placement.head == self.head and placement.fence.term == self.term

    def _adopt(self, placement: Placement) -> None:
        self.placement = placement
        for ring in placement.rings:
            stages = ", ".join(f"{self._name(stage.node)} {stage.start}-{stage.end - 1}" for stage in ring.stages)
            log.info("placement %d.%d: %s on %s", placement.fence.term, placement.fence.epoch, ring.model, stages)
        for refusal in placement.refused:
            log.warning("placement: %s: %s", refusal.model, refusal.message)
        self.adopted.notify()
        self.touch()

    def _step(self) -> None:
        """Let the state machines see the present."""
        now = time.monotonic()
        self._note(self._membership.heard(self._report(), now) + self._membership.tick(now))
        for effect in self._election.tick(now, self._membership.alive()):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case PersistTerm(term):
                self._save_term(term)
                return
            case BecameHead(term):
                log.info("this node is head of cluster %s, term %d", self.info.cluster, term)
            case Follow(head, term):
                log.info("head is %s, term %d", self._name(head), term)
            case SteppedDown(term, reason):
                log.info("no longer head of term %d: %s", term, reason)
            case HeadLost(head, term):
                log.warning("head %s of term %d is lost", self._name(head), term)
        self.head_due.notify()
        self.changed.notify()
        self._spread.notify()

    def _note(self, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case Joined(node):
                    log.info("%s joined", self._name(node))
                    self._spread.notify()
                case Changed(node, state, reason):
                    log.info("%s is %s%s", self._name(node), state, f": {reason}" if reason else "")
                    if state in (NodeState.FAILED, NodeState.LEFT):
                        self._abandon(node)
                case Forgotten(node):
                    self._hints.pop(node, None)
                case IdTaken(report):
                    log.error("another node, %s, uses this node's id: give it its own --data-dir", report.info.name)
            self.head_due.notify()
            self.changed.notify()

    def _abandon(self, node: str) -> None:
        """Whatever waits for a node that is gone must not wait longer."""
        if hint := self._hints.get(node):
            for address in hint.addresses:
                self._client.drop(_join(address, hint.grpc_port))

    def _name(self, node: str) -> str:
        views = self._membership.view(time.monotonic())
        return next((peer.report.info.name for peer in views if peer.report.info.id == node), node)

    # --- what goes out ------------------------------------------------------------------------------------------------

    def _heartbeat(self, to: str | None) -> Heartbeat:
        theirs = next((report.fence for report in self.alive() if report.info.id == to), None)
        newer = theirs is not None and self.placement.fence > theirs
        return Heartbeat(self._report(), self.placement if newer else None)

    def _report(self) -> NodeReport:
        return replace(
            self._facts(),
            term=self.term,
            head=self.head,
            fence=self.placement.fence,
            links=self._topology.links(time.monotonic()),
            peers=tuple(self._hints[r.info.id] for r in self.alive() if r.info.id in self._hints),
        )

    def _way_to(self, address: str) -> Interface | None:
        if address not in self._ways:
            self._ways[address] = interface_towards(address, self._interfaces)
        return self._ways[address]


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
