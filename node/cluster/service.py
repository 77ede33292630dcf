"""Answers the control plane's calls from peers."""

from node.cluster.agent import Agent
from node.cluster.allowed import Allowed
from node.cluster.doubles import Doubles
from node.cluster.draining import Draining
from node.cluster.head import Head
from node.cluster.specs import Specs
from node.core.errors import NotAdmitted
from node.core.types import Caller, Heartbeat, ModelSpec, NodeInfo


class ControlService:
    def __init__(
        self, agent: Agent, head: Head, allowed: Allowed, specs: Specs, draining: Draining, doubles: Doubles
    ) -> None:
        self._agent = agent
        self._head = head
        self._allowed = allowed
        self._specs = specs
        self._draining = draining
        self._doubles = doubles

    def exchange(self, heartbeat: Heartbeat, caller: Caller) -> Heartbeat:
        return self._agent.exchange(heartbeat, caller)

    def leave(self, node_id: str, incarnation: int) -> None:
        self._agent.left(node_id, incarnation)

    def prove(self, nonce: bytes) -> tuple[NodeInfo, bytes]:
        return self._doubles.prove(nonce)

    async def want(self, model: str) -> None:
        self._allowed.check(model)
        await self._head.want(model)

    async def drain(self, node: str, *, draining: bool) -> None:
        await self._draining.decide(node, draining=draining)

    def set_draining(self, node: str, caller: Caller, *, draining: bool) -> None:
        if caller.node not in ("", self._agent.head):
            raise NotAdmitted(f"Node {caller.node} is not the head of this cluster.")
        self._draining.set(node, draining=draining)

    async def describe(self, model: str, revision: str) -> ModelSpec:
        return await self._specs.local(model, revision)
