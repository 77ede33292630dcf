import socket
from typing import NamedTuple

import pytest

from node.host import interfaces
from node.host.interfaces import (
    Interface,
    addresses,
    can_bind,
    interface_towards,
    local_interfaces,
    parse_hardware_ports,
    with_zone_name,
)


class Entry(NamedTuple):
    family: int
    address: str


class Stats(NamedTuple):
    isup: bool


PORTS = """
Hardware Port: Ethernet
Device: en0
Ethernet Address: 00:11:22:33:44:55

Hardware Port: Wi-Fi
Device: en1
Ethernet Address: 00:11:22:33:44:56

Hardware Port: Thunderbolt 1
Device: en2

Hardware Port: Thunderbolt Bridge
Device: bridge0

Hardware Port: Thunderbolt Ethernet Slot 1
Device: en7

Hardware Port: USB 10/100/1000 LAN
Device: en8

Hardware Port: iPhone USB
Device: en9

VLAN Configurations
===================
"""


@pytest.fixture
def mac(monkeypatch):
    """A Mac on Wi-Fi, Ethernet and a Thunderbolt cable, with a VPN and a virtual machine; en4 is down."""
    addresses = {
        "lo0": ["127.0.0.1", "::1", "fe80::1%lo0"],
        "en0": ["192.168.1.5", "fe80::8%en0", "fd00::5"],
        "en1": ["192.168.1.6"],
        "en4": ["10.9.9.9"],
        "bridge0": ["169.254.7.7", "fe80::7%bridge0"],
        "bridge100": ["192.168.64.1"],
        "utun3": ["100.64.0.1"],
        "awdl0": ["fe80::9%awdl0"],
    }
    entries = {
        name: [
            Entry(-1, "00:11:22:33:44:55"),
            *(Entry(socket.AF_INET6 if ":" in address else socket.AF_INET, address) for address in found),
        ]
        for name, found in addresses.items()
    }
    monkeypatch.setattr("psutil.net_if_addrs", lambda: entries)
    monkeypatch.setattr("psutil.net_if_stats", lambda: {name: Stats(name != "en4") for name in addresses})
    return entries


def test_hardware_ports():
    assert parse_hardware_ports(PORTS) == {
        "en0": "ethernet",
        "en1": "wi-fi",
        "en2": "thunderbolt",
        "bridge0": "thunderbolt",
        "en7": "ethernet",
        "en8": "ethernet",
        "en9": "",
    }


def test_the_local_network_first_and_nothing_that_leads_nowhere(mac):
    """Of the link-local IPv6 addresses only those of cables."""
    found = local_interfaces(kinds=parse_hardware_ports(PORTS))
    assert found == (
        Interface("en0", "ethernet", ("192.168.1.5", "fd00::5")),
        Interface("en1", "wi-fi", ("192.168.1.6",)),
        Interface("bridge0", "thunderbolt", ("169.254.7.7", "fe80::7%bridge0")),
        Interface("utun3", "", ("100.64.0.1",)),
    )


def test_one_address(mac):
    kinds = parse_hardware_ports(PORTS)
    assert local_interfaces(host="fd00::5", kinds=kinds) == (Interface("en0", "ethernet", ("fd00::5",)),)
    assert local_interfaces(host="127.0.0.1") == (Interface("lo0", "loopback", ("127.0.0.1",)),)
    assert local_interfaces(host="127.0.0.2") == (Interface("", "loopback", ("127.0.0.2",)),)
    assert local_interfaces(host="fe80::8%en0") == (Interface("en0", "", ("fe80::8%en0",)),)


def test_what_is_told_to_others_has_no_zone_and_begins_with_what_people_can_use(mac):
    told = addresses(local_interfaces(kinds=parse_hardware_ports(PORTS)))
    assert told == ("192.168.1.5", "fd00::5", "192.168.1.6", "100.64.0.1", "169.254.7.7", "fe80::7")


def test_two_macs_on_a_cable_and_nothing_else_have_an_address(mac, monkeypatch):
    monkeypatch.setattr("psutil.net_if_stats", lambda: {name: Stats(name in ("lo0", "bridge0")) for name in mac})
    assert addresses(local_interfaces()) == ("169.254.7.7", "fe80::7")


def test_the_interface_towards_a_link_local_address_is_its_zone(mac):
    found = local_interfaces()
    assert interface_towards("fe80::9%bridge0", found).name == "bridge0"
    assert interface_towards("fe80::9%en77", found) is None


def test_a_zone_is_named():
    name = socket.if_indextoname(1)
    assert with_zone_name("fe80::1%1") == f"fe80::1%{name}"
    for address in (f"fe80::1%{name}", "fe80::1%4000000", "fe80::1", "10.0.0.1", ""):
        assert with_zone_name(address) == address


def test_one_interface(mac):
    assert [found.name for found in local_interfaces(interface="en1")] == ["en1"]
    assert local_interfaces(interface="en4") == ()
    assert local_interfaces(interface="lo0")[0].addresses == ("127.0.0.1", "::1")


def test_without_a_network_loopback_is_left(mac, monkeypatch):
    monkeypatch.setattr("psutil.net_if_stats", lambda: {"lo0": Stats(True), "en0": Stats(False)})
    assert local_interfaces() == (Interface("lo0", "loopback", ("127.0.0.1", "::1")),)


@pytest.mark.parametrize(
    ("made", "kind"), [(["wireless/x"], "wi-fi"), (["phy80211/x"], "wi-fi"), (["type"], "ethernet"), ([], "")]
)
def test_linux_kinds(tmp_path, made, kind):
    for name in made:
        path = tmp_path / "wlan0" / name
        path.parent.mkdir(parents=True)
        path.write_text("1\n")
    assert interfaces._guess("wlan0", tmp_path) == kind


def test_this_machine():
    """On any machine: it has addresses, they are its own, and it finds the interface to itself."""
    found = local_interfaces()
    assert all(can_bind(address) for interface in found for address in interface.addresses)
    loopback = local_interfaces(host="127.0.0.1")
    assert loopback[0].kind == "loopback"
    assert interface_towards("127.0.0.1", loopback) == loopback[0]
    assert interface_towards("127.0.0.1", ()) is None
    assert not can_bind("198.51.100.7")
    assert not can_bind("no address")
