"""Loads models for good and unloads them, for users: requested at any gateway, decided by the head, applied by all nodes.

What a user wishes travels with the placement, so the next head has it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from node.cluster.agent import Agent
from node.cluster.head import Head
from node.core.clock import in_step, now
from node.core.errors import ModelBusy, ModelNotFound, NotReady, PippinError
from node.core.models import Wish
from node.core.nodes import Address
from node.members.address_book import AddressBook
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Interval at which idle models are looked for."""
ADOPTED_S = 5.0
"""Time within which a node adopts the placement without the model. It does so at once."""


class Loading:
    def __init__(
        self, agent: Agent, head: Head, book: AddressBook, client: RpcClient, release: Callable[[str], None]
    ) -> None:
        """`release`: frees this node's layers of a model that no ring needs, and names it no longer."""
        self._agent = agent
        self._head = head
        self._book = book
        self._client = client
        self._release = release

    async def run(self, keep_alive_s: float) -> None:
        """While this node is head, unload models that have been idle for so long."""
        while True:
            await asyncio.sleep(in_step(min(LOOK_S, keep_alive_s / 4)))
            for model in self._head.idle(keep_alive_s):
                log.info("%s had no request for %.0f s", model, keep_alive_s)
                with contextlib.suppress(ModelBusy, ModelNotFound, NotReady):  # things changed while nodes were told
                    await self.decide_unload(model)

    async def load(self, model: str, wish: Wish) -> None:
        """At a gateway. Returns when the placement has a ring for the model, which may still be loading.

        Raises what `Head.want` raises; NotReady without a head.
        """
        head = await self._agent.elected()
        if head == self._agent.info.id:
            await self._head.load(model, wish)
        else:
            await self._client.load(self._address_of(head), model, wish)

    async def unload(self, model: str) -> None:
        """At a gateway. Raises what `Head.unload` raises; NotReady without a head."""
        head = await self._agent.elected()
        if head == self._agent.info.id:
            await self.decide_unload(model)
        else:
            await self._client.unload(self._address_of(head), model)

    async def decide_unload(self, model: str) -> None:
        """At the head. A node that can't be told keeps the layers until it needs their memory."""
        self._head.unload(model)
        await asyncio.gather(*(self._tell(report.info.id, model) for report in self._agent.alive()))

    async def _tell(self, node: str, model: str) -> None:
        try:
            if node == self._agent.info.id:
                self._release(model)
            elif address := self._book.address_of(node):
                await self._client.release(address, model)
        except PippinError as error:
            log.warning("node %s was not told to release %s: %s", node, model, error)

    async def apply_release(self, model: str) -> None:
        """At a node: wait until the placement is without the model, as the head's call may be quicker; then free it."""
        deadline = now() + ADOPTED_S
        while any(ring.model == model for ring in self._agent.placement.rings):
            if not await self._agent.adopted.wait(deadline - now()):
                break
        self._release(model)

    def _address_of(self, head: str) -> Address:
        if address := self._book.address_of(head):
            return address
        raise NotReady("This node does not reach the head, which has to decide this.", hint="Try again in a moment.")
