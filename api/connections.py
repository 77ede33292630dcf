"""Who is connected to the API's port: so many in all and from one address; who sends nothing makes room for others."""

import logging
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from api.limits import HEADER_S, IDLE_S, MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ONE, STALL_S

TOLD_EACH_S = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """With connections; all times in seconds."""

    most: int = MAX_CONNECTIONS
    most_of_one: int = MAX_CONNECTIONS_OF_ONE
    idle_s: float = IDLE_S
    header_s: float = HEADER_S
    stall_s: float = STALL_S


class Connection(Protocol):
    address: str
    heard_at: float

    @property
    def waits_for_client(self) -> bool:
        """Whether it waits for a request, or for the rest of one."""

    def force_close(self) -> None: ...


class Connections:
    """Those that are open. Where there are too many, the one of which nothing was heard for longest makes room, unless it is being answered."""

    def __init__(self, patience: Patience) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = patience.most
        if descriptors != resource.RLIM_INFINITY:
            self._most = min(self._most, descriptors // 2)  # the other half is for files and nodes
        self._most_of_one = patience.most_of_one
        self._open: dict[Connection, None] = {}
        self._of_one: Counter[str] = Counter()
        self._told_at = -TOLD_EACH_S

    def add(self, connection: Connection) -> bool:
        """Whether there is room."""
        address, now = connection.address, connection.heard_at
        full = ""
        if self._of_one[address] >= self._most_of_one and not self._make_room(address):
            full = f"{address} has {self._of_one[address]} connections"
        elif len(self._open) >= self._most and not self._make_room():
            full = f"{len(self._open)} connections"
        if not full:
            self._open[connection] = None
            self._of_one[address] += 1
        elif now >= self._told_at + TOLD_EACH_S:
            self._told_at = now
            log.warning("a connection is refused: %s with requests under way", full)
        return not full

    def remove(self, connection: Connection) -> None:
        """Nothing happens to one that was refused, or has made room."""
        if connection in self._open:
            del self._open[connection]
            self._of_one[connection.address] -= 1
            if not self._of_one[connection.address]:
                del self._of_one[connection.address]

    def _make_room(self, address: str = "") -> bool:
        """Of all connections, or of those of one address."""
        silent = (each for each in self._open if each.waits_for_client and address in ("", each.address))
        longest = min(silent, key=lambda each: each.heard_at, default=None)
        if longest is None:
            return False
        self.remove(longest)
        longest.force_close()
        return True
