"""Silent connections exhaust neither the process nor the places of other peers."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from node.core.errors import PippinError
from node.core.nodes import Address
from node.host.node_key import id_of, new_key
from node.rpc import channel_options
from node.rpc import server as module
from node.rpc.client import RpcClient
from node.rpc.connection_limit import ConnectionLimit
from node.rpc.security import secure
from tests.patience import PATIENCE_S
from tests.rpc.conftest import serving

NEIGHBOUR = "127.0.0.2"
pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="macOS has one loopback address")


@contextlib.asynccontextmanager
async def idle(target: str, count: int, host: str = NEIGHBOUR) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Silent connections from one address."""
    port = int(target.rpartition(":")[2])
    opened = [await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0)) for _ in range(count)]
    try:
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.close()


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


async def ended(readers: list[asyncio.StreamReader]) -> None:
    for reader in readers:
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                pass


async def until_served(client: RpcClient, peer: Address, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while True:
            try:
                await client.probe(peer, 5)
            except PippinError:
                continue
            return


async def test_one_address_does_not_take_all_connections(
    client: RpcClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The latest connections are closed, those of other addresses stay, and further ones are accepted."""
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 60)
    monkeypatch.setattr(module, "MAX_CONNECTIONS_OF_ADDRESS", 10)
    async with serving() as (_, target), idle(target, 5) as first:
        await client.probe(Address(target), 5)
        async with idle(target, 300), RpcClient() as late:
            await until_served(late, Address(target))
            await client.probe(Address(target), 5)
            assert not any(reader.at_eof() for reader in first)
    assert {record.message.split()[0] for record in caplog.records if "connections" in record.message} == {NEIGHBOUR}


@pytest.mark.parametrize("secret", [False, True])
async def test_who_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch, secret: bool) -> None:
    options = dict(channel_options.SERVER_OPTIONS) | {"grpc.server_handshake_timeout_ms": 500}
    monkeypatch.setattr(module, "SERVER_OPTIONS", tuple(options.items()))
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 20)
    security = secure(b"correct horse battery staple", "home", new_key()) if secret else None
    async with serving(security) as (_, target), RpcClient(security) as client, idle(target, 19) as readers:
        await asyncio.wait_for(ended(readers), PATIENCE_S)
        await until_served(client, Address(target, id_of(security.key.public_key()) if security else ""))


async def test_who_is_silent_for_long_is_hung_up_on_and_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(channel_options.SERVER_OPTIONS) | {"grpc.max_connection_idle_ms": 200}
    monkeypatch.setattr(module, "SERVER_OPTIONS", tuple(options.items()))
    async with serving() as (_, target), RpcClient() as client:
        await client.probe(Address(target), 5)
        lost = asyncio.create_task(client.disconnected(Address(target)))
        await client.probe(Address(target), 5)
        await asyncio.wait_for(lost, PATIENCE_S)
        for _ in range(3):
            await client.probe(Address(target), 5)


async def test_the_end_of_a_node_is_noticed_by_one_that_never_called_it(monkeypatch: pytest.MonkeyPatch) -> None:
    connected = asyncio.Event()

    class Watched:
        """A channel that tells when its user has seen it connected."""

        def __init__(self, channel: grpc.aio.Channel) -> None:
            self.wait_for_state_change = channel.wait_for_state_change
            self._channel = channel

        def get_state(self, **options: bool) -> grpc.ChannelConnectivity:
            state = self._channel.get_state(**options)
            if state is grpc.ChannelConnectivity.READY:
                connected.set()
            return state

    async with RpcClient() as client:
        async with serving() as (_, target):
            watched = Watched(client._channel(Address(target), "control"))
            monkeypatch.setattr(client, "_channel", lambda peer, purpose: watched)
            lost = asyncio.create_task(client.disconnected(Address(target)))
            await asyncio.wait_for(connected.wait(), PATIENCE_S)
            assert not lost.done()
        await asyncio.wait_for(lost, PATIENCE_S)


async def test_a_node_that_ended_before_it_was_connected_to_is_noticed() -> None:
    async with serving() as (_, target):
        pass
    async with RpcClient() as client:
        await asyncio.wait_for(client.disconnected(Address(target)), PATIENCE_S)


def test_what_is_no_connection_to_the_port_is_left_alone() -> None:
    """Only connections to the port count; those that exceed the limit of an address are closed, the latest first. The
    check leaves no descriptor open.
    """
    with contextlib.ExitStack() as stack:
        listening, other = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        here, there = map(stack.enter_context, socket.socketpair())
        file = stack.enter_context(tempfile.TemporaryFile())
        ends = []
        for server, host in [(listening, NEIGHBOUR)] * 8 + [(listening, "127.0.0.3")] * 5 + [(other, NEIGHBOUR)] * 9:
            ends.append(stack.enter_context(socket.create_connection(server.getsockname(), source_address=(host, 0))))
            stack.enter_context(server.accept()[0])
        port, before = listening.getsockname()[1], descriptors()
        assert not ConnectionLimit(port, before).shut_excess(), "too few to look at them"
        limit = ConnectionLimit(port, 5)
        assert limit.shut_excess() == {NEIGHBOUR}
        assert descriptors() <= before, "some may be left of an earlier test, and be closed meanwhile"
        assert [is_open(end) for end in ends] == [True] * 5 + [False] * 3 + [True] * (5 + 9)
        here.send(b"x")
        assert there.recv(1) == b"x"
        file.write(b"y")


def is_open(end: socket.socket) -> bool:
    end.settimeout(0.05)
    with contextlib.suppress(TimeoutError):
        return end.recv(1) != b""
    return True


SMALL = """
import asyncio, resource, sys
import concurrent.futures.thread  # for `to_thread`: when it is called, no descriptor may be left to read it
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from node.rpc import server as module
from tests.rpc.conftest import serving
module.MAX_CONNECTIONS = int(sys.argv[1])
module.resource.getrlimit = lambda _: (10_000, 10_000)  # so that gRPC itself finds out that no descriptor is left

async def main():
    async with serving() as (_, target):
        print(target, flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("most", [20, 1024], ids=["capped", "no descriptor left"])
async def test_a_process_without_descriptors_lives_and_serves_afterwards(client: RpcClient, most: int) -> None:
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", SMALL, str(most)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        target = process.stdout.readline().strip()
        async with idle(target, 100):  # more than the free descriptors, less than the listen backlog
            with contextlib.suppress(PippinError):
                await client.probe(Address(target), 3)
            assert process.poll() is None
        await until_served(client, Address(target))
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
