"""Hosts on a network, made with the kernel's network namespaces: each has its own addresses, ports and multicast."""

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MODEL, PATIENCE_S, Cluster, Node, running_cluster
from tests.preloaded import Preloaded

CLONE_NEWNET = 0x40000000


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=PATIENCE_S)


@dataclass(frozen=True)
class Host:
    space: str
    address: str
    switch: str
    port: str
    """The switch's end of its cable."""
    preloaded: Preloaded
    """Starts its nodes."""

    @property
    def program(self) -> tuple[str, ...]:
        """Prefix of a command that runs there. It execs the command, so its pid is the command's."""
        return ("ip", "netns", "exec", self.space)

    def connect(self, *arguments: Any, **options: Any) -> socket.socket:
        """Like `socket.create_connection`, from this host. A socket stays in the namespace of the
        thread that made it.
        """

        def there() -> socket.socket:
            libc = ctypes.CDLL(None, use_errno=True)
            space = os.open(f"/run/netns/{self.space}", os.O_RDONLY)
            try:
                if libc.setns(space, CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"setns to {self.space}")
            finally:
                os.close(space)
            return socket.create_connection(*arguments, **options)

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(there).result()

    def pull_cable(self) -> None:
        ip("-n", self.switch, "link", "set", self.port, "down")

    def plug_cable(self) -> None:
        ip("-n", self.switch, "link", "set", self.port, "up")

    def lose(self, other: "Host") -> None:
        """Drop everything sent to another host."""
        ip("-n", self.space, "route", "add", "blackhole", f"{other.address}/32")

    def find(self, other: "Host") -> None:
        ip("-n", self.space, "route", "delete", "blackhole", f"{other.address}/32")


@pytest.fixture(scope="session")
def hosts() -> Iterator[list[Host]]:
    """Three hosts on one network."""
    with ExitStack() as cleanup:
        yield make_hosts(cleanup, 3)


def make_hosts(cleanup: ExitStack, count: int) -> list[Host]:
    """Make hosts, each with one cable to one switch. Cleanup deletes everything made, also after a failure half way."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need Linux, root and the `ip` command")
    run = uuid.uuid4().hex[:8]
    switch = f"pippin-{run}-switch"

    def add(space: str) -> None:
        ip("netns", "add", space)
        cleanup.callback(ip, "netns", "delete", space)
        ip("-n", space, "link", "set", "lo", "up")

    try:
        add(switch)
        # Without a querier on the network, a snooping switch would forget the listeners to multicast.
        ip("-n", switch, "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no network namespaces: {error.stderr.decode().strip()}")
    ip("-n", switch, "link", "set", "bridge", "up")
    made: list[Host] = []
    for n in range(1, count + 1):
        add(f"pippin-{run}-{n}")
        preloaded = Preloaded(("ip", "netns", "exec", f"pippin-{run}-{n}"))
        cleanup.callback(preloaded.close)
        host = Host(f"pippin-{run}-{n}", f"10.213.7.{n}", switch, f"port{n}", preloaded)
        made.append(host)
        join(switch, host.port, host.space, "eth0")
        ip("-n", switch, "link", "set", host.port, "master", "bridge", "up")
        ip("-n", host.space, "address", "add", f"{host.address}/24", "dev", "eth0")
        ip("-n", host.space, "link", "set", "eth0", "up")
    return made


def join(space: str, device: str, other: str, at: str) -> None:
    """Add a cable: a device of one namespace whose other end is a device of another one."""
    ip("-n", space, "link", "add", device, "type", "veth", "peer", "name", at, "netns", other)


def launch_on(cluster: Cluster, host: Host, *options: str) -> Node:
    node = cluster.launch("--model", MODEL, *options, preloaded=host.preloaded, host="", connect=host.connect)
    node.host = host.address
    return node


@contextmanager
def cluster_on(hosts: Sequence[Host], directory: Path, *options: str, last: Sequence[str] = ()) -> Iterator[Cluster]:
    """A node on each host, without `--peer`; `last` are further options of the last one."""
    with running_cluster(directory) as cluster:
        for host in hosts:
            launch_on(cluster, host, *options, *(last if host is hosts[-1] else ()))
        cluster.ready(*[node.started() for node in cluster.nodes])
        yield cluster


def holders(cluster: Cluster) -> list[Node]:
    """The nodes of the ring, its driver first, once two nodes share the model: one that was alone serves it for a while."""
    return cluster.ring(cluster.ready(*cluster.nodes, stages=2))
