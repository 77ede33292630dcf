"""Keeps one address from taking all the connections that the gRPC server accepts.

gRPC counts its connections in all and has no say in whose they are, nor does it show them. So the process's own descriptors
are looked at, and those that one address has too many of are shut down, the latest first; for gRPC the other end has
hung up. Nothing stands between the connections that stay and the server.
"""

import asyncio
import logging
import os
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

LOOK_S = 1.0
CROWDED_LOOK_S = 0.2
"""While there are too many, which come back as quickly as they go."""

_End = tuple[str, int]


class Crowd:
    def __init__(self, port: int, most: int) -> None:
        """`most` connections of one address to a port of this process."""
        self._port = port
        self._most = most
        self._known: dict[_End, None] = {}
        """The other ends of connections, those that came first first."""

    async def run(self) -> None:
        told: set[str] = set()
        while True:
            crowded = self.thin()
            for address in crowded - told:
                log.warning("%s has more than %d connections to this node: the latest are ended", address, self._most)
            told = crowded
            await asyncio.sleep(CROWDED_LOOK_S if crowded else LOOK_S)

    def thin(self) -> set[str]:
        """The addresses that had too many. Some 10 µs for each descriptor, and nothing for a few."""
        try:
            descriptors = [int(path.name) for path in Path("/dev/fd").iterdir()]
        except OSError:
            return set()  # none is left to look with
        if len(descriptors) <= self._most:
            self._known.clear()
            return set()
        here: dict[_End, int] = {}
        for descriptor in descriptors:
            with suppress(OSError), _copied(descriptor) as connection:
                if there := self._other_end(connection):
                    here[there] = descriptor
        self._known = dict.fromkeys([*(end for end in self._known if end in here), *here])
        count: Counter[str] = Counter()
        crowded = set()
        for there in self._known:
            count[there[0]] += 1
            if count[there[0]] > self._most:
                crowded.add(there[0])
                self._shut(here[there], there)
        return crowded

    def _other_end(self, connection: socket.socket) -> _End | None:
        """None if it is no connection to the port. Raises OSError if it listens, or has ended."""
        here = connection.getsockname()
        if not isinstance(here, tuple) or here[1] != self._port:
            return None
        address, port = connection.getpeername()[:2]
        return str(address).removeprefix("::ffff:"), int(port)  # gRPC listens for both kinds of IP at once

    def _shut(self, descriptor: int, there: _End) -> None:
        with suppress(OSError), _copied(descriptor) as connection:
            if self._other_end(connection) == there:  # else the descriptor is another one's by now
                connection.shutdown(socket.SHUT_RDWR)


def _copied(descriptor: int) -> socket.socket:
    """To be looked at and closed: the original may be closed, and be another, at any time. Raises OSError if it is no socket.

    The family is not asked for, as names tell it; those of IPv6 need the most room.
    """
    copy = os.dup(descriptor)
    try:
        return socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, copy)
    except OSError:
        os.close(copy)
        raise
