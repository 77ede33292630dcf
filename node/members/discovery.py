"""Discovers nodes on the local network by mDNS.

An advert is a hint where a node may be, never a sign of life: its withdrawal is ignored, and no node blocks or fails
for lack of multicast; `--peer` and gossip work without it.

IPv4 multicast only: each Mac has it on each interface, Thunderbolt bridges included (169.254.x.x), and a socket bound
to 127.0.0.1 with that address as multicast interface reaches other processes of the same machine, on Linux too, where
`lo` lacks the MULTICAST flag. All addresses of a node are advertised, including IPv6.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence

from zeroconf import Error, InterfaceChoice, IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from node.core.addresses import without_zone
from node.core.clock import in_step, now
from node.core.limits import MAX_ADDRESSES, MAX_NODES
from node.core.nodes import Advert, Memory, NodeInfo, PeerHint
from node.core.reports import NodeReport
from node.core.retried import Retried
from node.core.signal import Signal
from node.core.views import NodeState, PeerView
from node.host.interfaces import can_bind
from node.host.local_network import local_network_hint
from node.members.cluster_name import ClusterName
from node.members.multicast_limiter import MulticastLimiter

SERVICE = "_pippin._tcp.local."
_RESOLVE_MS = 3000
_ASK_AGAIN_S = 60.0
"""Interval at which refused nodes are asked for their adverts, as zeroconf keeps those of a pulled plug for 19 minutes."""
_LONGEST_NAME = 60
"""Maximum characters of a name: an advert has room for 255 bytes per value."""
_MOST_REFUSED = 64
"""Maximum refused nodes that are shown: anybody on the network can invent adverts."""

RETRY_S = 30.0
"""Interval at which multicast is retried where it fails or is misused: permission (macOS) or network may be new."""
_DEAF_S = 10.0
"""Time without any packet, not even this node's own, after which multicast counts as blocked."""
_LOOK_S = 1.0

_log = logging.getLogger(__name__)


class Discovery:
    """Advertises this node and reports others of its cluster."""

    def __init__(
        self, info: NodeInfo, interfaces: Sequence[str], on_hint: Callable[[PeerHint], None], *, fingerprint: str = ""
    ) -> None:
        """`interfaces`: this machine's IPv4 addresses to use; empty: all. `on_hint` is called on the event loop.

        `fingerprint`: of the cluster's secret, empty if it has none. Nodes with another fingerprint are not reported.
        """
        self._info = info
        self._fingerprint = fingerprint
        self.refused: dict[str, PeerView] = {}
        """Nodes that advertise this cluster's name but have another secret, by id."""
        self.adverts: dict[str, Advert] = {}
        """Adverts of the cluster's other nodes that were not withdrawn, by id."""
        self.failure = ""
        """Why multicast does not work, as it was logged last; empty while it does, or is not known not to."""
        self._interfaces = interfaces
        self._on_hint = on_hint
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._resolver: asyncio.Task[None] | None = None
        self._limiter = MulticastLimiter()
        self._unresolved: dict[str, None] = {}
        """Names of incomplete adverts, in order of arrival."""
        self._to_resolve = asyncio.Event()
        self._unusable = ""
        """Reason for a restart of multicast; empty: none."""
        self._hints: dict[str, PeerHint] = {}
        """Latest hint of each node heard, to distinguish the cluster's own machines from strangers."""
        self._told: set[tuple[str, str]] = set()
        """(Node, reason why it does not join) that were logged."""
        heard = self._hints
        self.name = ClusterName(info.cluster, lambda: [a for hint in heard.values() for a in hint.addresses])

    async def run(self, is_head: Callable[[], bool], changed: Signal) -> None:
        """Advertise this node while this task runs, and the cluster's name while this node is the head.

        `changed` signals that `is_head` may have changed. Multicast is retried as long as it does not work. On
        cancellation, the adverts are withdrawn.
        """
        tried = Retried("Multicast DNS failed")
        while True:
            with tried:
                try:
                    if await self.start():
                        self._fail(await self._trouble(is_head, changed))
                finally:
                    await self.stop()
            await asyncio.sleep(RETRY_S)

    async def _trouble(self, is_head: Callable[[], bool], changed: Signal) -> str:
        """Serve or drop the name as needed. Returns the reason when multicast has to be stopped."""
        named, deaf_at = False, now() + _DEAF_S
        while not self._limiter.excess:
            if self._unusable:
                return self._unusable
            if self._limiter.packets:
                if self.failure:
                    _log.info("multicast DNS works")
                self.failure, deaf_at = "", math.inf
            elif now() >= deaf_at:
                return "nothing is heard, not even this node's own adverts"
            if is_head() != named:
                named = is_head()
                await (self.name.serve(self._info) if named else self.name.drop())
            await changed.wait(in_step(_LOOK_S))
        return f"there are {self._limiter.excess}"

    def _fail(self, why: str) -> None:
        level = logging.DEBUG if why == self.failure else logging.WARNING
        self.failure = why
        _log.log(
            level,
            "Other nodes can't be found by themselves, as multicast DNS does not work here (%s); it is tried again. "
            "Allow UDP port 5353 and local network access, or give the others' addresses with --peer.%s",
            why,
            f" {hint}" if (hint := local_network_hint()) else "",
        )

    async def start(self) -> bool:
        """Advertise and listen. Returns False, with a warning, if the network has no multicast."""
        self._limiter, self._unusable = MulticastLimiter(), ""
        for heard in (self._unresolved, self.refused, self.adverts):  # their withdrawal may have been missed
            heard.clear()
        try:
            self._zeroconf = AsyncZeroconf(_choice(self._interfaces), ip_version=IPVersion.V4Only)
            await self._zeroconf.zeroconf.async_wait_for_start()
            self._measure(self._zeroconf)
            self._resolver = asyncio.create_task(self._resolve(), name="discovery")
            self.name.start(self._zeroconf)
            self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE, handlers=[self._heard])
            # Skip the conflict check, which takes a second: the service name includes the id, so it is unique.
            await (await self._zeroconf.async_register_service(self._advert(), cooperating_responders=True))
        except (OSError, RuntimeError, Error) as error:
            self._fail(str(error) or type(error).__name__)
            await self.stop()
            return False
        return True

    def _measure(self, zeroconf: AsyncZeroconf) -> None:
        for reader in zeroconf.zeroconf.engine.readers:
            self._limiter.watch(reader.transport)

    async def stop(self) -> None:
        """Withdraw the adverts and close. Does nothing if not started."""
        if self._resolver:
            self._resolver.cancel()
            await asyncio.wait([self._resolver])
        await self.name.stop()
        if self._browser:
            await self._browser.async_cancel()
        if self._zeroconf:
            await self._zeroconf.async_close()
        self._resolver = self._browser = self._zeroconf = None

    async def update(self, info: NodeInfo, interfaces: Sequence[str]) -> None:
        """Use this machine's new addresses, as after a cable was plugged in or Wi-Fi joined."""
        self._info, self._interfaces = info, interfaces
        if not self._zeroconf:
            return
        try:
            await self._zeroconf.async_update_interfaces(_choice(interfaces))
            self._measure(self._zeroconf)
            await (await self._zeroconf.async_update_service(self._advert()))
            await self.name.update(info)
        except (OSError, RuntimeError, Error) as error:
            self._unusable = f"new addresses can't be advertised: {str(error) or type(error).__name__}"

    def _advert(self) -> AsyncServiceInfo:
        info = self._info
        text = {
            "id": info.id,
            "cluster": info.cluster,
            "name": info.name[:_LONGEST_NAME],
            "secret": self._fingerprint,
            "version": info.version,
            "protocol": str(info.protocol),
            "api": str(info.api_port),
            "scheme": info.api_scheme,
            "incarnation": str(info.incarnation),  # makes the advert of a restarted node a new one
        }
        return AsyncServiceInfo(
            SERVICE,
            f"{info.id}.{SERVICE}",
            port=info.grpc_port,
            properties=text,
            server=f"pippin-{info.id}.local.",
            parsed_addresses=[without_zone(address) for address in info.addresses],
        )

    def _heard(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is ServiceStateChange.Removed:
            for known in (self.refused, self.adverts):
                known.pop(name.removesuffix(f".{SERVICE}"), None)
            return
        if not name.endswith(f".{SERVICE}") or not self._limiter.admit(name):
            return
        advert = AsyncServiceInfo(service_type, name)
        if advert.load_from_cache(zeroconf):
            self._tell(advert)
        else:
            self._unresolved[name] = None
            self._to_resolve.set()

    async def _resolve(self) -> None:
        """Query what adverts left out, which is rare, as most have everything in one packet; and what may be gone."""
        tried, ask_again_at = Retried("An advert could not be read"), now() + _ASK_AGAIN_S
        while True:
            try:
                async with asyncio.timeout_at(ask_again_at):
                    await self._to_resolve.wait()
            except TimeoutError:
                ask_again_at = now() + _ASK_AGAIN_S
                self._unresolved |= {f"{node}.{SERVICE}": None for node in self.refused}
            self._to_resolve.clear()
            while self._unresolved:
                name = next(iter(self._unresolved))
                del self._unresolved[name]
                found = False
                with tried:
                    advert = AsyncServiceInfo(SERVICE, name)
                    if self._zeroconf and (found := await advert.async_request(self._zeroconf.zeroconf, _RESOLVE_MS)):
                        self._tell(advert)
                if not found:
                    self.refused.pop(name.removesuffix(f".{SERVICE}"), None)

    def _tell(self, advert: AsyncServiceInfo) -> None:
        text = advert.decoded_properties
        node, addresses = _shown(text.get("id")), tuple(advert.parsed_scoped_addresses())[:MAX_ADDRESSES]
        if text.get("cluster") != self._info.cluster or node in ("", self._info.id):
            return
        if (text.get("secret") or "") != self._fingerprint:
            self._refuse(node, text, addresses, advert.port or 0)
            return
        self.refused.pop(node, None)
        if addresses and advert.port:
            hint = self._hints[node] = PeerHint(node, addresses, advert.port)
            known = self.adverts.pop(node, None)
            since = known.since if known and known.hint.grpc_port == advert.port else now()
            self.adverts[node] = Advert(_shown(text.get("name")) or node, hint, since)
            for table in (self._hints, self.adverts):
                if len(table) > MAX_NODES:
                    del table[next(iter(table))]
            self._on_hint(hint)

    def _refuse(self, node: str, text: Mapping[str, str | None], addresses: tuple[str, ...], port: int) -> None:
        if node not in self.refused and len(self.refused) >= _MOST_REFUSED:
            return
        name = _shown(text.get("name")) or ", ".join(addresses)
        info = NodeInfo(node, 0, name, self._info.cluster, _shown(text.get("version")), 0, addresses, port, 0)
        theirs = "another secret" if text.get("secret") else "no secret"
        reason = f"it has {theirs}" if self._fingerprint else "it has a secret and this node has none"
        if (node, reason) not in self._told and len(self._told) < MAX_NODES:
            self._told.add((node, reason))
            _log.warning("%s (%s) does not join: %s", name, ", ".join(addresses), reason)
        self.refused[node] = PeerView(NodeReport(info, Memory(0, 0)), NodeState.REFUSED, reason=reason)


def _choice(interfaces: Sequence[str]) -> list[str] | InterfaceChoice:
    """Addresses for zeroconf to bind. With an address that is gone (an unplugged cable) it would fail altogether."""
    if not interfaces:
        return InterfaceChoice.All
    present = [address for address in interfaces if can_bind(address)]
    if not present:
        raise OSError(f"none of the addresses {', '.join(interfaces)} is this machine's")
    return present


def _shown(text: str | None) -> str:
    """Printable part of a text from an advert, which is untrusted."""
    return "".join(char for char in text or "" if char.isprintable())[:_LONGEST_NAME]
