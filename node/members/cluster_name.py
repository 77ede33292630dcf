"""Advertises `<cluster>.local`, the mDNS name of the head's API."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from zeroconf import (  # type: ignore[attr-defined]  # AddressResolver is documented, but missing from __all__
    AddressResolver,
    Error,
    Zeroconf,
)
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from node.core.addresses import best_for_people, without_zone
from node.core.nodes import NodeInfo

_HTTP = "_http._tcp.local."
_TTL_S = 10
"""TTL of the records, for which the old head is used after a change whose announcement was missed."""
_CHECK_MS = 1500
"""Timeout of a name check, which leaves time for a second query: the answer to the first is sent to its sender, whose
port may be shared with another program. The check ends before the first head is elected.
"""

_log = logging.getLogger(__name__)


class ClusterName:
    def __init__(self, cluster: str, heard: Callable[[], Iterable[str]]) -> None:
        """`heard`: returns the addresses of the cluster's other nodes. Any other holder of the name is a stranger."""
        self._cluster = cluster
        self._heard = heard
        self._zeroconf: AsyncZeroconf | None = None
        self._first_check: asyncio.Task[set[str]] | None = None
        """Holders of the name when this node started. They are queried while the nodes discover each other, so that a
        new head need not wait for it. A later claimant of the name queries it first, and the head at that time answers.
        """
        self._served: AsyncServiceInfo | None = None
        self._naming = asyncio.Lock()
        """Serializes changes, so that the name is served and dropped in the order of the calls."""

    def start(self, zeroconf: AsyncZeroconf) -> None:
        self._zeroconf = zeroconf
        self._first_check = asyncio.create_task(self._holders(zeroconf.zeroconf), name="name check")

    async def stop(self) -> None:
        """Stop. Does nothing if not started."""
        if self._first_check:
            self._first_check.cancel()
            await asyncio.wait([self._first_check])
        self._zeroconf = self._first_check = self._served = None

    async def serve(self, info: NodeInfo) -> bool:
        """Point the name to this node, the head. Returns False, with a warning, if another machine has the name."""
        async with self._naming:
            zeroconf, first_check = self._zeroconf, self._first_check
            if not zeroconf or not first_check or self._served:
                return self._served is not None
            try:
                if self._strangers(await asyncio.shield(first_check), info) and (
                    strangers := self._strangers(await self._holders(zeroconf.zeroconf), info)
                ):
                    _log.warning(
                        "The name %s.local belongs to another machine (%s), so it will not lead to this cluster. "
                        "Choose another cluster name, or use a node's own address.",
                        self._cluster,
                        ", ".join(sorted(strangers)),
                    )
                    return False
                self._served = self._made(info)
                # Skip the conflict check (cooperating_responders): it would find the previous head in caches.
                await (await zeroconf.async_register_service(self._served, cooperating_responders=True))
            except (OSError, Error) as error:
                self._served = None
                _log.warning("%s.local could not be advertised: %s", self._cluster, str(error) or type(error).__name__)
                return False
            return True

    async def drop(self) -> None:
        """Stop advertising the name; for a node that is no longer head."""
        async with self._naming:
            served, self._served = self._served, None
            if self._zeroconf and served:
                try:
                    await (await self._zeroconf.async_unregister_service(served))
                except (OSError, Error) as error:
                    _log.warning("%s could not be withdrawn: %s", served.server, str(error) or type(error).__name__)

    async def update(self, info: NodeInfo) -> None:
        """Advertise this node's new addresses. Raises OSError, RuntimeError and zeroconf's errors."""
        if self._zeroconf and self._served:
            self._served = self._made(info)
            await (await self._zeroconf.async_update_service(self._served))

    def _made(self, info: NodeInfo) -> AsyncServiceInfo:
        return AsyncServiceInfo(
            _HTTP,
            f"Pippin {self._cluster}.{_HTTP}",
            port=info.api_port,
            properties={"path": "/"},
            server=f"{self._cluster}.local.",
            parsed_addresses=best_for_people(info.addresses),
            host_ttl=_TTL_S,
            other_ttl=_TTL_S,
        )

    async def _holders(self, zeroconf: Zeroconf) -> set[str]:
        """Addresses that the name resolves to."""
        found = AddressResolver(f"{self._cluster}.local.")
        await found.async_request(zeroconf, _CHECK_MS)
        return set(found.parsed_addresses())

    def _strangers(self, addresses: set[str], info: NodeInfo) -> set[str]:
        """The addresses that belong to no node of this cluster."""
        return set(map(without_zone, addresses)) - {without_zone(each) for each in (*info.addresses, *self._heard())}
