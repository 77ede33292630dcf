"""How a stage reaches the next one: its address may change while the ring lives, so it is looked up at each opening."""

from collections.abc import Callable
from dataclasses import dataclass

from node.core.errors import PeerUnavailable, PippinError
from node.core.types import Address
from node.rpc.client import RpcClient
from node.rpc.link import Link


@dataclass(frozen=True, slots=True)
class Onward:
    node: str
    client: RpcClient
    address_of: Callable[[str], Address | None]
    """Of a node's gRPC server, by its id; None while none is known."""

    def open(self, on_broken: Callable[[PippinError], None]) -> Link:
        """Raises PeerUnavailable when no address of the node is known."""
        address = self.address_of(self.node)
        if address is None:
            raise PeerUnavailable(f"No address of node {self.node} is known.")
        return self.client.link(address, on_broken)
