"""A peer that sends too much, or nonsense, gets an error; the node answers the next peer as before."""

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from node.core.errors import BadRequest, Incompatible, NotAdmitted, PippinError, StaleFence
from node.core.frames import Frame
from node.core.generation import GenerateRequest
from node.core.limits import MAX_ADDRESSES, MAX_MODELS, MAX_NAME_CHARS, MAX_NODES, MAX_TEXT_CHARS
from node.core.nodes import Address, Caller
from node.core.reports import Heartbeat
from node.rpc import channel_options, guard
from node.rpc import server as server_module
from node.rpc.boundary import to_error
from node.rpc.bounds import MAX_LAYERS
from node.rpc.channel_options import MAX_CONTROL_BYTES, MAX_REQUEST_BYTES
from node.rpc.client import RpcClient
from node.rpc.guard import GENERATE
from node.rpc.mapping import to_message
from node.rpc.server import FRAMES_METHOD
from node.wire import control_pb2 as pb
from node.wire import serving_pb2
from tests.patience import PATIENCE_S
from tests.rpc.conftest import Handlers, frame, report, serving

MAX_ITEMS = 1024
EXCHANGE = "/pippin.control.Control/Exchange"


async def answer(peer: str, method: str, data: bytes) -> PippinError:
    """Send bytes that no honest node sends; return the server's error."""
    async with grpc.aio.insecure_channel(peer) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(method)(data, timeout=PATIENCE_S)
    return to_error(error.value, peer)


async def still_serves(client: RpcClient, peer: str) -> None:
    assert (await client.exchange(Address(peer), Heartbeat(report("honest")), 5)).report.info.id == "server"
    tokens = [event.token async for event in client.generate(Address(peer), "r", GenerateRequest("r", "m", (1, 2), 2))]
    assert tokens == [1, 2]


def many_stages(ring: pb.Ring, count: int) -> None:
    for layer in range(count):
        ring.stages.add(node=f"n{layer}", start=layer, end=layer + 1)


def a_ring(message: pb.Heartbeat, *stages: tuple[str, int, int]) -> None:
    ring = message.placement.rings.add(id="r", model="m", context=100, max_sessions=1)
    for node, start, end in stages:
        ring.stages.add(node=node, start=start, end=end)


def a_draft(**more: Any) -> pb.ModelSpec:
    return pb.ModelSpec(**({"model": "d", "layer_bytes": [1], "kv": [pb.KvCost()], "max_context": 1} | more))


HEARTBEATS: dict[str, Callable[[pb.Heartbeat], object]] = {
    "no report at all": lambda m: m.ClearField("report"),
    "a sender that moves the cursor": lambda m: [m.ClearField("report"), setattr(m, "node", "\x1b[2J")],
    "a sender of a long name": lambda m: [m.ClearField("report"), setattr(m, "node", "x" * (MAX_NAME_CHARS + 1))],
    "a name that moves the cursor": lambda m: setattr(m.report.info, "name", "\x1b[2J"),
    "a name of two lines": lambda m: setattr(m.report.info, "name", "mini\n12:00:00 ERROR all is lost"),
    "a long name": lambda m: setattr(m.report.info, "name", "x" * (MAX_NAME_CHARS + 1)),
    "too many addresses": lambda m: m.report.info.addresses.extend(["10.0.0.1"] * (MAX_ITEMS + 1)),
    "a port that is none": lambda m: setattr(m.report.info, "grpc_port", 1 << 16),
    "too many to load": lambda m: m.report.preload.extend(["m"] * (MAX_ITEMS + 1)),
    "too many peers": lambda m: [m.report.peers.add(id=str(n)) for n in range(MAX_ITEMS + 1)],
    "a peer of too many addresses": lambda m: m.report.peers.add(id="x", addresses=["10.0.0.1"] * (MAX_ITEMS + 1)),
    "too many paths": lambda m: [m.report.paths.add() for _ in range(MAX_ITEMS + 1)],
    "too many rings of its own": lambda m: [m.report.traffic.add() for _ in range(MAX_ITEMS + 1)],
    "a rate that is no number": lambda m: m.report.traffic.add(ring="r", tokens_per_second=float("nan")),
    "a round trip without end": lambda m: m.report.paths.add(to="x", rtt_ms=float("inf")),
    "too many speeds": lambda m: [m.report.speeds.add() for _ in range(MAX_ITEMS + 1)],
    "an endless speed": lambda m: m.report.speeds.add(shard=pb.Shard(model="m", end=1), bytes_per_s=float("inf")),
    "a speed of no layers": lambda m: m.report.speeds.add(shard=pb.Shard(model="m")),
    "an endless bandwidth": lambda m: m.report.paths.add(to="x", bytes_per_s=float("inf")),
    "a round trip into the past": lambda m: m.report.paths.add(to="x", rtt_ms=-1),
    "too many loads": lambda m: [m.report.stages.add() for _ in range(MAX_ITEMS + 1)],
    "layers backwards": lambda m: m.report.stages.add(shard=pb.Shard(model="m", start=5, end=4)),
    "KV of bits that nothing computes with": lambda m: m.report.stages.add(shard=pb.Shard(model="m", end=1, kv_bits=3)),
    "idle layers with such KV": lambda m: m.report.idle.add(model="m", end=1, kv_bits=1 << 31),
    "too many draft models": lambda m: [m.report.drafts.add() for _ in range(MAX_ITEMS + 1)],
    "a draft model that moves the cursor": lambda m: m.report.drafts.add(model="m", draft="\x1b[2J"),
    "too many aliases": lambda m: [m.report.aliases.add() for _ in range(MAX_ITEMS + 1)],
    "too many presets": lambda m: [m.report.presets.add() for _ in range(MAX_ITEMS + 1)],
    "a preset of too many values": lambda m: m.report.presets.add().sampling.update(
        {str(number): 1.0 for number in range(MAX_ITEMS + 1)}
    ),
    "a preset that moves the cursor": lambda m: m.report.presets.add(model="\x1b[2J"),
    "an alias that moves the cursor": lambda m: m.report.aliases.add(name="\x1b[2J", model="m"),
    "too many layers": lambda m: m.report.stages.add(shard=pb.Shard(model="m", end=MAX_LAYERS + 1)),
    "a term after which none can come": lambda m: setattr(m.report, "term", (1 << 64) - 1),
    "memory beyond all reason": lambda m: setattr(m.report.memory, "usable", (1 << 64) - 1),
    "an epoch after which none can come": lambda m: setattr(m.placement.fence, "epoch", (1 << 64) - 1),
    "too many placed rings": lambda m: [a_ring(m, ("a", 0, 1)) for _ in range(MAX_ITEMS + 1)],
    "a ring of nobody": a_ring,
    "a ring that lacks its first layers": lambda m: a_ring(m, ("a", 1, 8)),
    "a ring with such KV": lambda m: [a_ring(m, ("a", 0, 1)), setattr(m.placement.rings[0], "kv_bits", 16)],
    "a ring with a draft model of no layers": lambda m: [
        a_ring(m, ("a", 0, 1)),
        m.placement.rings[0].draft.MergeFrom(pb.Shard(model="d")),
    ],
    "a draft model with a draft model": lambda m: m.placement.specs.append(
        pb.ModelSpec(model="m", layer_bytes=[1], kv=[pb.KvCost()], max_context=1, draft=a_draft(draft=a_draft()))
    ),
    "a draft model of no context": lambda m: m.placement.specs.append(
        pb.ModelSpec(model="m", layer_bytes=[1], kv=[pb.KvCost()], max_context=1, draft=a_draft(max_context=0))
    ),
    "a ring with a gap": lambda m: a_ring(m, ("a", 0, 3), ("b", 4, 8)),
    "a ring that holds layers twice": lambda m: a_ring(m, ("a", 0, 5), ("b", 4, 8)),
    "a ring with an empty stage": lambda m: a_ring(m, ("a", 0, 4), ("b", 4, 4), ("c", 4, 8)),
    "a ring with a node twice": lambda m: a_ring(m, ("a", 0, 4), ("a", 4, 8)),
    "rings of too many stages in all": lambda m: [
        many_stages(m.placement.rings.add(id=f"r{n}"), 1000) for n in range(5)
    ],
    "models of too many layers in all": lambda m: [
        m.placement.specs.add(model=f"m{n}", layer_bytes=[1] * 60_000, kv=[pb.KvCost()] * 60_000, max_context=1)
        for n in range(2)
    ],
    "a ring of too many nodes": lambda m: many_stages(m.placement.rings.add(id="r"), MAX_ITEMS + 1),
}


@pytest.mark.parametrize("case", HEARTBEATS)
async def test_heartbeats(served: tuple[Handlers, str], client: RpcClient, case: str) -> None:
    handlers, peer = served
    message = to_message(Heartbeat(report("hostile")), pb.Heartbeat)
    HEARTBEATS[case](message)
    assert isinstance(await answer(peer, EXCHANGE, message.SerializeToString()), Incompatible)
    assert not handlers.heartbeats
    await still_serves(client, peer)


async def test_what_is_only_shown_or_only_helps_is_cut(served: tuple[Handlers, str]) -> None:
    """Otherwise peers would refuse the heartbeats of a head with many broken models."""
    handlers, peer = served
    message = to_message(Heartbeat(report("talkative")), pb.Heartbeat)
    message.report.models.extend([pb.HeldModel(id="m")] * (MAX_MODELS + 1))
    message.report.stages.add(shard=pb.Shard(model="m", end=1), state="failed", error="x" * (MAX_TEXT_CHARS + 1))
    many = [f"10.0.{n // 256}.{n % 256}" for n in range(MAX_ITEMS)]
    message.report.info.addresses[:] = many
    message.report.peers.extend(pb.PeerHint(id=f"p{n}", addresses=many) for n in range(MAX_NODES + 1))
    message.placement.refused.extend(pb.Refusal(model=f"m{n}", code="no_capacity") for n in range(MAX_ITEMS + 1))
    message.placement.refused[0].message = message.placement.refused[0].hint = "x" * MAX_TEXT_CHARS
    async with grpc.aio.insecure_channel(peer) as channel:
        await channel.unary_unary(EXCHANGE)(message.SerializeToString(), timeout=PATIENCE_S)
    taken = handlers.heartbeats[-1]
    assert taken.placement
    assert (len(taken.report.models), len(taken.placement.refused)) == (MAX_MODELS, MAX_ITEMS)
    assert len(taken.report.info.addresses) == MAX_ADDRESSES
    assert [len(peer.addresses) for peer in taken.report.peers] == [MAX_ADDRESSES] * MAX_NODES
    assert len(taken.report.stages[0].error) == MAX_TEXT_CHARS
    assert len(taken.placement.refused[0].message + taken.placement.refused[0].hint) == MAX_TEXT_CHARS


@pytest.mark.parametrize("method", ["Want", "Describe"])
async def test_models(served: tuple[Handlers, str], client: RpcClient, method: str) -> None:
    _, peer = served
    for asked in ({"model": "x" * (MAX_NAME_CHARS + 1)}, {"model": "m\x1b[2J"}, {"model": "m", "kv_bits": 5}):
        message = pb.ModelRequest(**asked).SerializeToString()
        assert isinstance(await answer(peer, f"/pippin.control.Control/{method}", message), Incompatible)
    await still_serves(client, peer)


async def test_a_call_that_this_version_does_not_know(served: tuple[Handlers, str], client: RpcClient) -> None:
    """Nodes of the version before ask for a proof of their own id where another node seems to have it."""
    _, peer = served
    assert isinstance(await answer(peer, "/pippin.control.Control/Prove", b"\n\x20" + bytes(32)), Incompatible)
    await still_serves(client, peer)


REQUESTS: dict[str, Callable[[serving_pb2.GenerateRequest], object]] = {
    "no prompt": lambda m: m.ClearField("prompt"),
    "more tokens than can be counted": lambda m: setattr(m, "max_tokens", (1 << 32) - 1),
    "more candidates than can be counted": lambda m: setattr(m.sampling, "top_k", (1 << 32) - 1),
    "more log-probabilities than can be counted": lambda m: setattr(m.sampling, "logprobs", (1 << 32) - 1),
    "a log-probability of each token": lambda m: setattr(m.sampling, "logprobs", 150_000),
    "too many tokens to stop at": lambda m: m.stop_tokens.extend(range(MAX_ITEMS + 1)),
    "too many biases": lambda m: m.sampling.logit_bias.update(dict.fromkeys(range(MAX_ITEMS + 1), 1.0)),
    "a temperature that is no number": lambda m: setattr(m.sampling, "temperature", float("nan")),
    "a temperature below zero": lambda m: setattr(m.sampling, "temperature", -1.0),
    "a penalty without end": lambda m: setattr(m.sampling, "presence_penalty", float("-inf")),
    "a bias that is no number": lambda m: m.sampling.logit_bias.update({1: float("nan")}),
}


@pytest.mark.parametrize("case", REQUESTS)
async def test_requests(served: tuple[Handlers, str], client: RpcClient, case: str) -> None:
    _, peer = served
    message = serving_pb2.GenerateRequest(id="r", ring="r", model="m", prompt=[1], max_tokens=5)
    REQUESTS[case](message)
    assert isinstance(await answer(peer, "/pippin.serving.Serving/Generate", message.SerializeToString()), Incompatible)
    await still_serves(client, peer)


EVALUATIONS: dict[str, Callable[[serving_pb2.EvaluateRequest], object]] = {
    "no text": lambda m: m.ClearField("prompt"),
    "more candidates than can be counted": lambda m: setattr(m, "top", (1 << 32) - 1),
}


@pytest.mark.parametrize("case", EVALUATIONS)
async def test_evaluations(served: tuple[Handlers, str], client: RpcClient, case: str) -> None:
    _, peer = served
    message = serving_pb2.EvaluateRequest(id="r", ring="r", model="m", prompt=[1], top=1)
    EVALUATIONS[case](message)
    assert isinstance(await answer(peer, "/pippin.serving.Serving/Evaluate", message.SerializeToString()), Incompatible)
    await still_serves(client, peer)


@pytest.mark.parametrize(
    "method",
    [
        EXCHANGE,
        "/pippin.control.Control/Want",
        "/pippin.control.Control/Describe",
        "/pippin.control.Control/Log",
        "/pippin.serving.Files/List",
        "/pippin.serving.Files/Read",
        "/pippin.serving.Serving/Generate",
        "/pippin.serving.Serving/Evaluate",
    ],
)
async def test_bytes_that_are_no_message(served: tuple[Handlers, str], client: RpcClient, method: str) -> None:
    _, peer = served
    assert isinstance(await answer(peer, method, b"\xff" * 50), BadRequest)
    most = MAX_REQUEST_BYTES if method == GENERATE else MAX_CONTROL_BYTES
    too_long = await answer(peer, method, bytes(most + 1))
    assert isinstance(too_long, BadRequest)
    assert f"{most:,}" in too_long.message
    await still_serves(client, peer)


async def test_a_message_larger_than_any_frame(served: tuple[Handlers, str], client: RpcClient) -> None:
    """The server refuses it after its length, before its bytes."""
    _, peer = served
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(peer, options=options) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(EXCHANGE)(bytes(channel_options.MAX_MESSAGE_BYTES + 1), timeout=PATIENCE_S)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await still_serves(client, peer)


async def test_headers_without_end(served: tuple[Handlers, str], client: RpcClient) -> None:
    _, peer = served
    async with grpc.aio.insecure_channel(peer, options=[("grpc.max_metadata_size", 1 << 24)]) as channel:
        metadata = tuple((f"header-{n}", "x" * 1000) for n in range(1000))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(EXCHANGE)(b"", timeout=PATIENCE_S, metadata=metadata)
    # The connection is closed, too, perhaps before the answer is sent.
    assert error.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    await still_serves(client, peer)


def http2(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that becomes the first entry of HPACK's table."""
    return b"\x40" + bytes([len(name)]) + name + bytes([len(value)]) + value


CALL = b"\x83\x86" + b"".join(
    literal(*header)
    for header in (
        (b":path", EXCHANGE.encode()),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)


@pytest.mark.parametrize("streams", [1, 200])
async def test_headers_of_one_byte_each_end_their_connection(
    served: tuple[Handlers, str], client: RpcClient, streams: int, caplog: pytest.LogCaptureFixture
) -> None:
    """HPACK tells a known header by one byte; each takes more than a hundred in memory, until a message comes."""
    _, peer = served
    host, _, port = peer.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2(4, 0, 0, b""))
    for number in range(streams):
        writer.write(http2(1, 4, 2 * number + 1, CALL + literal(b"k", b"v") + b"\xbe" * 10_000))
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            await reader.read()
    writer.close()
    assert [record.message for record in caplog.records] == [
        "a connection of 127.0.0.1 was closed: a call had more than 64 headers"
    ]
    await still_serves(client, peer)


async def test_bytes_that_are_no_frame_end_their_link_only(served: tuple[Handlers, str], client: RpcClient) -> None:
    handlers, peer = served
    link = client.link(Address(peer), lambda reason: None)
    await link.send(frame(b"before"))
    assert isinstance(await answer_to_frame(peer, b"\xff" * 50), BadRequest)
    assert isinstance(await answer_to_frame(peer, b"\xff\xff\xff\x7f"), BadRequest)
    await link.send(frame(b"after"))
    assert [bytes((await next_frame(handlers)).tensors[0].data) for _ in range(2)] == [b"before", b"after"]
    link.close()


async def next_frame(handlers: Handlers) -> Frame:
    return await asyncio.wait_for(handlers.frames_taken.get(), PATIENCE_S)


async def answer_to_frame(peer: str, data: bytes) -> PippinError:
    async with grpc.aio.insecure_channel(peer) as channel:
        call = channel.stream_unary(FRAMES_METHOD)()
        with contextlib.suppress(grpc.aio.AioRpcError):  # may be refused by now
            await call.write(data)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
    return to_error(error.value, peer)


async def test_more_calls_than_a_node_takes(client: RpcClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent links, up to the limit; when they end, calls are accepted again."""
    monkeypatch.setattr(server_module, "MAX_CALLS", 20)
    async with serving() as (_, peer):
        async with grpc.aio.insecure_channel(peer) as channel:
            calls = [channel.stream_unary(FRAMES_METHOD)() for _ in range(30)]
            codes = [asyncio.create_task(call.code()) for call in calls]
            async with asyncio.timeout(PATIENCE_S):
                while sum(code.done() for code in codes) < 10:
                    await asyncio.wait([code for code in codes if not code.done()], return_when="FIRST_COMPLETED")
            assert {code.result() for code in codes if code.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            with pytest.raises(PippinError):
                await client.probe(Address(peer), PATIENCE_S)
            for call in calls:
                call.cancel()
            await asyncio.wait(codes, timeout=PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await client.probe(Address(peer), PATIENCE_S)
                except PippinError:
                    continue
                break
        await still_serves(client, peer)


async def test_one_connection_has_so_many_streams(client: RpcClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """More streams wait at their sender; meanwhile another connection is served."""
    options = dict(channel_options.SERVER_OPTIONS) | {"grpc.max_concurrent_streams": 10}
    monkeypatch.setattr(server_module, "SERVER_OPTIONS", tuple(options.items()))
    async with serving() as (_, peer), grpc.aio.insecure_channel(peer) as channel:
        calls = [channel.stream_unary(FRAMES_METHOD)() for _ in range(10)]
        for call in calls:
            await call.wait_for_connection()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary("/pippin.control.Control/Probe")(b"", timeout=0.5)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await still_serves(client, peer)


async def test_callers_from_elsewhere_are_not_let_in_without_a_secret(
    client: RpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "host_of", lambda _: "203.0.113.9")
    async with serving() as (handlers, peer):
        with pytest.raises(NotAdmitted, match=r"203\.0\.113\.9.*--secret-file"):
            await client.exchange(Address(peer), Heartbeat(report("far")), 5)
        with pytest.raises(NotAdmitted):
            await anext(client.generate(Address(peer), "r", GenerateRequest("r", "m", (1, 2), 2)))
        assert isinstance(await answer_to_frame(peer, b""), NotAdmitted)
        assert not handlers.heartbeats


async def test_an_error_of_any_length_arrives(client: RpcClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The space for headers is small, and an error that exceeds it would lose its code."""

    def exchange(self: Handlers, heartbeat: Heartbeat, caller: Caller) -> Heartbeat:
        raise StaleFence("é" * 100_000, hint="€" * 100_000)

    monkeypatch.setattr(Handlers, "exchange", exchange)
    async with serving() as (_, peer):
        with pytest.raises(StaleFence, match="^éééé"):
            await client.exchange(Address(peer), Heartbeat(report("caller")), 5)
