"""Exchanges heartbeats with every node of the address book, every 0.6 s and at once with news, and watches its connection.

`node/members/membership.py` decides what silence means.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from node.cluster.agent import Agent
from node.cluster.probes import Probes
from node.cluster.turns import Turns
from node.core.addresses import is_local_address, join_host_port
from node.core.clock import in_step, in_step_before, now
from node.core.errors import NotAdmitted, PeerTimeout, PeerUnavailable, PippinError, SecretMismatch
from node.core.nodes import Address, Memory, NodeInfo, PeerHint
from node.core.reports import Heartbeat, NodeReport
from node.core.retried import Retried
from node.core.views import NodeState, PeerView
from node.host.interfaces import with_zone_name
from node.members.address_book import AddressBook, address_at
from node.members.happy_eyeballs import happy_eyeballs
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.6
"""Silence of a node after which it is called, by the one of the two with the smaller id."""
PATIENCE = 1.75
"""The other one calls if that is late by this factor: by more than delays vary over Wi-Fi, so that not both do."""
EXCHANGE_TIMEOUT_S = 1.0
SUSPECT_HEARTBEAT_S = 0.1
"""Interval for a suspect node, which has to be cleared or replaced soon."""
GONE_INTERVAL_S = 2.0
"""Interval for a node that is gone: it may come back at its old address without an advert."""
UNHEARD_AT_ONCE = 16
UNHEARD_INTERVAL_S = 0.5
"""Of the nodes that were never heard and do not answer, so many are tried at once, then one per interval. This limits the
cost of adverts of nodes that do not exist.
"""


class Heartbeats:
    def __init__(self, agent: Agent, book: AddressBook, client: RpcClient) -> None:
        self._agent = agent
        self._book = book
        self._client = client
        self._probes = Probes(agent, book, client)
        self._turns = Turns(UNHEARD_AT_ONCE, UNHEARD_INTERVAL_S)
        """Of attempts to reach nodes that were never heard."""
        self._refused: dict[str, PeerView] = {}
        """Of the user's `peers`, those with another secret, by address."""
        self._lost: set[str] = set()
        """Nodes whose connection broke since they were called last."""

    async def run(self, peers: Sequence[tuple[str, int]]) -> None:
        """`peers`: host and port of nodes to contact without discovery."""
        async with asyncio.TaskGroup() as group:
            for host, port in peers:
                group.create_task(self._seek(host, port), name=f"seek {host}")
            while True:
                for node, entry in self._book.entries.items():
                    if entry.task is None:
                        entry.task = group.create_task(self._contact(node), name=f"contact {node}")
                await self._book.added.wait()

    async def leave(self) -> None:
        """Say goodbye to all nodes, so that none has to wait for this one to fail. A head stops deciding."""
        self._agent.leaving = True
        info = self._agent.info
        nodes = [report.info.id for report in self._agent.alive()]
        addresses = [address for node in nodes if (address := self._book.address_of(node))]
        calls = [self._client.leave(peer, info.id, info.incarnation, EXCHANGE_TIMEOUT_S) for peer in addresses]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException):
                log.debug("goodbye: %s", answer)

    async def _contact(self, node: str) -> None:
        """Keep in touch with a node. One task, so that `AddressBook.forget` ends all of it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._exchange_all(node, group), name=f"heartbeat {node}")
            group.create_task(self._probes.run(node), name=f"probe {node}")
            group.create_task(self._notice_loss(node), name=f"watch {node}")

    # --- nodes given by the user --------------------------------------------------------------------------------------

    async def _seek(self, host: str, port: int) -> None:
        """Find the node at an address that the user gave, and add it to the address book.

        Its answer counts as a hint only: any member may be there and pose as another node. A heartbeat counts once it is
        exchanged with a node that proves its id.
        """
        told: set[str] = set()
        found = ""
        while True:
            if not found or self._agent.state_of(found) is not NodeState.ALIVE:
                try:
                    address, answer = await self._call_any(host, port)
                except PippinError as error:
                    self._note_refusal(host, port, error)
                    level = logging.DEBUG if str(error) in told else logging.WARNING
                    log.log(level, "--peer %s: %s", join_host_port(host, port), error)
                    told.add(str(error))
                else:
                    told.clear()
                    self._refused.pop(join_host_port(host, port), None)
                    info = answer.report.info if answer.report else None
                    if info and info.cluster == self._agent.info.cluster and info.id not in self._book.entries:
                        self._book.add(PeerHint(info.id, info.addresses, port), reached=address)
                    found = answer.sender
            await asyncio.sleep(in_step(GONE_INTERVAL_S))

    def _note_refusal(self, host: str, port: int, error: PippinError) -> None:
        where = join_host_port(host, port)
        self._refused.pop(where, None)
        if isinstance(error, SecretMismatch):
            info = NodeInfo(where, 0, where, self._agent.info.cluster, "", 0, (host,), port, 0)
            report = NodeReport(info, Memory(0, 0))
            self._refused[where] = PeerView(report, NodeState.REFUSED, reason="it does not have this node's secret")

    @property
    def refused(self) -> tuple[PeerView, ...]:
        """The user's `peers` that have another secret. Nothing else is known of them, so their address is their name."""
        return tuple(self._refused.values())

    async def _call_any(self, host: str, port: int) -> tuple[str, Heartbeat]:
        """The first of a host's addresses that answers, and its answer. Raises the last one's error, or NotAdmitted."""
        failure: PippinError = PeerUnavailable(f"{host} has no address.")
        for address in await _addresses_of(host):
            try:
                if not self._book.anywhere and not is_local_address(address):
                    raise NotAdmitted(
                        f"Without a secret, only private and link-local addresses are called, not {address}.",
                        hint="Start all nodes with one --secret-file.",
                    )
                peer = Address(join_host_port(address, port))
                return address, await self._client.exchange(peer, self._agent.heartbeat_for(None), EXCHANGE_TIMEOUT_S)
            except PippinError as error:
                failure = error
        raise failure

    # --- heartbeats ---------------------------------------------------------------------------------------------------

    async def _exchange_all(self, node: str, group: asyncio.TaskGroup) -> None:
        """Exchange heartbeats as long as the node is in the address book."""
        agent, tried = self._agent, Retried(f"The exchange with node {node} failed")
        while hint := self._book.hint_of(node):
            unheard = agent.state_of(node) is None
            if unheard:
                await self._turns.take()
            news = agent.news.count
            self._lost.discard(node)
            if not unheard or agent.state_of(node) is None:  # else it called meanwhile
                await _Exchange(hint, agent, self._book, self._client, tried).run(group)
            state = agent.state_of(node)
            if unheard and state is not None:
                self._turns.give_back()
            if state is NodeState.SUSPECT:
                await asyncio.sleep(SUSPECT_HEARTBEAT_S)
            elif state in (NodeState.ALIVE, None):
                if state is None and len(self._book.entries) > UNHEARD_AT_ONCE:
                    self._book.disconnect(node)  # many connections to nowhere take much memory
                await self._until_due(node, news)
            else:
                await self._until_back(node)

    async def _until_due(self, node: str, told: int) -> None:
        """Wait until a node is due: by its silence, a broken connection, or news after number `told` that it has not heard by a
        call of its own.
        """
        agent, again_at = self._agent, now() + HEARTBEAT_S
        interval_s = HEARTBEAT_S * (1 if agent.info.id < node else PATIENCE)
        answered = agent.silent_s(node) < interval_s
        while True:
            lacks_news = agent.lacks_news(node)
            if node in self._lost or (lacks_news and told != agent.news.count):
                return
            told = agent.news.count
            left = interval_s - agent.silent_s(node) if answered else again_at - now()
            left = in_step_before(min(left, again_at - now()) if lacks_news else left)
            if left <= 0:
                return
            await agent.news.wait(left)

    async def _until_back(self, node: str) -> None:
        """Wait GONE_INTERVAL_S, or until the node calls this one."""
        end = now() + GONE_INTERVAL_S
        while (left := end - now()) > 0 and self._agent.state_of(node) is not NodeState.ALIVE:
            await self._agent.news.wait(left)

    async def _notice_loss(self, node: str) -> None:
        """Send a heartbeat at once when the connection is lost: a process that dies takes its connections with it."""
        watched = Retried(f"The connection to node {node} could not be watched")
        while peer := self._book.address_of(node):
            if self._agent.state_of(node) is NodeState.ALIVE:
                with watched:
                    await self._client.disconnected(peer)
                    self._lost.add(node)
                    self._agent.news.notify()
            await asyncio.sleep(in_step(HEARTBEAT_S))  # it may come back at another port


@dataclass(slots=True)
class _Exchange:
    """One exchange of heartbeats with a node, over the best path or, if that is slow or lost, over any that works."""

    hint: PeerHint
    agent: Agent
    book: AddressBook
    client: RpcClient
    tried: Retried
    """Shared by all exchanges with the node."""
    answered: bool = False
    refused: bool = False
    """Whether some address did more than stay silent."""

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Try all addresses within the time after which silence means failure. `group` outlives the exchange."""
        best = self.book.paths.best(self.hint.id, now())
        addresses = dict.fromkeys((*([best.address] if best else []), *self.hint.addresses))
        if await happy_eyeballs([partial(self._call, address) for address in addresses], group):
            return
        if self.refused:  # mere slowness is measured by membership
            asked_at = now()
            # Only where the node did answer: elsewhere another machine may have its address.
            gone = best is not None and await self.client.refuses(address_at(self.hint, best.address))
            self.agent.unreachable(self.hint.id, asked_at if gone else None)

    async def _call(self, address: str) -> bool:
        """Whether the node answered there."""
        node, peer = self.hint.id, address_at(self.hint, address)
        with self.tried:
            try:
                if not await self._talk(peer):
                    return False
            except PippinError as error:
                log.debug("heartbeat to %s: %s", peer, error)
                self.refused |= not isinstance(error, PeerTimeout)
                if self.book.paths.failed(node, address) and self.answered:
                    self.client.drop(peer)  # so that what waits there, such as a ring's frames, takes a path that works
                return False
            return True
        return False

    async def _talk(self, peer: Address) -> bool:
        """Whether the node is the one that answers. Asked again if one of the two lacked the other's state, or if a call of the
        node crossed this one, so that the state in the answer may be older than the one in that call.
        """
        for left in (2, 1, 0):
            sent = self.agent.heartbeat_for(self.hint.id)
            answer = await self.client.exchange(peer, sent, EXCHANGE_TIMEOUT_S)
            if answer.sender != self.hint.id:
                return False
            self.answered = True
            if left and answer.report and self.agent.holds(self.hint.id) != sent.held:
                continue
            try:
                lacking = self.agent.heard(answer)
            except PippinError as error:
                log.warning("heartbeat: %s", error)
                break
            if not lacking and (sent.report or answer.held == sent.digest):
                break
        return True


async def _addresses_of(host: str) -> list[str]:
    """Resolve a name; an address is returned as it is. Raises PeerUnavailable."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: the name is not valid in DNS
        raise PeerUnavailable(f"{host} has no address: {error}.") from error
    return list(dict.fromkeys(_host_of(address) for *_, address in found))


def _host_of(address: Any) -> str:
    """Host of a socket's address: (host, port), or for IPv6 (host, port, flow, number of the zone)."""
    zone = address[3] if len(address) > 2 else 0
    return with_zone_name(f"{address[0]}%{zone}") if zone else str(address[0])
