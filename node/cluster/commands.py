"""Commands of users: given to any gateway, decided by the head, applied by the nodes.

They outlive the head: what a user wishes of a model travels with the placement, and a node reports itself that it is
draining. A node that restarts is in use again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from node.cluster.agent import Agent
from node.cluster.allowlist import Allowlist
from node.cluster.head import Head
from node.core.clock import LOOK_S, in_step, now
from node.core.commands import Command, DrainNode, LoadModel, UnloadModel
from node.core.errors import ModelBusy, ModelNotFound, NodeNotFound, NotReady, PeerUnavailable, PippinError
from node.core.node_names import node_named
from node.core.views import NodeState
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

APPLIED_S = 5.0
"""Time within which a node adopts the placement without a model, and reports its new state. It does so at once; a slower
one is about to leave the cluster."""


class Commands:
    def __init__(
        self,
        agent: Agent,
        head: Head,
        client: RpcClient,
        allowlist: Allowlist,
        model_named: Callable[[str], Awaitable[str]],
        free: Callable[[str], None],
    ) -> None:
        """`model_named`: finds a model's id. `free`: frees this node's layers of a model, and names it no longer."""
        self._agent = agent
        self._head = head
        self._client = client
        self._allowlist = allowlist
        self._model_named = model_named
        self._free = free

    async def run(self, command: Command) -> Command:
        """At a gateway. Returns the command, with ids instead of names, once it is decided: a model may still be loading.

        Raises what `decide` raises, ModelNotFound and NodeNotFound for names, NotReady without a head.
        """
        if isinstance(command, DrainNode):
            await self._agent.elected()  # by then the other nodes are known as well
            alive = [peer.report.info for peer in self._agent.view().peers if peer.state is NodeState.ALIVE]
            command = replace(command, node=node_named(command.node, {info.id: info.name for info in alive}))
        else:
            command = replace(command, model=await self._model_named(command.model))
        self._check(command)
        head = await self._agent.elected()
        if head == self._agent.info.id:
            await self.decide(command)
        elif address := self._agent.book.address_of(head):
            await self._client.command(address, command)
        else:
            raise NotReady(
                "This node does not reach the head, which has to decide this.", hint="Try again in a moment."
            )
        return command

    async def decide(self, command: Command) -> None:
        """At the head. Raises what Head.load, Head.unload and Head.check_drain raise, and ModelNotAllowed."""
        self._check(command)
        match command:
            case LoadModel(model, wish):
                await self._head.load(model, wish)
            case UnloadModel(model):
                self._head.unload(model)
                await asyncio.gather(*(self._release_at(report.info.id, model) for report in self._agent.alive()))
            case DrainNode(node, draining):
                await self._drain(node, draining=draining)

    def _check(self, command: Command) -> None:
        if isinstance(command, LoadModel):
            self._allowlist.check(command.model)

    # --- models -------------------------------------------------------------------------------------------------------

    async def unload_idle(self, keep_alive_s: float) -> None:
        """While this node is head, unload models that have been idle for so long."""
        while True:
            await asyncio.sleep(in_step(min(LOOK_S, keep_alive_s / 4)))
            for model in self._head.idle(keep_alive_s):
                log.info("%s had no request for %.0f s", model, keep_alive_s)
                with contextlib.suppress(ModelBusy, ModelNotFound, NotReady):  # things changed while nodes were told
                    await self.decide(UnloadModel(model))

    async def _release_at(self, node: str, model: str) -> None:
        """A node that can't be told keeps the layers until it needs their memory."""
        try:
            if node == self._agent.info.id:
                self._free(model)
            elif address := self._agent.book.address_of(node):
                await self._client.release(address, model)
        except PippinError as error:
            log.warning("node %s was not told to release %s: %s", node, model, error)

    async def release(self, model: str) -> None:
        """At a node: wait until the placement is without the model, as the head's call may be quicker; then free it."""
        deadline = now() + APPLIED_S
        while any(ring.model == model for ring in self._agent.placement.rings):
            if not await self._agent.adopted.wait(deadline - now()):
                break
        self._free(model)

    # --- nodes --------------------------------------------------------------------------------------------------------

    async def _drain(self, node: str, *, draining: bool) -> None:
        """Returns when the node reports its new state, so that the head's next decision takes it into account."""
        self._agent.check_head()
        if draining:
            self._head.check_drain(node)
        if node == self._agent.info.id:
            self.set_draining(node, draining=draining)
        elif address := self._agent.book.address_of(node):
            await self._client.set_draining(address, node, draining=draining)
        try:
            async with asyncio.timeout(APPLIED_S):
                while not any(r.info.id == node and r.draining == draining for r in self._agent.alive()):
                    await self._agent.changed.wait()
        except TimeoutError as error:
            state = "draining" if draining else "in use"
            raise PeerUnavailable(f"Node {node} does not report itself {state} after {APPLIED_S:.0f} s.") from error

    def set_draining(self, node: str, *, draining: bool) -> None:
        """At the node itself. Raises NodeNotFound if it is another one."""
        if node != self._agent.info.id:
            raise NodeNotFound(f"This is {self._agent.info.name}, not node {node!r:.60}.")
        log.info("this node %s", "is draining: nothing new is placed on it" if draining else "is in use again")
        self._agent.set_draining(draining)
