import platform

import pytest

from node.host import chip, memory

GIB = 2**30


@pytest.mark.parametrize(
    ("device", "asked", "expected"),
    [
        (None, None, int(16 * GIB * memory.RAM_SHARE)),
        (0, None, int(16 * GIB * memory.RAM_SHARE)),
        (11 * GIB, None, 11 * GIB),
        (11 * GIB, 4 * GIB, 4 * GIB),
        (11 * GIB, 14 * GIB, 14 * GIB),
        (11 * GIB, 64 * GIB, 16 * GIB),
        (80 * GIB, 64 * GIB, 64 * GIB),
        (None, 64 * GIB, 16 * GIB),
    ],
)
def test_usable(monkeypatch, device, asked, expected):
    monkeypatch.setattr(memory, "total", lambda: 16 * GIB)
    assert memory.usable(device, asked) == expected


def test_this_machine_has_memory():
    assert 0 < memory.available() < memory.total()


def test_chip_has_a_name():
    assert chip.chip_name()


def test_chip_of_cpuinfo(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n")
    assert chip._cpuinfo(path) == "AMD EPYC"
    path.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert chip._cpuinfo(path) == ""
    assert chip._cpuinfo(tmp_path / "none") == ""


def test_a_mac_without_sysctl_still_has_a_chip(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(chip, "_sysctl", lambda name: "")
    assert chip.chip_name() == platform.machine()
