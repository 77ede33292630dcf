"""Exchanges heartbeats with every node of the address book, every 0.6 s and at once with news, and watches its connection.

`node/members/membership.py` decides what silence means.
"""

import asyncio
import logging
from collections.abc import Sequence

from node.cluster.agent import Agent
from node.cluster.exchange import Exchange
from node.cluster.probes import Probes
from node.cluster.seeking import Seeking
from node.core.clock import in_step, in_step_before, now
from node.core.retried import Retried
from node.core.views import NodeState
from node.members.membership import ANSWER_S, GONE_S
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.6
"""Silence of a node after which it is called, by the one of the two with the smaller id."""
PATIENCE = 1.75
"""The other one calls if that is late by this factor: by more than delays vary over Wi-Fi, so that not both do."""
UNHEARD_AT_ONCE = 16
UNHEARD_AGAIN_S = 8.0
"""So many nodes that were never heard are tried in this time, besides those that answer: adverts may be invented."""


class Heartbeats:
    def __init__(self, agent: Agent, client: RpcClient) -> None:
        self._agent = agent
        self._book = agent.book
        self._client = client
        self._probes = Probes(agent, client)
        self.seeking = Seeking(agent, client)
        self._unheard = asyncio.Semaphore(UNHEARD_AT_ONCE)
        """Attempts to reach nodes that were never heard. Each is held for UNHEARD_AGAIN_S, or until the node is heard."""
        self._lost: set[str] = set()
        """Nodes whose connection broke since they were called last."""

    async def run(self, peers: Sequence[tuple[str, int]]) -> None:
        """`peers`: host and port of nodes to contact without discovery."""
        async with asyncio.TaskGroup() as group:
            for host, port in peers:
                group.create_task(self.seeking.run(host, port), name=f"seek {host}")
            while True:
                for node, entry in self._book.entries.items():
                    if entry.task is None:
                        entry.task = group.create_task(self._contact(node), name=f"contact {node}")
                await self._book.added.wait()

    async def leave(self) -> None:
        """Say goodbye to all nodes, so that none has to wait for this one to fail. A head stops deciding."""
        self._agent.leaving = True
        info = self._agent.info
        calls = [self._client.leave(peer, info.id, info.incarnation, ANSWER_S) for peer in self._agent.others()]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException):
                log.debug("goodbye: %s", answer)

    async def _contact(self, node: str) -> None:
        """Keep in touch with a node. One task, so that `AddressBook.forget` ends all of it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._exchange_all(node, group), name=f"heartbeat {node}")
            group.create_task(self._probes.run(node), name=f"probe {node}")
            group.create_task(self._notice_loss(node), name=f"watch {node}")

    async def _exchange_all(self, node: str, group: asyncio.TaskGroup) -> None:
        """Exchange heartbeats as long as the node is in the address book."""
        agent, tried = self._agent, Retried(f"The exchange with node {node} failed")
        state_of = agent.membership.state_of
        while hint := self._book.hint_of(node):
            unheard = state_of(node) is None
            if unheard:
                await self._unheard.acquire()
                held = asyncio.get_running_loop().call_later(UNHEARD_AGAIN_S, self._unheard.release)
            news = agent.news.count
            self._lost.discard(node)
            if not unheard or state_of(node) is None:  # else it called meanwhile
                await Exchange(hint, agent, self._client, tried).run(group)
            state = state_of(node)
            if unheard and state is not None and held.when() > now():
                held.cancel()
                self._unheard.release()
            if state is NodeState.SUSPECT:
                await asyncio.sleep(0.1)  # it has to be cleared or replaced soon
            elif state in (NodeState.ALIVE, None):
                if state is None and len(self._book.entries) > UNHEARD_AT_ONCE:
                    self._book.disconnect(node)  # many connections to nowhere take much memory
                await self._until_due(node, news)
            else:
                end = now() + GONE_S
                while (left := end - now()) > 0 and state_of(node) is not NodeState.ALIVE:  # it may call this one
                    await agent.news.wait(left)
                if state_of(node) is NodeState.ALIVE:  # it called; gRPC waits before it tries the port again
                    self._book.reconnect(node)

    async def _until_due(self, node: str, told: int) -> None:
        """Wait until a node is due: by its silence, a broken connection, or news after number `told` that it lacks."""
        agent, again_at = self._agent, now() + HEARTBEAT_S
        interval_s = HEARTBEAT_S * (1 if agent.info.id < node else PATIENCE)
        answered = agent.membership.silent_s(node, now()) < interval_s
        while True:
            lacks_news = agent.states.lacks_news(node)
            if node in self._lost or (lacks_news and told != agent.news.count):
                return
            told = agent.news.count
            left = interval_s - agent.membership.silent_s(node, now()) if answered else again_at - now()
            left = in_step_before(min(left, again_at - now()) if lacks_news else left)
            if left <= 0:
                return
            await agent.news.wait(left)

    async def _notice_loss(self, node: str) -> None:
        """Send a heartbeat at once when the connection is lost: a process that dies takes its connections with it."""
        watched = Retried(f"The connection to node {node} could not be watched")
        while peer := self._book.address_of(node):
            if self._agent.membership.state_of(node) is NodeState.ALIVE:
                with watched:
                    await self._client.disconnected(peer)
                    self._lost.add(node)
                    self._agent.news.notify()
            await asyncio.sleep(in_step(HEARTBEAT_S))  # it may come back at another port
