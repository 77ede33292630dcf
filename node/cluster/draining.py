"""Takes a node out of use and back: requested at any gateway, decided by the head, applied by the node itself.

A node reports itself that it is draining, so a new head knows it; a node that restarts is in use again.
"""

import asyncio
import logging

from node.cluster.agent import Agent
from node.cluster.head import Head
from node.core.errors import NodeNotFound, NotReady, PeerUnavailable
from node.core.node_names import node_named
from node.core.views import ClusterView, NodeState
from node.members.address_book import AddressBook
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

REPORTED_S = 5.0
"""Time within which the node must report its new state. It does so at once; a slower one is about to leave the cluster."""


class Draining:
    def __init__(self, agent: Agent, head: Head, book: AddressBook, client: RpcClient) -> None:
        self._agent = agent
        self._head = head
        self._book = book
        self._client = client

    async def request(self, name: str, *, draining: bool) -> str:
        """At a gateway. `name`: see `node_named`. Returns the node's id, once the node reports its new state.

        Raises NodeNotFound; NoCapacity if a model would have no place without the node; NotReady without a head.
        """
        head = await self._agent.elected()
        node = self._find(name)
        if head == self._agent.info.id:
            await self.decide(node, draining=draining)
        elif address := self._book.address_of(head):
            await self._client.request_draining(address, node, draining=draining)
        else:
            raise NotReady(
                "This node does not reach the head, which has to decide this.", hint="Try again in a moment."
            )
        return node

    async def decide(self, node: str, *, draining: bool) -> None:
        """At the head. Raises NotReady, NoCapacity, PeerUnavailable."""
        self._agent.check_head()
        if draining:
            self._head.check_drain(node)
        if node == self._agent.info.id:
            self.apply(node, draining=draining)
        elif address := self._book.address_of(node):
            await self._client.set_draining(address, node, draining=draining)
        await self._wait_until_reported(node, draining=draining)

    def apply(self, node: str, *, draining: bool) -> None:
        """At the node itself. Raises NodeNotFound if it is another one."""
        if node != self._agent.info.id:
            raise NodeNotFound(f"This is {self._agent.info.name}, not node {node!r:.60}.")
        log.info("this node %s", "is draining: nothing new is placed on it" if draining else "is in use again")
        self._agent.set_draining(draining)

    def _find(self, name: str) -> str:
        alive = [peer.report.info for peer in self._agent.view().peers if peer.state is NodeState.ALIVE]
        return node_named(name, {info.id: info.name for info in alive})

    async def _wait_until_reported(self, node: str, *, draining: bool) -> None:
        """So that the head's next decision takes it into account."""
        try:
            async with asyncio.timeout(REPORTED_S):
                while not any(r.info.id == node and r.draining == draining for r in self._agent.alive()):
                    await self._agent.changed.wait()
        except TimeoutError as error:
            state = "draining" if draining else "in use"
            raise PeerUnavailable(f"Node {node} does not report itself {state} after {REPORTED_S:.0f} s.") from error


def is_needed(view: ClusterView) -> bool:
    """Whether the end of this node would interrupt requests that nodes which stay could take over."""
    stay = [p.report for p in view.peers if p.state is NodeState.ALIVE and not p.report.draining]
    busy = {load.ring for peer in view.peers for load in peer.report.traffic if load.running or load.queued}
    rings = [ring for ring in view.placement.rings if view.self_id in ring.nodes]
    return any(ring.id in busy for ring in rings) and any(report.info.id != view.self_id for report in stay)
