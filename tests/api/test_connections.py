"""Limits on connections, in total and per address: silent ones make room, those that wait for an answer stay."""

import asyncio
import contextlib
import json
from dataclasses import dataclass

import pytest

from api.http.connections import ConnectionLimits, Connections
from api.http.limits import MAX_WAITING

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = json.dumps({"model": "pippin/demo", "prompt": "x", "stream": True, "max_tokens": 5}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
SLOW_S = 10.0


@pytest.fixture
async def connect(request):
    """Opens connections to a server, which are closed at the end."""
    async with contextlib.AsyncExitStack() as stack:

        async def connect(server, data=b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            stack.callback(writer.close)
            writer.write(data)
            return reader, writer

        yield connect


async def ends(reader):
    """Return the data until the server closes the connection, which must be soon."""
    async with asyncio.timeout(SLOW_S):
        return await reader.read()


async def answered(reader):
    async with asyncio.timeout(SLOW_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head, await reader.readexactly(length)


@pytest.mark.parametrize("limits", [ConnectionLimits(total=5), ConnectionLimits(per_address=5)])
@pytest.mark.parametrize("sent", [b"", b"GET /hea", GET, POST[:-3]])
async def test_the_one_that_was_idle_for_longest_makes_room(serve, connect, limits, sent):
    server = await serve(limits=limits)
    first, *rest = [await connect(server, sent) for _ in range(5)]
    for reader, _ in [first, *rest] if sent == GET else []:
        await answered(reader)
    last = await connect(server, GET)
    assert (await answered(last[0]))[0].startswith(b"HTTP/1.1 200 ")
    assert await ends(first[0]) == b""
    assert not rest[0][0].at_eof()


async def test_a_flood_of_idle_connections_keeps_nobody_out(serve, connect):
    server = await serve(limits=ConnectionLimits(total=20))
    for _ in range(200):
        await connect(server, b"POST /v1/comp")
    assert (await server.chat()).status == 200


async def test_who_waits_for_an_answer_makes_no_room(serve, connect, backend, caplog):
    server = await serve(limits=ConnectionLimits(total=4))
    backend.pause_at = 1
    streams = [await connect(server, POST) for _ in range(4)]
    for reader, _ in streams:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    for _ in range(2):
        refused, _ = await connect(server, GET.replace(b"/health", b"/v1/models"))
        head, _, body = (await ends(refused)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nRetry-After: 2\r\n" in head
        assert json.loads(body)["error"]["code"] == "rate_limit_exceeded"
    assert len(caplog.records) == 1
    backend.go_on.set()
    for reader, writer in streams:
        assert (await reader.readuntil(b"[DONE]")).count(b"data: {") > 1
        writer.close()
    async with asyncio.timeout(SLOW_S):
        while (await server.chat()).status != 200:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("limits", [ConnectionLimits(total=2, kept=3), ConnectionLimits(per_address=2, kept=3)])
async def test_a_monitor_gets_an_answer_when_all_others_are_used(serve, connect, backend, limits):
    server = await serve(limits=limits)
    backend.pause_at = 1
    for _ in range(2):
        await connect(server, POST)
    async with asyncio.timeout(SLOW_S):
        while backend.running < 2:  # noqa: ASYNC110 - the backend tells only of one
            await asyncio.sleep(0.01)
    monitor = await connect(server, GET)
    silent = [await connect(server) for _ in range(20)]
    assert (await answered(monitor[0]))[0].startswith(b"HTTP/1.1 200 ")
    newest = await connect(server, GET.replace(b"/health", b"/health?full") * 2)
    for _ in range(2):
        assert (await answered(newest[0]))[0].startswith(b"HTTP/1.1 200 ")
    assert [await ends(reader) for reader, _ in silent[:-2]] == [b""] * 18
    newest[1].write(GET.replace(b"/health", b"/version"))
    assert (await answered(newest[0]))[0].startswith(b"HTTP/1.1 429 "), "it may ask for nothing else"
    assert await ends(newest[0]) == b""
    backend.go_on.set()
    async with asyncio.timeout(SLOW_S):
        while (await server.chat()).status != 200:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)
    silent[-1][1].write(GET.replace(b"/health", b"/version"))
    assert (await answered(silent[-1][0]))[0].startswith(b"HTTP/1.1 200 "), "there is a place by now"


async def test_an_idle_connection_is_closed(serve, connect):
    server = await serve(limits=ConnectionLimits(idle_s=0.2))
    silent, used = [await connect(server, data) for data in (b"", GET)]
    assert await ends(silent[0]) == b""
    assert (await ends(used[0])).startswith(b"HTTP/1.1 200 ")


async def test_headers_that_trickle(serve, connect):
    server = await serve(limits=ConnectionLimits(header_s=0.2))
    for before in (b"", GET):
        reader, writer = await connect(server, before)
        if before:
            await answered(reader)

        async def trickle(writer=writer):
            for byte in b"GET /health HTTP/1.1\r\nX: " + b"x" * 8000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)

        trickling = asyncio.create_task(trickle())
        with contextlib.suppress(ConnectionError):
            assert await ends(reader) == b""
        assert not trickling.done()
        trickling.cancel()


async def test_headers_without_end(serve, connect):
    server = await serve()
    reader, writer = await connect(server, b"GET /health HTTP/1.1\r\n")
    for number in range(65):
        writer.write(b"X-%d: %b\r\n" % (number, b"x" * 1003))
        await asyncio.sleep(0)
    head, _, body = (await ends(reader)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_a_connection_may_bring_any_number_of_requests(serve, connect):
    server = await serve()
    reader, writer = await connect(server)
    large = GET[:-2] + b"".join(b"X-%d: %b\r\n" % (number, b"x" * 5000) for number in range(10)) + b"\r\n"
    for _ in range(40):  # 2 MB
        for parts in ([large], [large[:3000], large[3000:]]):
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.001)
            assert (await answered(reader))[0].startswith(b"HTTP/1.1 200 ")


async def test_requests_that_come_before_their_turn(serve, connect, backend):
    server = await serve()
    backend.pause_at = 1
    reader, _ = await connect(server, POST + GET * MAX_WAITING)
    await backend.paused.wait()
    backend.go_on.set()
    answer = await reader.readuntil(b"[DONE]")
    for _ in range(MAX_WAITING):
        answer += await reader.readuntil(b'"ok"}')
    assert answer.count(b"HTTP/1.1 200 ") == 1 + MAX_WAITING


LARGE = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n" + b" " * 1_000_000
UNREAD = GET[:-2] + b"Content-Length: 1000000\r\n\r\n" + b" " * 1_000_000
CHUNKS = LARGE.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000
UPGRADE = POST.replace(b"\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n", 1)


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        *((POST, GET * 40), (POST, LARGE), (POST, CHUNKS), (POST, GET + LARGE)),
        *((UPGRADE, b"x" * 1_000_000), (UNREAD + POST, b"")),
    ],
    ids=[
        "many",
        "a large one",
        "one of many chunks",
        "a large one behind another",
        "an upgrade",
        "after an unread body",
    ],
)
@pytest.mark.parametrize("at_once", [False, True])
async def test_what_waits_behind_a_request_does_not_hide_that_its_client_has_gone(
    serve, connect, backend, before, behind, at_once
):
    """Reading would pause, and with it the client's end would be seen only after the answer."""
    backend.pause_at = 1
    server = await serve()
    reader, writer = await connect(server, before + behind if at_once else before)
    paused, closed = asyncio.create_task(backend.paused.wait()), asyncio.create_task(ends(reader))
    await asyncio.wait([paused, closed], timeout=SLOW_S, return_when=asyncio.FIRST_COMPLETED)
    writer.write(b"" if at_once else behind)
    writer.close()
    async with asyncio.timeout(SLOW_S):
        while backend.running:  # noqa: ASYNC110 - a request that never began sets no event
            await asyncio.sleep(0.01)
    paused.cancel()
    await asyncio.wait([paused, closed])
    assert closed.exception() is None or isinstance(closed.exception(), ConnectionError)


async def test_a_large_request_may_follow_an_answer_at_once(serve, connect, backend):
    server = await serve()
    backend.model.context = 10_000_000
    body = json.dumps({"model": "pippin/demo", "prompt": "x " * 200_000, "max_tokens": 1}).encode()
    large = POST.partition(b"Content-Length")[0] + b"Content-Length: %d\r\n\r\n" % len(body) + body
    reader, writer = await connect(server)
    for _ in range(5):
        writer.write(large)
        assert (await answered(reader))[0].startswith(b"HTTP/1.1 200 ")


async def test_a_request_in_pieces_and_a_long_answer_are_waited_for(serve, connect, backend):
    server = await serve(limits=ConnectionLimits(idle_s=0.3, header_s=0.3))
    backend.pause_at = 1
    reader, writer = await connect(server)
    for part in (POST[:10], POST[10:-3], POST[-3:]):
        writer.write(part)
        await asyncio.sleep(0.05)
    await backend.paused.wait()
    await asyncio.sleep(0.6)
    backend.go_on.set()
    assert b"[DONE]" in await reader.readuntil(b"[DONE]")


@dataclass(eq=False)
class Peer:
    address: str
    heard_at: float
    waits_for_client: bool = True
    closed: bool = False

    def force_close(self):
        self.closed = True


def test_an_address_has_its_share():
    open_ = Connections(ConnectionLimits(total=10, per_address=6, kept=0))
    greedy = [Peer("10.0.0.1", number) for number in range(20)]
    assert all(map(open_.add, greedy))
    assert [peer.closed for peer in greedy] == [True] * 14 + [False] * 6
    others = [Peer(f"10.0.0.{number}", number) for number in range(2, 7)]
    assert all(map(open_.add, others))
    assert [peer.closed for peer in others] == [True, False, False, False, False]
    for peer in greedy:
        peer.waits_for_client = False
    assert not open_.add(Peer("10.0.0.1", 50))
    assert open_.add(Peer("10.0.0.9", 51))
    for peer in [*greedy, *others]:
        open_.remove(peer)
    assert all(open_.add(Peer("10.0.0.1", 60 + number, waits_for_client=False)) for number in range(6))


def test_half_of_the_descriptors_are_left(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (8, 8))
    open_ = Connections(ConnectionLimits(kept=0))
    assert [open_.add(Peer("", number, waits_for_client=False)) for number in range(5)] == [True] * 4 + [False]
