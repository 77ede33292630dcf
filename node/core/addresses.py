"""Classifies addresses and host names as local or public. Names are judged as written; nothing is resolved."""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_NEAR = tuple(
    map(
        ip_network,
        (
            *("127.0.0.0/8", "::1/128"),
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),  # private: RFC 1918, RFC 4193
            *("169.254.0.0/16", "fe80::/10"),  # link-local: two Macs on a Thunderbolt cable have no others
            "100.64.0.0/10",  # RFC 6598: Tailscale and other VPNs, carrier-grade NAT
        ),
    )
)
"""Unlike ipaddress's `is_private`, it excludes addresses that are only reserved."""
_LOCAL_DOMAINS = ("localhost", "local", "internal", "home.arpa")
"""Domains that the public DNS never has: RFC 6761, RFC 6762, ICANN's resolution 2024.07.29.06, RFC 8375."""
_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.%~-]+)?)\]|([\w.-]{1,253}))(?::[0-9]{1,5})?", re.ASCII)


def is_local_address(address: str) -> bool:
    """Whether an IP address is loopback, private, link-local or a VPN's. False for anything but an IP address."""
    found = _parse(address)
    return found is not None and any(found in network for network in _NEAR)


def is_self_assigned(address: str) -> bool:
    """Whether an address is in 169.254.0.0/16: chosen by a machine itself, and routed over one interface only."""
    return address.startswith("169.254.")


def is_link_local_ipv6(address: str) -> bool:
    """Whether an address, with or without a zone (%en0), is in fe80::/10: each interface has such addresses."""
    found = _parse(address)
    return isinstance(found, IPv6Address) and found.is_link_local


def without_zone(address: str) -> str:
    """An address as other machines may use it: a zone (%en0) is an interface of this machine."""
    return address.partition("%")[0]


def best_for_people(addresses: Iterable[str]) -> list[str]:
    """The addresses to which a name should resolve: link-local ones only if there are no others."""
    ordered = people_first(addresses)
    return [address for address in ordered if _remoteness(address) == _remoteness(ordered[0])]


def people_first(addresses: Iterable[str]) -> tuple[str, ...]:
    """The addresses in their order, but for link-local ones, which go last: from most places they lead nowhere."""
    return tuple(sorted(addresses, key=_remoteness))


def _remoteness(address: str) -> int:
    return 2 if is_link_local_ipv6(address) else int(is_self_assigned(address))


def are_in_one_network(one: str, other: str) -> bool:
    """Whether two IP addresses are equal, or in the same IPv6 /64, like the public addresses of a home network."""
    first, second = _parse(one), _parse(other)
    if isinstance(first, IPv6Address) and isinstance(second, IPv6Address):
        return int(first) >> 64 == int(second) >> 64
    return first is not None and first == second


def is_address(host: str) -> bool:
    return _parse(host) is not None


def is_local_name(host: str) -> bool:
    """Whether no public DNS server can answer for a host name: it has one label, or a reserved domain.

    `host` is in lower case.
    """
    name = host.removesuffix(".")
    return (
        bool(name)
        and ":" not in name
        and ("." not in name or name.endswith(tuple(f".{domain}" for domain in _LOCAL_DOMAINS)))
    )


def parse_host(authority: str) -> str | None:
    """The host, in lower case, of `host`, `host:port` or `[IPv6]:port`; None for any other text."""
    match = _AUTHORITY.fullmatch(authority)
    return (match[1] or match[2]).lower() if match else None


def join_host_port(host: str, port: int) -> str:
    """`host:port`, or `[IPv6]:port`, as gRPC, URLs and `--peer` write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> tuple[str, int]:
    """Inverse of `join_host_port`; without a colon: ("", 0). Raises ValueError if the port is no number."""
    host, colon, port = text.rpartition(":")
    return host.strip("[]"), int(port) if colon else 0


@lru_cache(1024)  # each request needs several, and parsing one takes 20 µs
def _parse(address: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address; an IPv4-mapped one (::ffff:1.2.3.4) becomes IPv4, and a zone (%en0) is dropped."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found
