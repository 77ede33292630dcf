"""TCP ports of this machine."""

import socket
from collections.abc import Sequence

_CONNECT_S = 0.5
"""A machine of this network refuses or accepts a connection at once, unless a firewall drops it."""


def is_served(host: str, port: int) -> bool:
    """Whether a program accepts connections at this address, or for :: and 0.0.0.0 at loopback.

    Ask before binding: with SO_REUSEADDR, BSD (macOS) lets :: and 127.0.0.1 be bound at one port by two programs, and
    any system lets two programs share one by IPv4 and IPv6. A client of localhost would then meet either.
    """
    own = ("127.0.0.1", "::1") if host in ("::", "0.0.0.0") else (host,)
    return any(_accepts(address, port) for address in own)


def is_dropped(addresses: Sequence[str], port: int) -> bool:
    """Whether no machine answers at any of the addresses, as behind a firewall. One without a program at the port refuses."""
    return bool(addresses) and not any(_answers(address, port) for address in addresses)


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _CONNECT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def _accepts(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(_CONNECT_S)
            probe.connect((address, port))
            # The system may choose this very port for the probe, which then is connected to itself.
            return bool(probe.getsockname() != probe.getpeername())
    except OSError:
        return False
