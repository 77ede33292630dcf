"""What a client learns about a peer without a call."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from node.core.commands import Command, DrainNode, KeepModel, LoadModel, UnloadModel
from node.core.errors import Incompatible, Overloaded, PeerTimeout, PeerUnavailable, PippinError
from node.core.evaluation import EvaluateRequest, Evaluation, Score
from node.core.frames import Frame
from node.core.generation import GenerateRequest, PromptProgress, TokenEvent
from node.core.logs import MAX_LINE_CHARS, MAX_PART_LINES
from node.core.models import Wish
from node.core.nodes import Address, Caller
from node.core.reports import Heartbeat
from node.core.response_ids import Ask
from node.core.rings import Fence
from node.rpc.boundary import answering, quiet_tracebacks
from node.rpc.bounds import checked
from node.rpc.client import RpcClient
from node.wire import serving_pb2
from node.wire.control_pb2 import ResponseRequest
from node.wire.control_pb2_grpc import ControlStub
from tests.patience import PATIENCE_S
from tests.rpc.conftest import report, serving


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


async def test_how_far_a_prompt_is_comes_before_its_tokens() -> None:
    async with serving() as (_, target), RpcClient() as client:
        asked = GenerateRequest("r", "m", (7, 8), 2)
        first, *events = [event async for event in client.generate(Address(target), "a long prompt", asked)]
    assert first == PromptProgress(1280, 4096)
    assert [event.token for event in events if isinstance(event, TokenEvent)] == [7, 8]


async def test_a_peer_whose_disk_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.rpc.client.STALL_TIMEOUT_S", 0.2)

    async def read(model: str, revision: str, name: str, offset: int, length: int) -> AsyncIterator[tuple[bytes, str]]:
        yield b"{", ""
        await asyncio.Event().wait()

    async with serving() as (handlers, target), RpcClient() as client:
        monkeypatch.setattr(handlers, "read", read)
        chunks = client.read(Address(target), "m", "r", "config.json", 0)
        assert await anext(chunks) == (b"{", "")
        with pytest.raises(PeerUnavailable, match=r"sent nothing of config\.json"):
            await anext(chunks)


async def test_a_port_where_nobody_listens_is_told_in_the_systems_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        target = f"127.0.0.1:{gone.getsockname()[1]}"
    async with RpcClient() as client:
        with pytest.raises(PeerUnavailable) as caught:
            await client.exchange(Address(target), Heartbeat(report("a")), PATIENCE_S)
    assert str(caught.value) == f"{target} did not answer: Connection refused."


@pytest.mark.parametrize("how", ["the link is closed", "the peer is dropped"])
async def test_a_link_that_ends_before_it_is_connected(how: str) -> None:
    """A later frame is refused at once, instead of waiting for a connection that is never made."""
    reasons: list[PippinError] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with RpcClient() as client:
            peer = Address(f"127.0.0.1:{silent.getsockname()[1]}")
            link = client.link(peer, reasons.append)
            sending = asyncio.create_task(link.send(Frame("ring", Fence(1, 1), seq=0)))
            _, waiting = await asyncio.wait([sending], timeout=0.2)
            assert waiting
            if how == "the link is closed":
                link.close()
            else:
                client.drop(peer)
            with pytest.raises(PeerUnavailable, match="is closed"):
                async with asyncio.timeout(PATIENCE_S):
                    await sending
            assert len(reasons) == (how == "the peer is dropped")


async def test_a_link_that_was_closed_before_its_first_frame() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with RpcClient() as client:
            link = client.link(Address(f"127.0.0.1:{silent.getsockname()[1]}"), lambda reason: None)
            link.close()
            with pytest.raises(PeerUnavailable, match="is closed"):
                async with asyncio.timeout(PATIENCE_S):
                    await link.send(Frame("ring", Fence(1, 1), seq=0))


def test_what_others_do_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    quiet_tracebacks()
    log = logging.getLogger("grpc._cython.cygrpc")
    no_utf8 = UnicodeDecodeError("utf-8", b"\x98", 0, 1, "invalid start byte")
    for error in (cygrpc.ExecuteBatchError("Failed"), no_utf8, ValueError("something else")):
        log.error("%s raised in core", type(error).__name__, exc_info=error)
    assert [record.getMessage() for record in caplog.records] == ["ValueError raised in core"]


async def test_that_the_server_stops_is_no_error_of_a_call(caplog: pytest.LogCaptureFixture) -> None:
    stopped, no_context = cygrpc._ServerStoppedError("Server already stopped"), None
    with pytest.raises(grpc.aio.BaseError):
        async with answering(no_context):  # type: ignore[arg-type]
            raise stopped
    assert not caplog.records


@asynccontextmanager
async def relayed(target: str, forward: Callable[[bytes], Awaitable[bool]]) -> AsyncIterator[Address]:
    """A path to a server that sends on what `forward` says; answers always arrive."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(*target.split(":"))

        async def back() -> None:
            while data := await there[0].read(65536):
                writer.write(data)

        answers = asyncio.create_task(back())
        try:
            while data := await reader.read(65536):
                if await forward(data):
                    there[1].write(data)
        finally:
            answers.cancel()
            for each in (there[1], writer):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()

    relays: list[asyncio.Task[None]] = []

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relays.append(asyncio.create_task(relay(reader, writer)))

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
        yield Address(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    for each in relays:
        each.cancel()
    await asyncio.gather(*relays, return_exceptions=True)


@pytest.mark.parametrize(("pause_s", "least", "most"), [(0.0, 8, 10), (0.03, 0.7, 2)])
async def test_a_slow_path_is_not_filled_to_measure_it(
    monkeypatch: pytest.MonkeyPatch, pause_s: float, least: float, most: float
) -> None:
    """Most of what is sent is left out. `least`, `most`: MB sent."""
    sent = 0
    if not pause_s:
        monkeypatch.setattr("node.rpc.client.SLOW_BANDWIDTH", 2**16)  # this machine may be busy

    async def forward(data: bytes) -> bool:
        nonlocal sent
        sent += len(data)
        await asyncio.sleep(pause_s if len(data) > 1000 else 0)
        return True

    async with serving() as (_, target), RpcClient() as client, relayed(target, forward) as peer:
        rate = await client.bandwidth(peer, 10.0)
        assert least < sent / 2**20 < most
        assert not client._channels, "its connection is closed"
        assert rate > 0
        assert not pause_s or rate < 5 * 2**20


async def test_a_path_on_which_large_data_does_not_get_through_is_slow() -> None:
    async def forward(data: bytes) -> bool:
        return len(data) < 1000

    async with serving() as (_, target), RpcClient() as client, relayed(target, forward) as peer:
        assert 0 < await client.bandwidth(peer, 0.5) <= 2**20
        assert not client._channels


async def test_a_bandwidth_that_cannot_be_measured() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with RpcClient() as client:
            with pytest.raises(PippinError):
                await client.bandwidth(Address(f"127.0.0.1:{silent.getsockname()[1]}"), 0.2)
            assert not client._channels


async def test_the_response_that_a_peer_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (_, target), RpcClient() as client:
        assert await client.response(Address(target), Ask.GET, "resp_1") == b"get resp_1 " * 100_000
        with pytest.raises(Incompatible, match="sent the ask .all., which this version does not know"):
            await client.response(Address(target), "all", "resp_1")  # type: ignore[arg-type]
        with pytest.raises(Incompatible, match="of 513 characters"):
            await client.response(Address(target), Ask.GET, "r" * 513)
        monkeypatch.setattr("node.rpc.client.MAX_RESPONSE_BYTES", 1_000_000)
        with pytest.raises(Incompatible, match="sent more than 1,000,000 bytes"):
            await client.response(Address(target), Ask.GET, "resp_1")


async def test_the_events_that_a_peer_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (handlers, target), RpcClient() as client:
        parts = [part async for part in client.events(Address(target), "resp_1", 7)]
        assert parts[0] == b""  # at once: the peer is there
        assert b"".join(parts) == b"resp_1 7 " * 100_000
        with pytest.raises(Incompatible, match="of 513 characters"):
            await anext(client.events(Address(target), "r" * 513, 0))

        async def events(response_id: str, first: int, caller: Caller) -> AsyncGenerator[bytes, None]:
            yield b"one"
            await asyncio.Event().wait()

        monkeypatch.setattr(handlers, "events", events)
        monkeypatch.setattr("node.rpc.client.STALL_TIMEOUT_S", 0.2)
        silent = client.events(Address(target), "resp_1", 0)
        assert await anext(silent) == b"one"
        with pytest.raises(PeerUnavailable, match="nothing of a response's events"):
            await anext(silent)


async def test_a_response_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.rpc.client.RESPONSE_TIMEOUT_S", 0.2)

    async def response(ask: Ask, response_id: str) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving() as (handlers, target), RpcClient() as client:
        monkeypatch.setattr(handlers, "response", response)
        with pytest.raises(PeerTimeout):
            await client.response(Address(target), Ask.GET, "resp_1")


@pytest.mark.parametrize(("readers", "most"), [(4, 8), (3, 3)])
async def test_a_peer_that_reads_no_response(monkeypatch: pytest.MonkeyPatch, readers: int, most: int) -> None:
    async def response(ask: Ask, response_id: str) -> bytes:
        return bytes(50 * 2**20)

    monkeypatch.setattr("node.rpc.server.MAX_RESPONSES", most)
    async with serving() as (handlers, target), RpcClient() as client, grpc.aio.insecure_channel(target) as channel:
        monkeypatch.setattr(handlers, "response", response)
        stub = ControlStub(channel)
        unread = [stub.Response(ResponseRequest(id=f"resp_{n}", ask="get")) for n in range(readers)]
        for call in unread:
            await call.read()  # only the first part of many
        with pytest.raises(
            Overloaded, match=f"Responses are being sent {readers} times already, {readers} times for 127"
        ):
            await client.response(Address(target), Ask.GET, "resp_1")
        unread[0].cancel()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(Overloaded):
                    assert len(await client.response(Address(target), Ask.GET, "resp_1")) == 50 * 2**20
                    break
        for call in unread:
            call.cancel()


@pytest.mark.parametrize(
    "evaluation",
    [
        Evaluation([Score(-0.5, [(7, -0.25), (8, -3.0)]), Score(-1.5, [])], [], []),
        Evaluation([Score(-float(place), []) for place in range(10_000)], [], []),
        Evaluation([], [0.5, -0.25], []),
        Evaluation([], [], [0.75, 0.25]),
        Evaluation([], [], []),
    ],
)
async def test_an_evaluation_of_a_driver(evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    """It arrives whole, in messages of limited size."""
    sizes = []

    async def evaluate(ring: str, request: EvaluateRequest) -> Evaluation:
        return evaluation

    def measured(message: serving_pb2.Evaluation) -> serving_pb2.Evaluation:
        sizes.append(message.ByteSize())
        return checked(message)

    async with serving() as (handlers, target), RpcClient() as client:
        monkeypatch.setattr(handlers, "evaluate", evaluate, raising=False)
        monkeypatch.setattr("node.rpc.client.checked", measured)
        assert await client.evaluate(Address(target), "r", EvaluateRequest("r", "m", (1, 2))) == evaluation
    assert 0 < len(sizes) < 4
    assert max(sizes) < 1_000_000


@pytest.mark.parametrize(
    "command",
    [
        LoadModel("m", Wish(named=True, stages=2, context=4096)),
        UnloadModel("m"),
        KeepModel("m", 0.5),
        DrainNode("n", draining=True),
    ],
)
async def test_a_command_for_the_head(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    async def carry_out(command: Command) -> None:
        given.append(command)

    async with serving() as (handlers, target), RpcClient() as client:
        monkeypatch.setattr(handlers, "command", carry_out, raising=False)
        await client.command(Address(target), command)
    assert given == [command]


async def test_the_log_of_a_peer() -> None:
    async with serving() as (handlers, target), RpcClient() as client:
        assert [part async for part in client.log(Address(target), 2, follow=False)] == [["line 0", "line 1"]]
        parts = client.log(Address(target), 1, follow=True)
        assert [await anext(parts) for _ in range(3)] == [["line 0"], [], []]
        await parts.aclose()
        with pytest.raises(Incompatible, match="maximum is 2,000"):
            await anext(client.log(Address(target), 2001, follow=False))
        assert [caller.address for caller in handlers.callers] == ["127.0.0.1"] * 2


@pytest.mark.parametrize(
    "lines", [["x"] * (MAX_PART_LINES + 1), ["x" * (MAX_LINE_CHARS + 1)], ["\x1b[2J"], ["one\ntwo"], ["x"] * 3]
)
async def test_a_log_that_no_node_has(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many lines, too long ones, such as move the cursor, more than were asked for."""

    async def log(count: int, caller: Caller, *, follow: bool) -> AsyncGenerator[list[str], None]:
        yield lines

    async with serving() as (handlers, target), RpcClient() as client:
        monkeypatch.setattr(handlers, "log", log)
        with pytest.raises(Incompatible):
            await anext(client.log(Address(target), 2, follow=False))


async def test_a_peer_that_does_not_know_a_call_is_too_old() -> None:
    old = grpc.aio.server()
    port = old.add_insecure_port("127.0.0.1:0")
    await old.start()
    async with RpcClient() as client:
        with pytest.raises(Incompatible, match=r"is too old for this\. Update it"):
            await anext(client.log(Address(f"127.0.0.1:{port}"), 5, follow=True))
    await old.stop(0)
