"""What a node asks of another one for its API: the lines of its log, and the responses that it keeps."""

import asyncio
from collections.abc import AsyncGenerator

from node.cluster.agent import Agent
from node.core.errors import NodeNotFound, PeerUnavailable
from node.core.logs import RecentLines
from node.core.node_names import node_named
from node.core.nodes import Address
from node.core.response_ids import Ask, keeper_of, new_response_id
from node.core.views import PRESENT
from node.rpc.client import RpcClient

MAX_FETCHES = 4
"""Responses of other nodes that are fetched at once: each may have megabytes."""


class Peers:
    def __init__(self, agent: Agent, client: RpcClient, recent: RecentLines) -> None:
        """`recent`: the log of this node."""
        self._agent = agent
        self._client = client
        self._recent = recent
        self._fetches = asyncio.Semaphore(MAX_FETCHES)

    def log(self, node: str, lines: int, *, follow: bool) -> AsyncGenerator[list[str], None]:
        """The last lines of the log of a node, in parts, and those that come, as RecentLines.read.

        `node`: name or id, empty for this one. Raises NodeNotFound, PeerUnavailable, and Incompatible for a node that is
        too old.
        """
        own = self._agent.info.id
        names = {peer.report.info.id: peer.report.info.name for peer in self._agent.view().peers}
        asked = node_named(node, names) if node else own
        if asked == own:
            return self._recent.read(lines, follow=follow)
        return self._client.log(self._address(asked, names[asked]), lines, follow=follow)

    def new_response_id(self) -> str:
        """The id of a response that this node is going to keep."""
        return new_response_id(self._agent.info.id)

    def is_kept_elsewhere(self, response_id: str) -> bool:
        """Whether the id names another node, as the one that keeps the response."""
        keeper = keeper_of(response_id)
        return bool(keeper) and not self._agent.info.id.startswith(keeper)

    async def response(self, ask: Ask, response_id: str) -> bytes:
        """The response, as `RpcClient.response` has it, of the node that its id names.

        Raises NodeNotFound if that is no member of the cluster (any more), PeerUnavailable, and its own errors.
        """
        address = self._keeper(response_id)
        async with self._fetches:
            return await self._client.response(address, ask, response_id)

    def events(self, response_id: str, first: int) -> AsyncGenerator[bytes, None]:
        """The events of a response from this number on, of the node that its id names. Raises as `response` does."""
        return self._client.events(self._keeper(response_id), response_id, first)

    def _keeper(self, response_id: str) -> Address:
        keeper = keeper_of(response_id)
        present = [peer.report.info for peer in self._agent.view().peers if peer.state in PRESENT]
        named = [info for info in present if info.id.startswith(keeper)]
        if len(named) != 1:
            raise NodeNotFound(f"No node of this cluster has an id that begins with {keeper}.")
        return self._address(named[0].id, named[0].name)

    def _address(self, node: str, name: str) -> Address:
        if address := self._agent.book.address_of(node):
            return address
        raise PeerUnavailable(f"This node does not reach {name}.", hint="`cluster status` says why.")
