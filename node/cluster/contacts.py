"""Keeps in touch with every node that was ever hinted at: measures the ways to it and exchanges heartbeats."""

import asyncio
import ipaddress
import logging
import math
import socket
from collections.abc import Sequence
from dataclasses import replace

from node.cluster.beat import EXCHANGE_TIMEOUT_S, Beat, Talk, at
from node.cluster.topology import Topology
from node.core.addresses import is_near, join_host_port
from node.core.clock import now
from node.core.errors import NotAdmitted, PeerUnavailable, PippinError
from node.core.retried import Retried
from node.core.signal import Signal
from node.core.types import MOST_ADDRESSES, MOST_NODES, Address, Caller, Heartbeat, Link, NodeState, PeerHint
from node.host.interfaces import Interface, interface_towards
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
"""And at once when there is news; see node/cluster/membership.py for what becomes of silence."""
SUSPECT_HEARTBEAT_S = 0.1
"""A node that is suspected is asked more often: it is to be cleared or replaced soon."""
PROBE_S = 5.0
"""How often each of a node's addresses is measured: a plugged or pulled cable is noticed within two rounds."""
GONE_INTERVAL_S = 2.0
"""How often a node that is gone is tried: it may come back at its old address without an advert."""
UNHEARD_AT_ONCE = 16
UNHEARD_INTERVAL_S = 0.5
"""Of the nodes that were never heard so many are tried at once, and then one in each interval: adverts of nodes that do not
exist cost so much and no more."""
MOST_NAMESAKES = 16
"""That wait to be looked at; they are told again and again."""


class Contacts:
    def __init__(
        self, self_id: str, cluster: str, client: RpcClient, interfaces: Sequence[Interface], *, anywhere: bool
    ) -> None:
        """`anywhere`: nodes prove who they are, so any address may be called; else only those of one's own network."""
        self._self_id = self_id
        self._cluster = cluster
        self._client = client
        self._interfaces = interfaces
        self._anywhere = anywhere
        self._hints: dict[str, PeerHint] = {}
        self._kept: dict[str, asyncio.Task[None]] = {}
        """What keeps in touch with each node that is hinted at, until it is forgotten."""
        self._told: set[PeerHint] = set()
        """Adverts that the log has told of."""
        self._callers: dict[str, str] = {}
        """The address from which each node that is hinted at called last."""
        self.namesakes: asyncio.Queue[PeerHint] = asyncio.Queue(MOST_NAMESAKES)
        """Hints of this node's own id: itself, as a rule."""
        self._line = asyncio.Lock()
        """Held by the one of the nodes that were never heard that is tried next; the others wait in their order."""
        self._turn_at = -math.inf
        """When it was the last one's turn."""
        self._topology = Topology()
        self._hinted = Signal()
        self._urgent = Signal()
        self._news = 0

    # --- where nodes are ----------------------------------------------------------------------------------------------

    def hint(self, hint: PeerHint) -> None:
        """A node may be found there; replaces what was known of it, but for the way that works.

        Loopback counts only where this node is on it, too: a machine whose cable is pulled advertises nothing else.
        """
        addresses = list(filter(self._may_call, hint.addresses))
        known = self._hints.get(hint.id)
        if known and known.grpc_port == hint.grpc_port and (way := self._topology.best(hint.id, now())):
            addresses.insert(0, way.address)
        self._learn(replace(hint, addresses=tuple(dict.fromkeys(addresses))))

    def advert(self, hint: PeerHint) -> None:
        """The same by word of mDNS, where anybody can say anything: it never takes away a way that works."""
        known = self._hints.get(hint.id)
        if known and known.grpc_port != hint.grpc_port and self._topology.best(hint.id, now()):
            return
        if not self._anywhere and hint.id != self._self_id and not any(map(is_near, hint.addresses)):
            self._pass_over(hint)
        self.hint(hint)

    def _pass_over(self, hint: PeerHint) -> None:
        """An advert is heard again and again."""
        if hint in self._told or len(self._told) >= MOST_NODES:
            return
        self._told.add(hint)
        where = ", ".join(hint.addresses)
        log.warning("a node at %s is not called: without --secret-file, only private addresses are", where)

    def _may_call(self, address: str) -> bool:
        try:
            loopback = ipaddress.ip_address(address).is_loopback
        except ValueError:
            return False  # a name may lead anywhere
        if loopback and not any(interface.kind == "loopback" for interface in self._interfaces):
            return False
        return self._anywhere or is_near(address)

    def _learn(self, hint: PeerHint) -> None:
        hint = replace(hint, addresses=hint.addresses[:MOST_ADDRESSES])
        if not hint.addresses or self._hints.get(hint.id) == hint:
            return
        if hint.id == self._self_id:
            if not self.namesakes.full():
                self.namesakes.put_nowait(hint)
            return
        if hint.id not in self._hints and len(self._hints) >= MOST_NODES:
            present = now()
            silent = next((node for node in self._hints if not self._topology.best(node, present)), None)
            if silent is None:
                return
            self.forget(silent)
        known = self._hints.get(hint.id)
        if known and known.grpc_port != hint.grpc_port:
            self.hang_up(hint.id)  # a new process listens there: those to the old one lead nowhere
        elif known:
            for address in set(known.addresses) - set(hint.addresses):
                self._client.drop_control(at(known, address))
        self._hints[hint.id] = hint
        self._hinted.notify()

    def knows(self, hint: PeerHint) -> bool:
        """Whether the node is known, at that port and all of these addresses."""
        known = self._hints.get(hint.id)
        told = set(filter(self._may_call, hint.addresses))
        return known is not None and known.grpc_port == hint.grpc_port and told <= set(known.addresses)

    def forget(self, node: str) -> None:
        self.hang_up(node)
        self._hints.pop(node, None)
        self._callers.pop(node, None)
        self._topology.forget(node)
        if task := self._kept.pop(node, None):
            task.cancel()

    def hint_of(self, node: str) -> PeerHint | None:
        return self._hints.get(node)

    def address_of(self, node: str) -> Address | None:
        """The best one of a node's gRPC server."""
        hint = self._hints.get(node)
        if hint is None:
            return None
        link = self._topology.best(node, now())
        return at(hint, link.address if link else hint.addresses[0])

    def called(self, node: str, address: str) -> None:
        """A node told its state from that address."""
        if node in self._hints:
            self._callers[node] = address

    def is_from(self, node: str, caller: Caller) -> bool:
        """Whether a call is a node's: by its certificate, or, without a secret, by where it comes from."""
        if caller.node:
            return caller.node == node
        hint = self._hints.get(node)
        return hint is not None and caller.address in (*hint.addresses, self._callers.get(node))

    def links(self) -> tuple[Link, ...]:
        return self._topology.links(now())

    def readdress(self, interfaces: Sequence[Interface]) -> None:
        """This machine's interfaces changed."""
        self._interfaces = interfaces

    def hang_up(self, node: str) -> None:
        """Whatever waits for a node that is gone must not wait longer."""
        if hint := self._hints.get(node):
            for address in hint.addresses:
                self._client.drop(at(hint, address))

    # --- keeping in touch ---------------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """There is news: tell everybody now."""
        self._news += 1
        self._urgent.notify()

    async def run(self, talk: Talk, peers: Sequence[tuple[str, int]]) -> None:
        """`peers`: host and port of nodes to contact without discovery."""
        async with asyncio.TaskGroup() as group:
            for host, port in peers:
                group.create_task(self._seek(host, port, talk), name=f"seek {host}")
            while True:
                for node in self._hints.keys() - self._kept.keys():
                    self._kept[node] = group.create_task(self._contact(node, talk), name=f"contact {node}")
                await self._hinted.wait()

    async def _contact(self, node: str, talk: Talk) -> None:
        """Ended as one, by `forget`: a node that is hinted at again gets all of it anew, and none of it twice."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(node, talk, group), name=f"beat {node}")
            group.create_task(self._measure_all(node, talk), name=f"probe {node}")
            group.create_task(self._notice_loss(node, talk), name=f"watch {node}")

    async def _seek(self, host: str, port: int, talk: Talk) -> None:
        """Find out who is at an address that the user gave; contact is kept by its id from then on.

        What is said there is a hint only, as any member may be there and pose as any node: heard is who proves its id.
        """
        told: set[str] = set()
        while True:
            try:
                address, answer = await self._call_any(host, port, talk)
            except PippinError as error:
                log.log(
                    logging.DEBUG if str(error) in told else logging.WARNING,
                    "--peer %s: %s",
                    join_host_port(host, port),
                    error,
                )
                told.add(str(error))
            else:
                told.clear()
                info = answer.report.info
                if info.cluster == self._cluster and info.id not in self._hints:
                    others = filter(self._may_call, info.addresses)
                    self._learn(PeerHint(info.id, tuple(dict.fromkeys((address, *others))), port))
            await asyncio.sleep(GONE_INTERVAL_S)

    async def _call_any(self, host: str, port: int, talk: Talk) -> tuple[str, Heartbeat]:
        """The first of a host's addresses that answers. Raises what the last one gave, or NotAdmitted."""
        failure: PippinError = PeerUnavailable(f"{host} has no address.")
        for address in await _addresses_of(host):
            try:
                if not self._anywhere and not is_near(address):
                    raise NotAdmitted(
                        f"Without a secret, only private and link-local addresses are called, not {address}.",
                        hint="Start all nodes with one --secret-file.",
                    )
                peer = Address(join_host_port(address, port))
                return address, await self._client.exchange(peer, talk.heartbeat_for(None), EXCHANGE_TIMEOUT_S)
            except PippinError as error:
                failure = error
        raise failure

    async def _keep(self, node: str, talk: Talk, group: asyncio.TaskGroup) -> None:
        """Exchange heartbeats for as long as the node is remembered."""
        tried = Retried(f"The exchange with node {node} failed")
        while hint := self._hints.get(node):
            if talk.state_of(node) is None:
                await self._turn()
            told = self._news
            await Beat(hint, self._client, self._topology, talk, tried).run(group)
            state = talk.state_of(node)
            if state is NodeState.SUSPECT:
                await asyncio.sleep(SUSPECT_HEARTBEAT_S)
            elif state in (NodeState.ALIVE, None):
                if state is None and len(self._hints) > UNHEARD_AT_ONCE:
                    self.hang_up(node)  # many connections to nowhere take much memory
                if told == self._news:  # what came up during the exchange is not to wait for the next
                    await self._urgent.wait(HEARTBEAT_S)
            else:
                await self._until_back(node, talk)

    async def _turn(self) -> None:
        """Returns when another one of the nodes that were never heard may be tried."""
        async with self._line:
            earliest = now() - (UNHEARD_AT_ONCE - 1) * UNHEARD_INTERVAL_S
            self._turn_at = max(self._turn_at + UNHEARD_INTERVAL_S, earliest)
            await asyncio.sleep(self._turn_at - now())

    async def _until_back(self, node: str, talk: Talk) -> None:
        """A while, but not longer than until the node called us."""
        end = now() + GONE_INTERVAL_S
        while (left := end - now()) > 0 and talk.state_of(node) is not NodeState.ALIVE:
            await self._urgent.wait(left)

    async def _notice_loss(self, node: str, talk: Talk) -> None:
        """Ask at once when the connection is lost: a process that dies takes its connections with it."""
        watched = Retried(f"The connection to node {node} could not be watched")
        while peer := self.address_of(node):
            if talk.state_of(node) is NodeState.ALIVE:
                with watched:
                    await self._client.disconnected(peer)
                    self.hurry()
            await asyncio.sleep(HEARTBEAT_S)  # it may come back at another port

    async def _measure_all(self, node: str, talk: Talk) -> None:
        """Beside the heartbeats, which an address that does not answer must not delay."""
        probes = Retried(f"The measurement of the ways to node {node} failed")
        while talk.state_of(node) is None:
            await self._urgent.wait(HEARTBEAT_S)
        while hint := self._hints.get(node):
            with probes:
                await asyncio.gather(*(self._measure(hint, address) for address in hint.addresses))
            await asyncio.sleep(PROBE_S)

    async def _measure(self, hint: PeerHint, address: str) -> None:
        peer = at(hint, address)
        try:
            # The least of three: the way's length, not what this machine happened to do meanwhile.
            rtt_ms = min([await self._client.probe(peer, EXCHANGE_TIMEOUT_S) for _ in range(3)])
        except PippinError as error:
            log.debug("probe of %s: %s", peer, error)
            self._topology.failed(hint.id, address)
        else:
            way = interface_towards(address, self._interfaces)
            name, kind = (way.name, way.kind) if way else ("", "")
            self._topology.observe(hint.id, address, rtt_ms, now(), interface=name, kind=kind)

    async def say_goodbye(self, nodes: Sequence[str], incarnation: int) -> None:
        addresses = [address for node in nodes if (address := self.address_of(node))]
        calls = [self._client.leave(peer, self._self_id, incarnation, EXCHANGE_TIMEOUT_S) for peer in addresses]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException):
                log.debug("goodbye: %s", answer)


async def _addresses_of(host: str) -> list[str]:
    """Of a name, or the address itself. Raises PeerUnavailable."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter of a name that is none of DNS
        raise PeerUnavailable(f"{host} has no address: {error}.") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
