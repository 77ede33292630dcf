"""Answers the control plane's calls from peers."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field

from node.cluster.agent import Agent
from node.cluster.allowlist import Allowlist
from node.cluster.commands import Commands
from node.cluster.head import Head
from node.cluster.model_specs import ModelSpecs
from node.core.commands import Command
from node.core.errors import NotAdmitted
from node.core.followers import Followers
from node.core.logs import RecentLines
from node.core.models import ModelSpec, ModelVersion
from node.core.nodes import Caller
from node.core.reports import Heartbeat
from node.core.response_ids import Ask

FOLLOWERS, FOLLOWERS_OF_ONE = 64, 32
"""Maximum calls that follow this node's log, and those of one node: as many as its API lets its clients make."""


READERS, READERS_OF_ONE = 512, 256
"""Maximum calls that follow the events of responses, and those of one node."""


@dataclass(slots=True)
class ControlService:
    _agent: Agent
    _head: Head
    _allowlist: Allowlist
    _specs: ModelSpecs
    _commands: Commands
    _recent: RecentLines
    _kept_response: Callable[[Ask, str], Awaitable[bytes]]
    """See ControlHandler.response."""
    _kept_events: Callable[[str, int], AsyncGenerator[bytes, None]]
    """See ControlHandler.events."""
    _followers: Followers = field(default_factory=lambda: Followers(FOLLOWERS, FOLLOWERS_OF_ONE))
    _readers: Followers = field(default_factory=lambda: Followers(READERS, READERS_OF_ONE))

    def exchange(self, heartbeat: Heartbeat, caller: Caller) -> Heartbeat:
        return self._agent.exchange(heartbeat, caller)

    def leave(self, node_id: str, incarnation: int) -> None:
        self._agent.left(node_id, incarnation)

    async def want(self, model: str) -> None:
        self._allowlist.check(model)
        await self._head.want(model)

    async def command(self, command: Command) -> None:
        await self._commands.decide(command)

    async def release(self, model: str, caller: Caller) -> None:
        self._check_head(caller)
        await self._commands.release(model)

    def set_draining(self, node: str, caller: Caller, *, draining: bool) -> None:
        self._check_head(caller)
        self._commands.set_draining(node, draining=draining)

    def _check_head(self, caller: Caller) -> None:
        if caller.node not in ("", self._agent.head):
            raise NotAdmitted(f"Node {caller.node} is not the head of this cluster.")

    async def describe(self, version: ModelVersion) -> ModelSpec:
        return await self._specs.local(version)

    async def response(self, ask: Ask, response_id: str) -> bytes:
        return await self._kept_response(ask, response_id)

    async def events(self, response_id: str, first: int, caller: Caller) -> AsyncGenerator[bytes, None]:
        place = self._readers.place(caller.name)
        async with place, aclosing(self._kept_events(response_id, first)) as parts:
            async for part in parts:
                yield part

    async def log(self, lines: int, caller: Caller, *, follow: bool) -> AsyncGenerator[list[str], None]:
        place = self._followers.place(caller.name) if follow else nullcontext()
        async with place, aclosing(self._recent.read(lines, follow=follow)) as parts:
            async for part in parts:
                yield part
