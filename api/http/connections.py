"""Limits connections to the API's port, in total and per address. Idle ones are closed in favour of new ones.

Some more are kept for monitors, as a connection's request is known only when it has come.
"""

import logging
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from api.http.limits import HEADER_S, IDLE_S, KEPT_CONNECTIONS, MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ONE, STALL_S
from node.core.logs import WARN_INTERVAL_S

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the API's connections. Times are in seconds, as in `api.http.limits`."""

    total: int = MAX_CONNECTIONS
    per_address: int = MAX_CONNECTIONS_OF_ONE
    kept: int = KEPT_CONNECTIONS
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
    """The open connections. If there are too many, one that is not being answered is closed: the longest silent."""

    def __init__(self, limits: ConnectionLimits) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._total = limits.total
        if descriptors != resource.RLIM_INFINITY:
            self._total = min(self._total, descriptors // 2)  # the other half is for files and connections to nodes
        self._per_address = limits.per_address
        self._kept = limits.kept
        self._open: dict[Connection, None] = {}
        self._count_of: Counter[str] = Counter()
        self._spare: dict[Connection, None] = {}
        """Connections beyond the limits."""
        self._warned_at = -WARN_INTERVAL_S

    def add(self, connection: Connection) -> bool:
        """Register a connection. Returns False if there is no room for it."""
        if not (full := self._take_place(connection)):
            return True
        if len(self._spare) >= self._kept and not self._make_spare_room():
            self._warn(full, connection.heard_at)
            return False
        self._spare[connection] = None
        return True

    def admits(self, connection: Connection, path: str) -> bool:
        """Whether a request on a registered connection may be answered. One beyond the limits gets a place if there is one."""
        if connection in self._open or path == "/health":
            return True
        if full := self._take_place(connection):
            self._warn(full, connection.heard_at)
            return False
        self._spare.pop(connection, None)
        return True

    def remove(self, connection: Connection) -> None:
        """Unregister a connection. Does nothing if it was refused, or closed to make room."""
        self._spare.pop(connection, None)
        if connection in self._open:
            del self._open[connection]
            self._count_of[connection.address] -= 1
            if not self._count_of[connection.address]:
                del self._count_of[connection.address]

    def _take_place(self, connection: Connection) -> str:
        """Give the connection a place. Returns why there is none, or an empty text."""
        address = connection.address
        if self._count_of[address] >= self._per_address and not self._make_room(address):
            return f"{address} has {self._count_of[address]} connections"
        if len(self._open) >= self._total and not self._make_room():
            return f"{len(self._open)} connections"
        self._open[connection] = None
        self._count_of[address] += 1
        return ""

    def _warn(self, full: str, now: float) -> None:
        if now >= self._warned_at + WARN_INTERVAL_S:
            self._warned_at = now
            log.warning("a request was refused: there are %s, all with requests in flight", full)

    def _make_room(self, address: str = "") -> bool:
        """Close the connection that has been silent longest, of all or of one address. False if there is none."""
        silent = (each for each in self._open if each.waits_for_client and address in ("", each.address))
        return self._close(min(silent, key=lambda each: each.heard_at, default=None))

    def _make_spare_room(self) -> bool:
        """Close the silent connection beyond the limits that came first, of the address with the most."""
        count = Counter(each.address for each in self._spare)
        silent = (each for each in self._spare if each.waits_for_client)
        return self._close(max(silent, key=lambda each: count[each.address], default=None))

    def _close(self, connection: Connection | None) -> bool:
        if connection is None:
            return False
        self.remove(connection)
        connection.force_close()
        return True
