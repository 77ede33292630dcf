"""One exchange of heartbeats with a node, over the best path or, if that is slow or lost, over any that works."""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from node.cluster.agent import Agent
from node.core.clock import now
from node.core.errors import PeerTimeout, PippinError
from node.core.nodes import Address, PeerHint
from node.core.retried import Retried
from node.members.address_book import address_at
from node.members.happy_eyeballs import happy_eyeballs
from node.members.membership import ANSWER_S
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Exchange:
    hint: PeerHint
    agent: Agent
    client: RpcClient
    tried: Retried
    """Shared by all exchanges with the node."""
    answered: bool = False
    refused: bool = False
    """Whether some address did more than stay silent."""

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Try all addresses within the time after which silence means failure. `group` outlives the exchange."""
        best = self.agent.book.paths.best(self.hint.id, now())
        addresses = dict.fromkeys((*([best.address] if best else []), *self.hint.addresses))
        if await happy_eyeballs([partial(self._call, address) for address in addresses], group):
            return
        if self.refused:  # mere slowness is measured by membership
            asked_at = now()
            # Only where the node did answer: elsewhere another machine may have its address.
            gone = best is not None and await self.client.refuses(address_at(self.hint, best.address))
            self.agent.unreachable(self.hint.id, asked_at if gone else None)

    async def _call(self, address: str) -> bool:
        """Whether the node answered there."""
        node, peer = self.hint.id, address_at(self.hint, address)
        with self.tried:
            try:
                if not await self._talk(peer):
                    return False
            except PippinError as error:
                log.debug("heartbeat to %s: %s", peer, error)
                self.refused |= not isinstance(error, PeerTimeout)
                if self.agent.book.paths.failed(node, address) and self.answered:
                    self.client.drop(peer)  # so that what waits there, such as a ring's frames, takes a path that works
                return False
            return True
        return False

    async def _talk(self, peer: Address) -> bool:
        """Whether the node is the one that answers. Asked again if one of the two lacked the other's state, or if a call of the
        node crossed this one: the state in the answer may then be older.
        """
        for left in (2, 1, 0):
            sent = self.agent.heartbeat_for(self.hint.id)
            answer = await self.client.exchange(peer, sent, ANSWER_S)
            if answer.sender != self.hint.id:
                return False
            self.answered = True
            if left and answer.report and self.agent.states.digest_of(self.hint.id) != sent.held:
                continue
            try:
                lacking = self.agent.heard(answer)
            except PippinError as error:
                log.warning("heartbeat: %s", error)
                break
            if not lacking and (sent.report or answer.held == sent.digest):
                break
        return True
