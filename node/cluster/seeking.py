"""Finds the nodes at addresses that the user gave."""

import asyncio
import logging
import socket

from node.cluster.agent import Agent
from node.core.addresses import is_local_address, join_host_port
from node.core.clock import in_step
from node.core.errors import NotAdmitted, PeerUnavailable, PippinError, SecretMismatch
from node.core.nodes import Address, Memory, NodeInfo, PeerHint
from node.core.reports import Heartbeat, NodeReport
from node.core.views import NodeState, PeerView
from node.host.interfaces import with_zone_name
from node.members.membership import ANSWER_S, GONE_S
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)


class Seeking:
    def __init__(self, agent: Agent, client: RpcClient) -> None:
        self._agent = agent
        self._client = client
        self.refused: dict[str, PeerView] = {}
        """Nodes with another secret, by the address that the user gave, which is all that is known of them."""

    async def run(self, host: str, port: int) -> None:
        """Find the node at an address that the user gave, and add it to the address book.

        Its answer counts as a hint only: any member may be there and pose as another node. A heartbeat counts once it is
        exchanged with a node that proves its id.
        """
        told, found, where = set[str](), "", join_host_port(host, port)
        while True:
            if not found or self._agent.membership.state_of(found) is not NodeState.ALIVE:
                try:
                    address, answer = await self._call_any(host, port)
                except PippinError as error:
                    self._note_refusal(host, port, error)
                    said = str(error).removeprefix(f"{where} ")
                    level = logging.DEBUG if said in told else logging.WARNING
                    log.log(level, "--peer %s%s%s", where, ": " if said == str(error) else " ", said)
                    told.add(said)
                else:
                    told.clear()
                    self.refused.pop(where, None)
                    info = answer.report.info if answer.report else None
                    if info and info.cluster == self._agent.info.cluster and info.id not in self._agent.book.entries:
                        self._agent.book.add(PeerHint(info.id, info.addresses, port), reached=address)
                    found = answer.sender
            await asyncio.sleep(in_step(GONE_S))

    def _note_refusal(self, host: str, port: int, error: PippinError) -> None:
        where = join_host_port(host, port)
        self.refused.pop(where, None)
        if isinstance(error, SecretMismatch):
            info = NodeInfo(where, 0, where, self._agent.info.cluster, "", 0, (host,), port, 0)
            report = NodeReport(info, Memory(0, 0))
            self.refused[where] = PeerView(report, NodeState.REFUSED, reason="it does not have this node's secret")

    async def _call_any(self, host: str, port: int) -> tuple[str, Heartbeat]:
        """The first of a host's addresses that answers, and its answer. Raises the last one's error, or NotAdmitted."""
        failure: PippinError = PeerUnavailable(f"{host} has no address.")
        for address in await _addresses_of(host):
            try:
                if not self._agent.book.anywhere and not is_local_address(address):
                    raise NotAdmitted(
                        f"Without a secret, only private and link-local addresses are called, not {address}.",
                        hint="Start all nodes with one --secret-file.",
                    )
                peer = Address(join_host_port(address, port))
                return address, await self._client.exchange(peer, self._agent.heartbeat_for(None), ANSWER_S)
            except PippinError as error:
                failure = error
        raise failure


async def _addresses_of(host: str) -> list[str]:
    """Resolve a name; an address is returned as it is. Raises PeerUnavailable."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: the name is not valid in DNS
        raise PeerUnavailable(f"{host} has no address: {error}.") from error
    hosts = dict.fromkeys((address[0], address[3] if len(address) > 2 else 0) for *_, address in found)  # zone of IPv6
    return [with_zone_name(f"{host}%{zone}") if zone else str(host) for host, zone in hosts]
