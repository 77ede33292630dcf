"""Answers the control plane's calls from peers."""

from node.control.agent import Agent
from node.control.allowed import Allowed
from node.control.draining import Draining
from node.control.head import Head
from node.control.specs import Specs
from node.core.types import Heartbeat, ModelSpec


class ControlService:
    def __init__(self, agent: Agent, head: Head, allowed: Allowed, specs: Specs, draining: Draining) -> None:
        self._agent = agent
        self._head = head
        self._allowed = allowed
        self._specs = specs
        self._draining = draining

    def exchange(self, heartbeat: Heartbeat) -> Heartbeat:
        return self._agent.exchange(heartbeat)

    def leave(self, node_id: str, incarnation: int) -> None:
        self._agent.left(node_id, incarnation)

    async def want(self, model: str) -> None:
        self._allowed.check(model)
        await self._head.want(model)

    async def drain(self, node: str, *, draining: bool) -> None:
        await self._draining.decide(node, draining=draining)

    def set_draining(self, node: str, *, draining: bool) -> None:
        self._draining.set(node, draining=draining)

    async def describe(self, model: str) -> ModelSpec:
        return await self._specs.local(model)
