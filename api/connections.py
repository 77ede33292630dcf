"""Limits connections to the API's port, in total and per address. Idle ones are closed in favour of new ones."""

import logging
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from api.limits import HEADER_S, IDLE_S, MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ONE, STALL_S

WARN_INTERVAL_S = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the API's connections. Times are in seconds, as in `api.limits`."""

    total: int = MAX_CONNECTIONS
    per_address: int = MAX_CONNECTIONS_OF_ONE
    idle_s: float = IDLE_S
    header_s: float = HEADER_S
    stall_s: float = STALL_S


class Connection(Protocol):
    address: str
    heard_at: float

    @property
    def waits_for_client(self) -> bool:
        """Whether the server is waiting for a request on this connection, or for the rest of one."""

    def force_close(self) -> None: ...


class Connections:
    """The open connections.

    If there are too many, the one that has been silent longest is closed, unless it is being answered.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._total = limits.total
        if descriptors != resource.RLIM_INFINITY:
            self._total = min(self._total, descriptors // 2)  # the other half is for files and connections to nodes
        self._per_address = limits.per_address
        self._open: dict[Connection, None] = {}
        self._count_of: Counter[str] = Counter()
        self._warned_at = -WARN_INTERVAL_S

    def add(self, connection: Connection) -> bool:
        """Register a connection. Returns False if there is no room for it."""
        address, now = connection.address, connection.heard_at
        full = ""
        if self._count_of[address] >= self._per_address and not self._make_room(address):
            full = f"{address} has {self._count_of[address]} connections"
        elif len(self._open) >= self._total and not self._make_room():
            full = f"{len(self._open)} connections"
        if not full:
            self._open[connection] = None
            self._count_of[address] += 1
        elif now >= self._warned_at + WARN_INTERVAL_S:
            self._warned_at = now
            log.warning("a connection was refused: there are %s, all with requests in flight", full)
        return not full

    def remove(self, connection: Connection) -> None:
        """Unregister a connection. Does nothing if it was refused, or closed to make room."""
        if connection in self._open:
            del self._open[connection]
            self._count_of[connection.address] -= 1
            if not self._count_of[connection.address]:
                del self._count_of[connection.address]

    def _make_room(self, address: str = "") -> bool:
        """Close the connection that has been silent longest, of all or of one address. False if there is none."""
        silent = (each for each in self._open if each.waits_for_client and address in ("", each.address))
        longest = min(silent, key=lambda each: each.heard_at, default=None)
        if longest is None:
            return False
        self.remove(longest)
        longest.force_close()
        return True
