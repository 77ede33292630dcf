"""What a node does on a Mac beside computing: it stays awake, shares no port, and explains a missing permission."""

import errno
import os
import platform
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from api.http.server import ApiServer
from node.core.errors import PeerUnavailable, PortTaken
from node.daemon import facts
from node.host import local_network, ports, sleep
from node.options import Options
from node.rpc.boundary import to_error
from node.rpc.server import RpcServer

# --- sleep ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def caffeinate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[str, int]]:
    """A Mac whose caffeinate notes its arguments and process id, and waits; returns what it noted."""
    program, pipe = tmp_path / "caffeinate", tmp_path / "noted"
    os.mkfifo(pipe)
    program.write_text(f'#!/bin/sh\necho "$$ $*" > {pipe}\nexec sleep 600\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(sleep, "_CAFFEINATE", str(program))

    def noted() -> tuple[str, int]:
        process, _, arguments = pipe.read_text().strip().partition(" ")
        return arguments, int(process)

    return noted


def test_a_mac_stays_awake_until_the_node_ends(caffeinate: Callable[[], tuple[str, int]]) -> None:
    with sleep.prevent_sleep():
        arguments, process = caffeinate()
        assert arguments == f"-is -w {os.getpid()}"
        assert os.getpgid(process) != os.getpgid(0), "Ctrl-C would end it before the node"
    with pytest.raises(ProcessLookupError):
        os.kill(process, signal.SIG_DFL)


def test_a_mac_without_caffeinate_is_told_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(sleep, "_CAFFEINATE", "/no/caffeinate")
    with sleep.prevent_sleep():
        assert "may go to sleep" in caplog.text
        assert "/no/caffeinate" in caplog.text


def test_other_systems_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(subprocess, "Popen", None)
    with sleep.prevent_sleep():
        pass


# --- the order of the start -------------------------------------------------------------------------------------------


def test_subprocesses_end_before_metal_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    began = []
    for name in ("chip_name", "hardware_kinds", "blocked_program", "tailnet_name", "choose_device", "device_memory"):
        monkeypatch.setattr(facts, name, lambda *_, name=name: began.append(name))
    facts.HostFacts.read(Options(name="mini-1"))
    assert began[-2:] == ["choose_device", "device_memory"]
    assert len(began) == 6


# --- ports ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Another program's port, on ::1 only. Linux lets 0.0.0.0 be bound beside it, as macOS lets :: beside 127.0.0.1."""
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        with socket.create_server(("0.0.0.0", 0)) as free:  # of IPv4, where another test may use any port
            other.bind(("::1", free.getsockname()[1]))
        other.listen()
        yield other


async def test_a_port_that_the_system_would_share_is_taken(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with socket.socket() as beside:
        beside.bind(("0.0.0.0", port))  # the system allows it
    with pytest.raises(PortTaken, match=f"API port {port} of 0.0.0.0 is taken"):
        ApiServer(["0.0.0.0"], port)
    with pytest.raises(PortTaken, match=f"gRPC port {port} of 0.0.0.0 is taken"):
        RpcServer(["0.0.0.0"], port)


def test_served_ports(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert ports.is_served("::1", port)
    assert ports.is_served("::", port)
    assert not ports.is_served("127.0.0.1", port)
    listener.close()
    assert not ports.is_served("::", port)


def test_a_probe_that_meets_itself_finds_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection from a port of this machine to that same port succeeds without any server."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]

    class FromThatPort(socket.socket):
        def connect(self, address: tuple[str, int]) -> None:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(("127.0.0.1", port))
            super().connect(address)
            assert self.getpeername() == self.getsockname()

    monkeypatch.setattr(socket, "socket", FromThatPort)
    assert not ports.is_served("127.0.0.1", port)


# --- the permission to use the local network --------------------------------------------------------------------------


def no_route() -> grpc.aio.AioRpcError:
    empty = grpc.aio.Metadata()
    said = f"failed to connect to all addresses; last error: UNKNOWN: connect: {os.strerror(errno.EHOSTUNREACH)}"
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, empty, empty, details=said)


def test_no_route_on_a_mac_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    error = to_error(no_route(), "192.168.1.5:7")
    assert isinstance(error, PeerUnavailable)
    assert "System Settings > Privacy & Security > Local Network" in str(error)
    assert "No route to host" in str(error)


def test_no_route_elsewhere_is_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert to_error(no_route(), "192.168.1.5:7").hint == ""
    assert local_network.local_network_hint() == ""
