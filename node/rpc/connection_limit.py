"""Limits the connections that one address may have to the gRPC server, and ends single ones.

gRPC can limit only their total, and does not expose connections. So this looks at the process's own descriptors, and
shuts down the latest connections of an address with too many; to gRPC it looks as if the peer had hung up. Other
connections are not affected.
"""

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from node.core.clock import in_step, now
from node.core.logs import WARN_INTERVAL_S

log = logging.getLogger(__name__)

LOOK_S = 1.0
EXCESS_LOOK_S = 0.2
"""Interval while there are too many connections, as clients reconnect at once."""

_End = tuple[str, int]


class ConnectionLimit:
    def __init__(self, port: int, most: int) -> None:
        """`port`: port of this process. `most`: maximum connections of one address to it."""
        self._port = port
        self._most = most
        self._known: dict[_End, None] = {}
        """Remote ends of connections, oldest first."""
        self._looked_at = -EXCESS_LOOK_S
        self._warned_at = -WARN_INTERVAL_S

    async def run(self) -> None:
        warned: set[str] = set()
        while True:
            excess = self.shut_excess()
            for address in excess - warned:
                log.warning("%s has more than %d connections to this node: the newest are closed", address, self._most)
            warned = excess
            await asyncio.sleep(EXCESS_LOOK_S if excess else in_step(LOOK_S))

    def shut(self, there: _End, why: str) -> None:
        """Shut down the connection with this remote end; not if another one was just now, as each look takes time."""
        if (present := now()) < self._looked_at + EXCESS_LOOK_S:
            return
        self._looked_at = present
        if (descriptor := self._connections(_descriptors()).get(there)) is not None:
            self._shut(descriptor, there)
        if present >= self._warned_at + WARN_INTERVAL_S:
            self._warned_at = present
            log.warning("a connection of %s was closed: %s", there[0], why)

    def shut_excess(self) -> set[str]:
        """Shut down excess connections, and return the addresses that had too many.

        Takes some 10 µs per descriptor, and next to nothing while there are few.
        """
        descriptors = _descriptors()
        if len(descriptors) <= self._most:
            self._known.clear()
            return set()
        here = self._connections(descriptors)
        self._known = dict.fromkeys([*(end for end in self._known if end in here), *here])
        count: Counter[str] = Counter()
        excess = set()
        for there in self._known:
            count[there[0]] += 1
            if count[there[0]] > self._most:
                excess.add(there[0])
                self._shut(here[there], there)
        return excess

    def _connections(self, descriptors: Iterable[int]) -> dict[_End, int]:
        """Descriptors of the connections to the port, by their remote ends."""
        here: dict[_End, int] = {}
        for descriptor in descriptors:
            with suppress(OSError), _copied(descriptor) as connection:
                if there := self._other_end(connection):
                    here[there] = descriptor
        return here

    def _other_end(self, connection: socket.socket) -> _End | None:
        """Remote end; None if it is not a connection to the port.

        Raises OSError if the socket listens, or is disconnected.
        """
        here = connection.getsockname()
        if not isinstance(here, tuple) or here[1] != self._port:
            return None
        address, port = connection.getpeername()[:2]
        return str(address).removeprefix("::ffff:"), int(port)  # gRPC listens for both kinds of IP at once

    def _shut(self, descriptor: int, there: _End) -> None:
        with suppress(OSError), _copied(descriptor) as connection:
            if self._other_end(connection) == there:  # else the descriptor has been reused
                connection.shutdown(socket.SHUT_RDWR)


def _descriptors() -> list[int]:
    """This process's descriptors; none if none is left to list them with."""
    try:
        return [int(path.name) for path in Path("/dev/fd").iterdir()]
    except OSError:
        return []


def _copied(descriptor: int) -> socket.socket:
    """Socket of a duplicate of the descriptor: the original may be closed and reused at any time.

    Raises OSError if it is not a socket. The socket's actual family need not be known: the addresses that the kernel
    returns include it, and AF_INET6 leaves the most room for them.
    """
    copy = os.dup(descriptor)
    try:
        return socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, copy)
    except OSError:
        os.close(copy)
        raise
