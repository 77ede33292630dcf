"""Where each node of the cluster may be reached: its addresses, and the measured paths to them.

Addresses come from mDNS adverts, `--peer` and other nodes. None of them is a sign of life.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from node.core.addresses import is_link_local_ipv6, is_local_address, join_host_port, without_zone
from node.core.clock import now
from node.core.limits import MAX_ADDRESSES, MAX_NODES
from node.core.nodes import Address, Caller, PeerHint
from node.core.reports import Path
from node.core.signal import Signal
from node.host.interfaces import Interface, has_interface_of
from node.members.paths import Paths
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Reachable:
    hint: PeerHint
    caller: str = ""
    """Address from which it called last."""
    task: asyncio.Task[None] | None = None
    """Keeps in touch with the node; cancelled with the entry."""


class AddressBook:
    def __init__(self, self_id: str, client: RpcClient, interfaces: Sequence[Interface], *, anywhere: bool) -> None:
        """`anywhere`: nodes prove their ids, so any address may be called; otherwise only those of private networks."""
        self._self_id = self_id
        self._client = client
        self.interfaces = interfaces
        """This machine's."""
        self.anywhere = anywhere
        self.entries: dict[str, Reachable] = {}
        """By node."""
        self.paths = Paths()
        self.added = Signal()
        """A node was added, or its hint changed."""
        self._ignored: set[PeerHint] = set()
        """Logged adverts whose addresses may not be called."""

    # --- adding -------------------------------------------------------------------------------------------------------

    def add(self, hint: PeerHint, *, reached: str = "") -> None:
        """Add a node, or replace its addresses; a path that works is kept.

        `reached`: an address given by the user at which the node answered. It is added unchecked. Loopback addresses
        are ignored unless this node uses loopback, too: a machine whose cable is pulled advertises nothing else.
        """
        entry = self.entries.get(hint.id)
        known = entry.hint if entry else None
        if known and known.grpc_port == hint.grpc_port and (best := self.paths.best(hint.id, now())):
            reached = best.address if has_interface_of(best.address) else reached
        addresses = dict.fromkeys([*([reached] if reached else []), *self._callable(hint.addresses)])
        hint = replace(hint, addresses=tuple(addresses)[:MAX_ADDRESSES])
        if not hint.addresses or hint == known or hint.id == self._self_id:
            return
        if entry is None:
            if len(self.entries) >= MAX_NODES:
                present = now()
                silent = next((node for node in self.entries if not self.paths.best(node, present)), None)
                if silent is None:
                    return
                self.forget(silent)
            self.entries[hint.id] = Reachable(hint)
        else:
            known, entry.hint = entry.hint, hint
            if known.grpc_port != hint.grpc_port:  # a new process; connections to the old one lead nowhere
                self._drop(known)
            else:
                for address in set(known.addresses) - set(hint.addresses):
                    self._client.drop_control(address_at(known, address))
                    self.paths.remove(hint.id, address)
        self.added.notify()

    def add_advert(self, hint: PeerHint) -> None:
        """Add a node that advertises itself. As anybody can forge adverts, one never removes a path that works."""
        known = self.hint_of(hint.id)
        if known and known.grpc_port != hint.grpc_port and self.paths.best(hint.id, now()):
            return
        is_far = not self.anywhere and not any(map(is_local_address, hint.addresses))
        if is_far and hint not in self._ignored and len(self._ignored) < MAX_NODES:
            self._ignored.add(hint)
            where = ", ".join(hint.addresses)
            log.warning("a node at %s is not called: without --secret-file, only private addresses are", where)
        self.add(hint)

    def _callable(self, addresses: Iterable[str]) -> Iterator[str]:
        """Yield the addresses that may be called: link-local IPv6 ones over each interface that has such addresses.

        Their zone is dropped, as it is an interface of another machine.
        """
        zones = [each.name for each in self.interfaces if any(map(is_link_local_ipv6, each.addresses))]
        for address in addresses:
            if is_link_local_ipv6(address):
                yield from (f"{without_zone(address)}%{zone}" for zone in zones)
            elif self._may_call(address):
                yield address

    def _may_call(self, address: str) -> bool:
        try:
            loopback = ipaddress.ip_address(address).is_loopback
        except ValueError:
            return False  # a name may lead anywhere
        if loopback and not any(interface.kind == "loopback" for interface in self.interfaces):
            return False
        return self.anywhere or is_local_address(address)

    def forget(self, node: str) -> None:
        self.disconnect(node)
        self.paths.forget(node)
        entry = self.entries.pop(node, None)
        if entry and entry.task:
            entry.task.cancel()

    def disconnect(self, node: str) -> None:
        """Close all connections to a node that is gone, so that nothing waits for it."""
        if hint := self.hint_of(node):
            self._drop(hint)

    def reconnect(self, node: str) -> None:
        """Close the connections for heartbeats, so that the next one has a connection of its own."""
        if hint := self.hint_of(node):
            for address in hint.addresses:
                self._client.drop_control(address_at(hint, address))

    def _drop(self, hint: PeerHint) -> None:
        for address in hint.addresses:
            self._client.drop(address_at(hint, address))

    # --- looking up ---------------------------------------------------------------------------------------------------

    def knows(self, hint: PeerHint) -> bool:
        """Whether the node is known with this port and all of these addresses, except those that may not be called."""
        known = self.hint_of(hint.id)
        given = set(self._callable(hint.addresses))
        return known is not None and known.grpc_port == hint.grpc_port and given <= set(known.addresses)

    def hint_of(self, node: str) -> PeerHint | None:
        entry = self.entries.get(node)
        return entry.hint if entry else None

    def address_of(self, node: str) -> Address | None:
        """The best address of a node's gRPC server."""
        hint = self.hint_of(node)
        if hint is None:
            return None
        best = self.paths.best(node, now())
        return address_at(hint, best.address if best else hint.addresses[0])

    def note_caller(self, node: str, address: str) -> None:
        """Record the address from which a node sent its heartbeat."""
        if entry := self.entries.get(node):
            entry.caller = address

    def is_from(self, node: str, caller: Caller) -> bool:
        """Whether a call comes from a node: by its certificate or, without a secret, by the caller's address."""
        if caller.node:
            return caller.node == node
        entry = self.entries.get(node)
        return entry is not None and caller.address in (*entry.hint.addresses, entry.caller)

    def paths_to_peers(self) -> tuple[Path, ...]:
        return self.paths.to_peers(now())


def address_at(hint: PeerHint, address: str) -> Address:
    return Address(join_host_port(address, hint.grpc_port), hint.id)
