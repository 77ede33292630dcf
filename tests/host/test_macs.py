"""What a node reads of Macs whose outputs are in tests/data/macs."""

import platform
import re
import socket
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from node.host.chip import chip_name
from node.host.interfaces import addresses, hardware_kinds, local_interfaces
from node.host.machine_name import machine_name

MACS = Path(__file__).parents[1] / "data" / "macs"
NETWORKSETUP = ["/usr/sbin/networksetup", "-listallhardwareports"]
SYSCTL = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]


class Entry(NamedTuple):
    family: int
    address: str


class Stats(NamedTuple):
    isup: bool


def interfaces_of(text: str) -> tuple[dict[str, list[Entry]], dict[str, Stats]]:
    """An output of ifconfig as psutil returns the same facts: all addresses, and which interfaces run."""
    addresses: dict[str, list[Entry]] = {}
    stats = {}
    for block in re.split(r"\n(?=\w)", text):
        name, _, rest = block.partition(": flags=")
        families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
        found = re.findall(r"^\t(inet6?) (\S+)", rest, re.MULTILINE)
        addresses[name] = [Entry(families[kind], address) for kind, address in found]
        stats[name] = Stats("RUNNING" in rest.partition(">")[0])
    return addresses, stats


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this machine one of the Macs."""

    def become(name: str) -> None:
        answers = {"networksetup": NETWORKSETUP, "sysctl": SYSCTL}
        printed = {tuple(command): (MACS / name / f"{file}.txt").read_text() for file, command in answers.items()}

        def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            return subprocess.CompletedProcess(command, 0, stdout=printed[tuple(command)])

        addresses, stats = interfaces_of((MACS / name / "ifconfig.txt").read_text())
        monkeypatch.setattr(platform, "system", lambda: "Darwin")
        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr("psutil.net_if_addrs", lambda: addresses)
        monkeypatch.setattr("psutil.net_if_stats", lambda: stats)

    return become


@pytest.mark.parametrize(
    ("mac", "chip", "expected"),
    [
        ("mini-m1", "Apple M1", {"en0": ("ethernet", "192.168.1.10")}),
        (
            "mini-m4",
            "Apple M4",
            {
                "en0": ("ethernet", "192.168.1.11"),
                "en1": ("wi-fi", "192.168.1.12"),
                "bridge0": ("thunderbolt", "169.254.33.44"),
            },
        ),
        (
            "macbook-pro-m3-max",
            "Apple M3 Max",
            {"en0": ("wi-fi", "192.168.1.13"), "utun4": ("", "100.64.0.13")},  # bridge100 is a virtual machine's
        ),
        (
            "studio-m3-ultra",
            "Apple M3 Ultra",
            {
                "en0": ("ethernet", "192.168.1.14"),
                "en4": ("thunderbolt", "192.0.2.1"),
                "en7": ("thunderbolt", "198.51.100.1"),
            },
        ),
    ],
)
def test_chip_and_interfaces(mac: str, chip: str, expected: dict[str, tuple[str, str]], on: Any) -> None:
    """Only interfaces with addresses, those of the local network first; not those of AirDrop, USB debugging and virtual machines."""
    on(mac)
    assert chip_name() == chip
    found = local_interfaces(kinds=hardware_kinds())
    ipv4 = [(each.name, (each.kind, address)) for each in found for address in each.addresses if ":" not in address]
    assert ipv4 == list(expected.items())


@pytest.mark.parametrize(
    ("mac", "kinds"),
    [
        ("mini-m1", {"en0": "ethernet", "en1": "wi-fi", "en2": "thunderbolt", "bridge0": "thunderbolt"}),
        ("macbook-pro-m3-max", {"en0": "wi-fi", "en1": "thunderbolt", "en3": "thunderbolt"}),
        ("studio-m3-ultra", {"en0": "ethernet", "en1": "wi-fi", "en7": "thunderbolt"}),
    ],
)
def test_kinds_of_ports(mac: str, kinds: dict[str, str], on: Any) -> None:
    on(mac)
    assert hardware_kinds().items() >= kinds.items()


def test_a_mac_without_a_bridge_has_none(on: Any) -> None:
    on("studio-m3-ultra")
    assert "bridge0" not in hardware_kinds()


def test_what_a_mac_tells_of_its_cable(on: Any) -> None:
    """Of all the link-local addresses that it has, only that of the bridge over its Thunderbolt ports; and last."""
    on("mini-m4")
    told = addresses(local_interfaces(kinds=hardware_kinds()))
    assert set(told[:3]) == {"192.168.1.11", "fd00:5e::11", "192.168.1.12"}
    assert told[3:] == ("169.254.33.44", "fe80::9dd")


@pytest.mark.parametrize(
    ("said", "host", "name"),
    [
        ("Annas-Mac-mini-2", "Mac", "Annas-Mac-mini-2"),
        ("", "dhcp-7.lan", "dhcp-7"),
        ("", "a$(b)", "a-b"),
        ("", "", "node"),
    ],
)
def test_a_mac_is_called_as_bonjour_calls_it(said: str, host: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert list(command) == ["/usr/sbin/scutil", "--get", "LocalHostName"]
        return subprocess.CompletedProcess(command, 0, stdout=f"{said}\n")

    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert machine_name.__wrapped__() == name
