import ctypes
import platform
import re
import struct
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from node.host import chip, memory

GIB = 2**30


@pytest.mark.parametrize(
    ("device", "asked", "expected"),
    [
        (None, None, int(16 * GIB * memory.RAM_SHARE)),
        (0, None, int(16 * GIB * memory.RAM_SHARE)),
        (11 * GIB, None, int(9.9 * GIB)),
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


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (10 * GIB, ""),
        (11 * GIB, ""),
        (13 * GIB, "the GPU can hold 11.0 GB, not 13.0 GB; for more, run `sudo sysctl iogpu.wired_limit_mb=13312`"),
        (64 * GIB, "the GPU can hold 11.0 GB, not 16.0 GB; for more, run `sudo sysctl iogpu.wired_limit_mb=14745`"),
    ],
)
def test_more_than_a_mac_can_wire(asked, told, monkeypatch, caplog):
    monkeypatch.setattr(memory, "total", lambda: 16 * GIB)
    monkeypatch.setattr(memory, "_IS_MAC", True)
    memory.usable(11 * GIB, asked)
    assert told in caplog.text
    assert bool(told) == bool(caplog.records)
    assert told in (found := memory.excess(11 * GIB, asked))
    assert bool(told) == bool(found)


def test_more_than_a_card_has(monkeypatch, caplog):
    monkeypatch.setattr(memory, "total", lambda: 64 * GIB)
    monkeypatch.setattr(memory, "_IS_MAC", False)
    memory.usable(24 * GIB, 30 * GIB)
    assert "the GPU can hold 24.0 GB, not 30.0 GB; a model that needs more" in caplog.text
    assert "sysctl" not in caplog.text


def test_on_a_mac_compressed_memory_counts(monkeypatch):
    """As of XNU's bsd/sys/resource.h: 16 bytes of a UUID, then 64-bit numbers, of which the footprint is the eighth."""

    class Libproc:
        def proc_pid_rusage(self, process, flavor, buffer):
            if process != 512 or flavor != 0:
                return -1
            numbers = [1, 2, 3, 4, 5, 6, 50 * 2**20, 3 * GIB, 8, 9]
            ctypes.memmove(buffer, struct.pack("=16s10Q", b"uuid", *numbers), 96)
            return 0

    monkeypatch.setattr(memory, "_IS_MAC", True)
    monkeypatch.setattr(memory, "_LIBC", Libproc())
    assert memory.used_by(512) == 3 * GIB
    assert memory.used_by(513) == 0


@pytest.mark.parametrize(
    ("wired", "owned", "found"),
    [
        (2.4, [0.3, 0.1], 0),
        (9.0, [6.5, 0.2], 0),  # a model that is served
        (9.0, [0.3, 0.2], 5.5),  # and after it was killed
        (9.0, [0.3, 0], 5.7),  # or of another user's process, which tells nothing
        (3.9, [], 0),  # less than is told
    ],
)
def test_wired_memory_that_no_process_owns_that_may_be_looked_at(monkeypatch, wired, owned, found):
    """Of a Mac with 16 GB, of which macOS may have wired 3 itself."""
    monkeypatch.setattr(memory, "_IS_MAC", True)
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * GIB, wired=int(wired * GIB), available=GIB)
    )
    monkeypatch.setattr(psutil, "pids", lambda: list(range(len(owned))))
    monkeypatch.setattr(memory, "used_by", lambda process: int(owned[process] * GIB))
    assert memory.stranded() == pytest.approx(found * GIB, abs=2)


def test_elsewhere_than_on_a_mac_nothing_is_known_of_wired_memory(monkeypatch):
    monkeypatch.setattr(memory, "_IS_MAC", False)
    assert memory.stranded() == 0


def test_what_a_process_uses():
    with subprocess.Popen(["sleep", "60"]) as process:
        assert memory.used_by(process.pid) > 0
        process.kill()
    assert memory.used_by(process.pid) == 0


def test_nothing_asked_is_not_too_much():
    assert memory.excess(11 * GIB, None) == memory.excess(None, 2**60) == ""


def test_more_than_the_machine_has(monkeypatch, caplog):
    monkeypatch.setattr(memory, "total", lambda: 16 * GIB)
    memory.usable(None, 16 * GIB)
    assert not caplog.records
    memory.usable(None, 64 * GIB)
    assert "--memory 64.0 GB: this machine has 16.0 GB, which is used" in caplog.text


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
    monkeypatch.setattr(chip, "output_of", lambda *_: "")
    assert chip.chip_name() == platform.machine()


THREADS = """
import ctypes, threading
from node.host.memory import limit_arenas

limit_arenas()
libc = ctypes.CDLL(None)
ready = threading.Barrier(9)

def allocate():
    for _ in range(1000):
        libc.malloc(1000)
    ready.wait(30)

for _ in range(8):
    threading.Thread(target=allocate).start()
ready.wait(30)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries need no help")
def test_what_is_free_in_the_middle_of_a_heap_goes_back_to_the_system():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(10_000) for _ in range(5000)]
    for block in blocks:
        ctypes.memset(ctypes.c_void_p(block), 1, 10_000)
    end = libc.malloc(10_000)
    for block in blocks:
        libc.free(block)
    before = psutil.Process().memory_info().rss
    memory.release_free_heap()
    assert before - psutil.Process().memory_info().rss > 30_000_000
    libc.free(end)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no heap for each thread")
def test_threads_share_heaps():
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, timeout=60)
    assert 1 <= len(re.findall("<heap nr", done.stdout)) <= 2
