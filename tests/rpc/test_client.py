"""What a client finds out about a peer without a call."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from node.core.errors import PeerUnavailable
from node.core.types import Address
from node.rpc.client import RpcClient
from tests.rpc.conftest import serving


async def nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def test_a_port_at_which_nobody_listens_any_more() -> None:
    server = await asyncio.start_server(nobody, "127.0.0.1", 0)
    peer = Address(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with RpcClient() as client:
        assert not await client.refuses(peer)
        server.close()
        await server.wait_closed()
        assert await client.refuses(peer)


async def test_a_machine_that_says_nothing_refuses_nothing() -> None:
    async with RpcClient() as client:
        assert not await client.refuses(Address("[100::1]:7001"))  # RFC 6666: packets to it are dropped


async def test_a_peer_whose_disk_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.rpc.client.STALL_TIMEOUT_S", 0.2)

    async def read(model: str, revision: str, name: str, offset: int) -> AsyncIterator[tuple[bytes, str]]:
        yield b"{", ""
        await asyncio.Event().wait()

    async with serving() as (handlers, target), RpcClient() as client:
        monkeypatch.setattr(handlers, "read", read)
        chunks = client.read(Address(target), "m", "r", "config.json", 0)
        assert await anext(chunks) == (b"{", "")
        with pytest.raises(PeerUnavailable, match=r"sent nothing of config\.json"):
            await anext(chunks)
