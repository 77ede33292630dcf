"""The logs of this node and of others."""

from collections.abc import AsyncGenerator

from node.cluster.agent import Agent
from node.core.errors import PeerUnavailable
from node.core.logs import RecentLines
from node.core.node_names import node_named
from node.members.address_book import AddressBook
from node.rpc.client import RpcClient


class Logs:
    def __init__(self, agent: Agent, book: AddressBook, client: RpcClient, recent: RecentLines) -> None:
        """`recent`: the log of this node."""
        self._agent = agent
        self._book = book
        self._client = client
        self._recent = recent

    def read(self, node: str, lines: int, *, follow: bool) -> AsyncGenerator[list[str], None]:
        """The last lines of the log of a node, in parts, and those that come, as RecentLines.read.

        `node`: name or id, empty for this one. Raises NodeNotFound, PeerUnavailable, and Incompatible for a node that is
        too old.
        """
        own = self._agent.info.id
        names = {peer.report.info.id: peer.report.info.name for peer in self._agent.view().peers}
        asked = node_named(node, names) if node else own
        if asked == own:
            return self._recent.read(lines, follow=follow)
        address = self._book.address_of(asked)
        if address is None:
            raise PeerUnavailable(f"This node does not reach {names[asked]}.", hint="`cluster status` says why.")
        return self._client.log(address, lines, follow=follow)
