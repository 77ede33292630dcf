"""Finds another process with this node's key, as after its data directory was copied to a second Mac.

Two nodes of one id undo each other's work, because all others take them for one node that restarts again and again. Where
this node's id is said to be elsewhere, the process there is asked to sign a fresh nonce together with facts that
distinguish processes. Only a holder of the key can do that, so nobody else can pretend to be a duplicate, with a secret
or without. Of the two, the younger one gives way: it makes a new key and ends. Wrong clocks may select the other one, but
never both or none.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable

from node.cluster.agent import Agent
from node.core.addresses import without_zone
from node.core.clock import now
from node.core.errors import PippinError
from node.core.nodes import NodeInfo, PeerHint
from node.host.node_key import NodeKey, is_signed, sign
from node.members.address_book import AddressBook, address_at
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 2.0
ASK_AGAIN_S = 5.0
"""Minimum interval of queries to one address."""
MAX_ADDRESSES = 8
"""Maximum addresses of one hint that are queried."""
MOST_ASKED = 256
"""Maximum addresses that are remembered for it: without a secret, anybody can send hints."""


class DuplicateId:
    def __init__(
        self,
        agent: Agent,
        book: AddressBook,
        client: RpcClient,
        key: NodeKey,
        save_incarnation: Callable[[int], None],
    ) -> None:
        self._agent = agent
        self._book = book
        self._client = client
        self._key = key
        self._save_incarnation = save_incarnation
        self._asked_at: dict[str, float] = {}

    def prove(self, nonce: bytes) -> tuple[NodeInfo, bytes]:
        """This process, and its signature."""
        info = self._agent.info
        return info, sign(self._key, _statement(nonce, info))

    async def older(self) -> NodeInfo:
        """Wait for an older duplicate, to which this node has to give way. Younger ones are superseded."""
        while True:
            hint = await self._book.own_hints.get()
            queries = [self._query(hint, address) for address in hint.addresses[:MAX_ADDRESSES]]
            for found in filter(None, await asyncio.gather(*queries)):
                if _age(found) < _age(self._agent.info):
                    return found
                self._supersede(found)

    async def _query(self, hint: PeerHint, address: str) -> NodeInfo | None:
        """The duplicate at an address, if there is one."""
        info, peer = self._agent.info, address_at(hint, address)
        is_own = without_zone(address) in info.addresses and hint.grpc_port == info.grpc_port
        if is_own or not self._is_due(peer.target):
            return None
        nonce = secrets.token_bytes(32)
        try:
            # With a heartbeat, so that the other process learns of this one and queries it in turn.
            await self._client.exchange(peer, self._agent.heartbeat_for(None), ASK_TIMEOUT_S)
            found, signature = await self._client.prove(peer, nonce, ASK_TIMEOUT_S)
        except PippinError as error:
            log.debug("no process with this node's key at %s: %s", peer, error)
            return None
        finally:
            self._client.drop(peer)
        signed = is_signed(info.id, signature, _statement(nonce, found))
        return found if signed and _age(found) != _age(info) else None

    def _is_due(self, target: str) -> bool:
        if self._asked_at.get(target, -ASK_AGAIN_S) > now() - ASK_AGAIN_S:
            return False
        if len(self._asked_at) >= MOST_ASKED:
            del self._asked_at[next(iter(self._asked_at))]
        self._asked_at[target] = now()
        return True

    def _supersede(self, younger: NodeInfo) -> None:
        """Raise this node's incarnation above the younger one's, as others may know this node by the latter."""
        if younger.incarnation >= self._agent.info.incarnation:
            try:
                self._save_incarnation(younger.incarnation + 1)
            except OSError as error:
                log.error("incarnation %d could not be saved: %s", younger.incarnation + 1, error)
        self._agent.supersede(younger)


def _statement(nonce: bytes, info: NodeInfo) -> bytes:
    return repr(("pippin process", nonce.hex(), info.id, info.incarnation, *_age(info))).encode()


def _age(info: NodeInfo) -> tuple[int, str, int]:
    """Sort key of processes, oldest first; equal only for the same process."""
    return (info.started_at, info.name, info.grpc_port)
