"""Which addresses count as one's own network: a cluster without a secret takes nobody else's word."""

from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import unquote

_NEAR = tuple(
    map(
        ip_network,
        (
            *("127.0.0.0/8", "::1/128"),
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),  # private: RFC 1918, RFC 4193
            *("169.254.0.0/16", "fe80::/10"),  # link-local: two Macs on a Thunderbolt cable have no others
        ),
    )
)
"""Not 100.64.0.0/10: providers give it to customers who are strangers to each other (RFC 6598), and some VPNs use it.
Not ipaddress's `is_private`: that also holds what is merely reserved."""


def is_near(address: str) -> bool:
    """Whether an IP address is loopback, private or link-local. What is no IP address is not near."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    return any(found in network for network in _NEAR)


def host_of(peer: str) -> str:
    """Of a gRPC peer, as `ipv4:192.168.1.5:4711` or `ipv6:%5Bfe80::1%25en0%5D:4711`."""
    host, _, _ = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]")
