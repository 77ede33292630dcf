"""Network interfaces of this machine: the addresses at which peers can reach it, and the kind of each interface."""

import ipaddress
import platform
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from node.core.addresses import is_link_local_ipv6, people_first, without_zone
from node.host.command import output_of

_LAN_FIRST = ("ethernet", "wi-fi", "thunderbolt", "", "loopback")
"""What people see is the first address. Peers measure all of them."""

_CABLE = "thunderbolt"
"""The kind of which IPv6 link-local addresses are used: two Macs on a cable have no others, but for 169.254.x.x, which macOS
routes over its primary interface.
"""
_LOCAL_ONLY = ("docker", "br-", "virbr", "vmnet", "bridge1", "awdl", "llw")
"""Prefixes of interfaces to local containers, virtual machines or AirDrop. Their addresses are the same on every
machine, so advertising them would make a peer connect to itself. (On a Mac bridge0 is Thunderbolt, bridge100 is not.)
"""


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    kind: str
    """ethernet, wi-fi, thunderbolt, loopback, or empty when unknown."""
    addresses: tuple[str, ...]
    """IPv6 link-local ones with their zone: fe80::1%en5."""


def local_interfaces(
    host: str = "", interface: str = "", kinds: Mapping[str, str] | None = None
) -> tuple[Interface, ...]:
    """Interfaces to advertise, those of the local network first; cheap, so call it again when the network changes.

    `host`: only this address. `interface`: only this interface's addresses. Default: all that are up. `kinds`: from
    `hardware_kinds`. Loopback is included only if there is nothing else, so that a single node works without a network.
    """
    every = _all_interfaces(kinds or {})
    if host:
        for found in every:
            if host in found.addresses:
                return (replace(found, addresses=(host,)),)
        # It can be bound but is not listed, such as 127.0.0.2 on Linux.
        kind = "loopback" if ipaddress.ip_address(host).is_loopback else ""
        return (Interface(host.partition("%")[2], kind, (host,)),)
    if interface:
        return tuple(found for found in every if found.name == interface)
    outward = [found for found in every if found.kind != "loopback" and not found.name.startswith(_LOCAL_ONLY)]
    return tuple(outward or [found for found in every if found.kind == "loopback"])


def interface_towards(peer: str, interfaces: Iterable[Interface]) -> Interface | None:
    """The interface that routes to a peer's address.

    None if there is no route, the interface is not among these, or no socket can be opened. Connecting a UDP socket
    makes the system choose a route and sends nothing. A link-local address names its interface itself.
    """
    if zone := peer.partition("%")[2]:
        return next((found for found in interfaces if found.name == zone), None)
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))
            source = probe.getsockname()[0]
    except OSError:
        return None
    return next((found for found in interfaces if source in found.addresses), None)


def has_interface_of(address: str) -> bool:
    """Whether this machine has the interface that an address names, if it names one. Connections over an interface that got
    another name go on.
    """
    try:
        return not (zone := address.partition("%")[2]) or socket.if_nametoindex(zone) > 0
    except OSError:
        return False


def can_bind(host: str) -> bool:
    """Whether an address belongs to this machine."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def with_zone_name(address: str) -> str:
    """An IPv6 link-local address whose zone is an interface's name, not its number: fe80::1%en5 for fe80::1%11."""
    host, _, zone = address.partition("%")
    try:
        return f"{host}%{socket.if_indextoname(int(zone))}"
    except (ValueError, OSError):  # no zone, or a name; or the interface is gone
        return address


def interface_names() -> tuple[str, ...]:
    return tuple(sorted(psutil.net_if_addrs()))


def addresses(interfaces: Iterable[Interface]) -> tuple[str, ...]:
    """This node's addresses, as it tells them to others: those that people can use first."""
    found = [without_zone(address) for interface in interfaces for address in interface.addresses]
    return people_first(dict.fromkeys(found))


def multicast_addresses(interfaces: Iterable[Interface]) -> tuple[str, ...]:
    """Addresses of the interfaces that mDNS uses: it uses IPv4 only."""
    return tuple(address for address in addresses(interfaces) if ":" not in address)


def _all_interfaces(kinds: Mapping[str, str]) -> list[Interface]:
    """All interfaces that are up and have an address, those of the local network first."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = []
    for name, entries in psutil.net_if_addrs().items():
        listed = [entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
        if name not in up or not listed:
            continue
        is_loopback = any(ipaddress.ip_address(address).is_loopback for address in listed)
        kind = "loopback" if is_loopback else kinds.get(name) or _guess(name)
        if addresses := tuple(address for address in listed if kind == _CABLE or not is_link_local_ipv6(address)):
            found.append(Interface(name, kind, addresses))
    return sorted(found, key=lambda interface: (_LAN_FIRST.index(interface.kind), interface.name))


# --- kinds ----------------------------------------------------------------------------------------------------------


def hardware_kinds() -> dict[str, str]:
    """Kinds by interface name, from the Mac's network settings; empty on other systems.

    Call it once, before gRPC is started: it starts a subprocess. Names alone don't tell: en0 is Wi-Fi on a MacBook and
    Ethernet on a Mac mini.
    """
    if platform.system() != "Darwin":
        return {}
    return parse_hardware_ports(output_of("/usr/sbin/networksetup", "-listallhardwareports"))


def parse_hardware_ports(text: str) -> dict[str, str]:
    """Parse lines like `Hardware Port: Wi-Fi`, each followed by its `Device: en0`."""
    kinds, port = {}, ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "Hardware Port":
            port = value.strip().lower()
        elif key == "Device":
            kinds[value.strip()] = _kind_of_port(port)
    return kinds


def _kind_of_port(port: str) -> str:
    if "wi-fi" in port or "airport" in port:
        return "wi-fi"
    if "ethernet" in port or "lan" in port.split():
        return "ethernet"  # before Thunderbolt: a "Thunderbolt Ethernet" adapter is Ethernet
    return "thunderbolt" if "thunderbolt" in port else ""


def _guess(name: str, root: Path = Path("/sys/class/net")) -> str:
    """Kind by the interface's name, and on Linux by sysfs. An unknown kind does no harm: round trips are measured."""
    if name.startswith("thunderbolt") or name == "bridge0":
        return "thunderbolt"
    device = root / name
    if (device / "wireless").exists() or (device / "phy80211").exists():
        return "wi-fi"
    type_file = device / "type"
    is_ethernet = type_file.exists() and type_file.read_text().strip() == "1"  # ARPHRD_ETHER
    return "ethernet" if is_ethernet else ""
