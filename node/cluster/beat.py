"""One exchange of heartbeats with a node, over the best way to it or over any that works."""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from node.cluster.race import race
from node.cluster.topology import Topology
from node.core.addresses import join_host_port
from node.core.clock import now
from node.core.errors import PeerTimeout, PippinError
from node.core.retried import Retried
from node.core.types import Address, Heartbeat, NodeState, PeerHint
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

EXCHANGE_TIMEOUT_S = 1.0


class Talk(Protocol):
    """What is said to peers, and who listens to them."""

    def heartbeat_for(self, node: str | None) -> Heartbeat: ...

    def heard(self, heartbeat: Heartbeat) -> None: ...

    def unreachable(self, node: str, gone_at: float | None = None) -> None: ...

    def state_of(self, node: str) -> NodeState | None: ...


@dataclass(slots=True)
class Beat:
    hint: PeerHint
    client: RpcClient
    topology: Topology
    talk: Talk
    tried: Retried
    """Of all beats of this node."""
    answered: bool = False
    refused: bool = False
    """Some address did not just stay silent."""

    async def run(self, group: asyncio.TaskGroup) -> None:
        """All addresses are asked within the time in which silence means failure; `group` outlives the beat."""
        best = self.topology.best(self.hint.id, now())
        addresses = dict.fromkeys((*([best.address] if best else []), *self.hint.addresses))
        if await race([partial(self._try, address) for address in addresses], group):
            return
        if self.refused:  # no mere slowness, which membership measures itself
            asked_at = now()
            # Only where it did answer: elsewhere another machine may have its address.
            gone = best is not None and await self.client.refuses(at(self.hint, best.address))
            self.talk.unreachable(self.hint.id, asked_at if gone else None)

    async def _try(self, address: str) -> bool:
        with self.tried:
            return await self._ask(address)
        return False

    async def _ask(self, address: str) -> bool:
        """Whether the node answered there."""
        node, peer = self.hint.id, at(self.hint, address)
        try:
            answer = await self.client.exchange(peer, self.talk.heartbeat_for(node), EXCHANGE_TIMEOUT_S)
        except PippinError as error:
            log.debug("heartbeat to %s: %s", peer, error)
            self.refused |= not isinstance(error, PeerTimeout)
            if self.topology.failed(node, address) and self.answered:
                self.client.drop(peer)  # what waits there, as a ring's frames, is to take a way that works
            return False
        if answer.report.info.id != node:
            return False
        self.answered = True
        try:
            self.talk.heard(answer)
        except PippinError as error:
            log.warning("heartbeat: %s", error)
        return True


def at(hint: PeerHint, address: str) -> Address:
    return Address(join_host_port(address, hint.grpc_port), hint.id)
