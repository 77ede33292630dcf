"""Answers the control plane's calls from peers."""

from node.cluster.agent import Agent
from node.cluster.allowlist import Allowlist
from node.cluster.draining import Draining
from node.cluster.duplicate_id import DuplicateId
from node.cluster.head import Head
from node.cluster.model_specs import ModelSpecs
from node.core.errors import NotAdmitted
from node.core.models import ModelSpec
from node.core.types import Caller, Heartbeat, NodeInfo


class ControlService:
    def __init__(
        self,
        agent: Agent,
        head: Head,
        allowlist: Allowlist,
        specs: ModelSpecs,
        draining: Draining,
        duplicate_id: DuplicateId,
    ) -> None:
        self._agent = agent
        self._head = head
        self._allowlist = allowlist
        self._specs = specs
        self._draining = draining
        self._duplicate_id = duplicate_id

    def exchange(self, heartbeat: Heartbeat, caller: Caller) -> Heartbeat:
        return self._agent.exchange(heartbeat, caller)

    def leave(self, node_id: str, incarnation: int) -> None:
        self._agent.left(node_id, incarnation)

    def prove(self, nonce: bytes) -> tuple[NodeInfo, bytes]:
        return self._duplicate_id.prove(nonce)

    async def want(self, model: str) -> None:
        self._allowlist.check(model)
        await self._head.want(model)

    async def request_draining(self, node: str, *, draining: bool) -> None:
        await self._draining.decide(node, draining=draining)

    def set_draining(self, node: str, caller: Caller, *, draining: bool) -> None:
        if caller.node not in ("", self._agent.head):
            raise NotAdmitted(f"Node {caller.node} is not the head of this cluster.")
        self._draining.apply(node, draining=draining)

    async def describe(self, model: str, revision: str, kv_bits: int) -> ModelSpec:
        return await self._specs.local(model, revision, kv_bits)
