"""Answers the control plane's calls from peers."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext

from node.cluster.agent import Agent
from node.cluster.allowlist import Allowlist
from node.cluster.draining import Draining
from node.cluster.head import Head
from node.cluster.loading import Loading
from node.cluster.model_specs import ModelSpecs
from node.core.errors import NotAdmitted
from node.core.followers import Followers
from node.core.logs import RecentLines
from node.core.models import ModelSpec, ModelVersion, Wish
from node.core.nodes import Caller
from node.core.reports import Heartbeat

FOLLOWERS, FOLLOWERS_OF_ONE = 64, 32
"""Maximum calls that follow this node's log, and those of one node: as many as its API lets its clients make."""


class ControlService:
    def __init__(
        self,
        agent: Agent,
        head: Head,
        allowlist: Allowlist,
        specs: ModelSpecs,
        draining: Draining,
        loading: Loading,
        recent: RecentLines,
    ) -> None:
        self._agent = agent
        self._head = head
        self._allowlist = allowlist
        self._specs = specs
        self._draining = draining
        self._loading = loading
        self._recent = recent
        self._followers = Followers(FOLLOWERS, FOLLOWERS_OF_ONE)

    def exchange(self, heartbeat: Heartbeat, caller: Caller) -> Heartbeat:
        return self._agent.exchange(heartbeat, caller)

    def leave(self, node_id: str, incarnation: int) -> None:
        self._agent.left(node_id, incarnation)

    async def want(self, model: str) -> None:
        self._allowlist.check(model)
        await self._head.want(model)

    async def load(self, model: str, wish: Wish) -> None:
        self._allowlist.check(model)
        await self._head.load(model, wish)

    async def unload(self, model: str) -> None:
        await self._loading.decide_unload(model)

    async def release(self, model: str, caller: Caller) -> None:
        self._check_head(caller)
        await self._loading.apply_release(model)

    async def request_draining(self, node: str, *, draining: bool) -> None:
        await self._draining.decide(node, draining=draining)

    def set_draining(self, node: str, caller: Caller, *, draining: bool) -> None:
        self._check_head(caller)
        self._draining.apply(node, draining=draining)

    def _check_head(self, caller: Caller) -> None:
        if caller.node not in ("", self._agent.head):
            raise NotAdmitted(f"Node {caller.node} is not the head of this cluster.")

    async def describe(self, version: ModelVersion) -> ModelSpec:
        return await self._specs.local(version)

    async def log(self, lines: int, caller: Caller, *, follow: bool) -> AsyncGenerator[list[str], None]:
        place = self._followers.place(caller.node or caller.address) if follow else nullcontext()
        async with place, aclosing(self._recent.read(lines, follow=follow)) as parts:
            async for part in parts:
                yield part
