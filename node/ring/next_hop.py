"""How a stage reaches the next one of its ring."""

from collections.abc import Callable
from dataclasses import dataclass

from node.core.errors import PeerUnavailable, PippinError
from node.core.nodes import Address
from node.rpc.client import RpcClient
from node.rpc.link import FrameLink


@dataclass(frozen=True, slots=True)
class NextHop:
    """The next stage of a ring. Its address is looked up whenever a link is opened, as it may change meanwhile."""

    node: str
    """Its id."""
    client: RpcClient
    address_of: Callable[[str], Address | None]
    """Address of a node's gRPC server, by the node's id; None while none is known."""

    def open(self, on_broken: Callable[[PippinError], None]) -> FrameLink:
        """Raises PeerUnavailable when no address of the node is known."""
        address = self.address_of(self.node)
        if address is None:
            raise PeerUnavailable(f"No address of node {self.node} is known.")
        return self.client.link(address, on_broken)
