"""Limits the cost of multicast DNS: anybody on the network can send as many packets as it carries.

zeroconf bounds its caches, but neither the time spent on packets nor the names that its browser remembers. So this
measures the time and counts the names, and its user stops listening for a while if they exceed the limits.
"""

import asyncio
import time
from typing import Any

from node.core.retried import Retried

SHARE = 0.05
"""Share of the event loop's time that packets may take. A hundred ordinary packets a second take a third of it."""
BURST_S = 0.25
"""Seconds that packets may take in a burst, as when this node starts and all others answer."""
MOST_NAMES = 1024
"""Maximum names of adverts: four times the nodes that this node keeps in touch with."""


class MulticastLimiter:
    """For one start of zeroconf."""

    def __init__(self) -> None:
        self.packets = 0
        """Packets heard; if multicast works, they include this node's own."""
        self.excess = ""
        """Limit that was exceeded, in words; all further packets are then dropped unread."""
        self._names: set[str] = set()
        self._left = BURST_S
        self._measured_at = time.monotonic()
        self.tried = Retried("A packet of multicast DNS could not be read")

    def admit(self, name: str) -> bool:
        """Count an advert's name. Returns False if it must not be remembered."""
        if name not in self._names and len(self._names) >= MOST_NAMES:
            self.excess = self.excess or f"more than {MOST_NAMES} names"
        if not self.excess:
            self._names.add(name)
        return not self.excess

    def spend(self, seconds: float) -> None:
        """Account for the event loop's time that one packet took."""
        present = time.monotonic()
        self._left = min(BURST_S, self._left + SHARE * (present - self._measured_at)) - seconds
        self._measured_at = present
        if self._left < 0:
            self.excess = self.excess or f"more packets than {SHARE:.0%} of this node's time is enough for"

    def watch(self, transport: asyncio.DatagramTransport) -> None:
        """Measure the packets of a transport. Further calls for the same transport have no effect."""
        protocol = transport.get_protocol()
        if not isinstance(protocol, _Metered):
            transport.set_protocol(_Metered(protocol, self))


class _Metered(asyncio.DatagramProtocol):
    def __init__(self, protocol: Any, limiter: MulticastLimiter) -> None:
        self._protocol = protocol
        self._limiter = limiter

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._limiter.packets += 1
        if self._limiter.excess:
            return
        begun = time.thread_time()
        with self._limiter.tried:
            self._protocol.datagram_received(data, addr)
        self._limiter.spend(time.thread_time() - begun)

    def error_received(self, exc: Exception) -> None:
        self._protocol.error_received(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)
