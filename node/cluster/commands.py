"""Commands of users: given to any gateway, decided by the head, applied by the nodes.

They outlive the head: what a user wishes of a model travels with the placement, and a node reports itself that it is
draining. A node that restarts is in use again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from node.cluster.agent import Agent
from node.cluster.allowlist import Allowlist
from node.cluster.head import Head
from node.core.clock import in_step, now
from node.core.commands import Command, DrainNode, KeepModel, LoadModel, UnloadModel
from node.core.errors import ModelBusy, ModelNotFound, NodeNotFound, NotReady, PeerUnavailable, PippinError
from node.core.node_names import node_named
from node.core.views import NodeState
from node.rpc.client import CALL_TIMEOUT_S, RpcClient

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Commands:
    agent: Agent
    head: Head
    client: RpcClient
    allowlist: Allowlist
    model_named: Callable[[str], Awaitable[str]]
    """Finds a model's id."""
    free: Callable[[str], None]
    """Frees this node's layers of a model, and names it no longer."""

    async def run(self, command: Command) -> Command:
        """At a gateway. Returns the command, with ids instead of names, once it is decided: a model may still be loading.

        Raises what `decide` raises, ModelNotFound and NodeNotFound for names, NotReady without a head.
        """
        if isinstance(command, DrainNode):
            await self.agent.elected()  # by then the other nodes are known as well
            alive = [peer.report.info for peer in self.agent.view().peers if peer.state is NodeState.ALIVE]
            command = replace(command, node=node_named(command.node, {info.id: info.name for info in alive}))
        else:
            command = replace(command, model=await self.model_named(command.model))
        self._check(command)
        head = await self.agent.elected()
        if head == self.agent.info.id:
            await self.decide(command)
        elif address := self.agent.book.address_of(head):
            await self.client.command(address, command)
        else:
            raise NotReady(
                "This node does not reach the head, which has to decide this.", hint="Try again in a moment."
            )
        return command

    async def decide(self, command: Command) -> None:
        """At the head. Raises what the head's methods raise, and ModelNotAllowed."""
        self._check(command)
        match command:
            case LoadModel(model, wish):
                await self.head.load(model, wish)
            case UnloadModel(model):
                await self.head.answered(model)
                await self._unload(model)
            case KeepModel(model, keep_s):
                self.head.keep(model, keep_s)
            case DrainNode(node, draining):
                await self._drain(node, draining=draining)

    def _check(self, command: Command) -> None:
        if isinstance(command, LoadModel):
            self.allowlist.check(command.model)

    # --- models -------------------------------------------------------------------------------------------------------

    async def unload_idle(self, keep_alive_s: float) -> None:
        """While this node is head, unload models that have been idle for so long, or for as long as a request said."""
        while True:
            await asyncio.sleep(in_step(min(1.0, keep_alive_s / 4)))
            for model in self.head.idle(keep_alive_s):
                log.info("%s has been idle for as long as it may be", model)
                with contextlib.suppress(ModelBusy, ModelNotFound, NotReady):  # things changed while nodes were told
                    await self._unload(model)

    async def _unload(self, model: str) -> None:
        self.head.unload(model)
        await asyncio.gather(*(self._release_at(report.info.id, model) for report in self.agent.alive()))

    async def _release_at(self, node: str, model: str) -> None:
        """A node that can't be told keeps the layers until it needs their memory."""
        try:
            if node == self.agent.info.id:
                self.free(model)
            elif address := self.agent.book.address_of(node):
                await self.client.release(address, model)
        except PippinError as error:
            log.warning("node %s was not told to release %s: %s", node, model, error)

    async def release(self, model: str) -> None:
        """At a node: wait until the placement is without the model, as the head's call may be quicker; then free it."""
        deadline = now() + CALL_TIMEOUT_S
        while any(ring.model == model for ring in self.agent.placement.rings):
            if not await self.agent.adopted.wait(deadline - now()):
                break
        self.free(model)

    # --- nodes --------------------------------------------------------------------------------------------------------

    async def _drain(self, node: str, *, draining: bool) -> None:
        """Returns when the node reports its new state, so that the head's next decision takes it into account."""
        self.agent.check_head()
        if draining:
            self.head.check_drain(node)
        if node == self.agent.info.id:
            self.set_draining(node, draining=draining)
        elif address := self.agent.book.address_of(node):
            await self.client.set_draining(address, node, draining=draining)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                while not any(r.info.id == node and r.draining == draining for r in self.agent.alive()):
                    await self.agent.changed.wait()
        except TimeoutError as error:
            state = "draining" if draining else "in use"
            raise PeerUnavailable(
                f"Node {node} does not report itself {state} after {CALL_TIMEOUT_S:.0f} s."
            ) from error

    def set_draining(self, node: str, *, draining: bool) -> None:
        """At the node itself. Raises NodeNotFound if it is another one."""
        if node != self.agent.info.id:
            raise NodeNotFound(f"This is {self.agent.info.name}, not node {node!r:.60}.")
        log.info("this node %s", "is draining: nothing new is placed on it" if draining else "is in use again")
        self.agent.set_draining(draining)
