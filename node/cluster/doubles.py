"""Another process with this node's key, as after its data directory was copied to a second Mac: found, and told apart.

Two nodes of one id undo each other's work, as all others take them for one that keeps starting anew. Where this node's id is
told to be, other than here, whoever is there is asked to sign a number that was never used before, together with what
tells processes apart. Only a copy of the key can, so nobody can pretend to be a double, with a secret or without.
Of the two, the one that was started last gives way: it makes itself a new key and ends. Wrong clocks may make it the
other one, but never both or none.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable

from node.cluster.address_book import AddressBook
from node.cluster.agent import Agent
from node.core.addresses import join_host_port
from node.core.clock import now
from node.core.errors import PippinError
from node.core.types import Address, NodeInfo
from node.host.node_key import NodeKey, is_signed, sign
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 2.0
ASK_AGAIN_S = 5.0
"""An address at which this node's id is told to be is asked so often."""
MOST_ADDRESSES = 8
"""Of one hint."""
MOST_ASKED = 256
"""Addresses that are remembered for it. Without a secret anybody can tell of many."""


class Doubles:
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
        self._asked: dict[str, float] = {}

    def prove(self, nonce: bytes) -> tuple[NodeInfo, bytes]:
        """This process, and its signature."""
        info = self._agent.info
        return info, sign(self._key, _statement(nonce, info))

    async def older(self) -> NodeInfo:
        """Returns when there is a double before which this node has to give way; younger ones are told of."""
        while True:
            hint = await self._book.own_hints.get()
            looks = [self._look(address, hint.grpc_port) for address in hint.addresses[:MOST_ADDRESSES]]
            for found in filter(None, await asyncio.gather(*looks)):
                if _age(found) < _age(self._agent.info):
                    return found
                self._outlive(found)

    async def _look(self, address: str, port: int) -> NodeInfo | None:
        """The double that is there."""
        info = self._agent.info
        peer = Address(join_host_port(address, port), info.id)
        if (address in info.addresses and port == info.grpc_port) or not self._is_due(peer.target):
            return None
        nonce = secrets.token_bytes(32)
        try:
            # So that it knows of this node, and asks the same in turn.
            await self._client.exchange(peer, self._agent.heartbeat_for(None), ASK_TIMEOUT_S)
            found, signature = await self._client.prove(peer, nonce, ASK_TIMEOUT_S)
        except PippinError as error:
            log.debug("no double at %s: %s", peer, error)
            return None
        finally:
            self._client.drop(peer)
        signed = is_signed(info.id, signature, _statement(nonce, found))
        return found if signed and _age(found) != _age(info) else None

    def _is_due(self, target: str) -> bool:
        if self._asked.get(target, -ASK_AGAIN_S) > now() - ASK_AGAIN_S:
            return False
        if len(self._asked) >= MOST_ASKED:
            del self._asked[next(iter(self._asked))]
        self._asked[target] = now()
        return True

    def _outlive(self, younger: NodeInfo) -> None:
        """Others may know this node as the younger one by now: what counts is the highest incarnation."""
        if younger.incarnation >= self._agent.info.incarnation:
            try:
                self._save_incarnation(younger.incarnation + 1)
            except OSError as error:
                log.error("incarnation %d could not be saved: %s", younger.incarnation + 1, error)
        self._agent.outlive(younger)


def _statement(nonce: bytes, info: NodeInfo) -> bytes:
    return repr(("pippin process", nonce.hex(), info.id, info.incarnation, *_age(info))).encode()


def _age(info: NodeInfo) -> tuple[int, str, int]:
    """Smallest is oldest; equal for one process alone."""
    return (info.started_at, info.name, info.grpc_port)
