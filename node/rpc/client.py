"""Calls to other nodes. Each has a deadline; each failure is raised as a PippinError."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import grpc
from google.protobuf.message import Message

from node.core.addresses import split_host_port
from node.core.commands import Command, DrainNode, KeepModel, LoadModel, UnloadModel
from node.core.errors import Incompatible, PeerTimeout, PeerUnavailable, PippinError
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.generation import GenerateRequest, PromptProgress, TokenEvent
from node.core.model_files import Listing
from node.core.models import ModelSpec, ModelVersion
from node.core.nodes import Address
from node.core.reports import Heartbeat
from node.core.response_ids import Ask
from node.rpc.boundary import calling
from node.rpc.bounds import checked
from node.rpc.channel_options import CHANNEL_OPTIONS, CONTROL_OPTIONS, Options
from node.rpc.link import FrameLink
from node.rpc.mapping import from_message, to_message
from node.rpc.security import Security
from node.rpc.server import FRAMES_METHOD
from node.wire import control_pb2, serving_pb2
from node.wire.control_pb2_grpc import ControlStub
from node.wire.serving_pb2_grpc import FilesStub, KvStub, ServingStub

CALL_TIMEOUT_S = 5.0
"""For calls that a healthy node answers at once, and for what it does at once: to adopt a placement without a model, to report its
new state. A slower one is about to leave the cluster.
"""
DECIDE_TIMEOUT_S = 15.0
"""The head calls the node in question, and waits for its answer."""
DESCRIBE_TIMEOUT_S = 60.0
"""Time to read the headers of a big model's files from a slow disk."""
STALL_TIMEOUT_S = 30.0
"""Silence while reading a file: a disk that has to wake up takes some 10 s."""
FIND_TIMEOUT_S = 1.0
"""To tell which KV it has, a node looks only into its memory; a prompt waits for the answer."""
RESPONSE_TIMEOUT_S = 60.0
"""For a whole response of MAX_RESPONSE_BYTES: a peer that sends it byte by byte would otherwise hold its place for ever."""
MAX_RESPONSE_BYTES = 64 * 2**20
"""As many as a node keeps of all responses together."""
PART_S = 0.002
"""Seconds that a part of a copy takes at its rate. A frame may have to wait behind one, and each wakes the event loop."""
BANDWIDTH_BYTES = 4 * 2**20
"""Payload by which a path's bandwidth is measured: as large as the hidden states of a chunk of a prompt."""
_FIRST_BYTES = 256 * 1024
SLOW_BANDWIDTH = 5 * 2**20
"""Bytes per second of a path that is not filled for a second with the large payload: heartbeats would be late."""
_COMMANDS: dict[type[Command], tuple[str, type[Message], float]] = {
    LoadModel: ("Load", control_pb2.LoadRequest, DESCRIBE_TIMEOUT_S),
    UnloadModel: ("Unload", control_pb2.ModelRequest, DECIDE_TIMEOUT_S),
    KeepModel: ("Keep", control_pb2.KeepRequest, DECIDE_TIMEOUT_S),
    DrainNode: ("Drain", control_pb2.DrainRequest, DECIDE_TIMEOUT_S),
}
"""Method, message and timeout of each command."""


class RpcClient(AbstractAsyncContextManager["RpcClient"]):
    """gRPC client with one channel per peer and purpose, so that frames and files do not delay heartbeats."""

    def __init__(self, security: Security | None = None) -> None:
        """`security`: connect only to nodes with the same secret, and among those only to the node that is meant."""
        self._security = security
        self._channels: dict[tuple[Address, str], grpc.aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def __aexit__(self, *_: object) -> None:
        for peer in {peer for peer, _ in self._channels}:
            self.drop(peer)
        await asyncio.gather(*self._closing)

    def drop(self, peer: Address) -> None:
        """Close all connections to a peer: calls in progress fail with PeerUnavailable, later ones reconnect."""
        for _, purpose in [key for key in self._channels if key[0] == peer]:
            self._close(peer, purpose)

    def drop_control(self, peer: Address) -> None:
        """Close the connection for heartbeats only."""
        self._close(peer, "control")

    def _close(self, peer: Address, purpose: str) -> None:
        if channel := self._channels.pop((peer, purpose), None):
            task = asyncio.create_task(channel.close(), name=f"close {peer}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _channel(self, peer: Address, purpose: str) -> grpc.aio.Channel:
        key = (peer, purpose)
        if key not in self._channels:
            self._channels[key] = self._connect(peer, CONTROL_OPTIONS if purpose == "control" else CHANNEL_OPTIONS)
        return self._channels[key]

    def _connect(self, peer: Address, options: Options) -> grpc.aio.Channel:
        """Open a channel. Raises PeerUnavailable for an invalid node id."""
        options = (*options, ("grpc.use_local_subchannel_pool", 1))  # a separate connection
        target = peer.target.replace("%", "%25")  # gRPC decodes it: the zone of fe80::1%ab0 would be a byte
        if self._security is None:
            return grpc.aio.insecure_channel(target, options=options)
        options = (*options, ("grpc.ssl_target_name_override", self._security.server_name))
        return grpc.aio.secure_channel(target, self._security.channel_credentials(peer.node), options=options)

    async def _ask(self, peer: Address, method: str, message: Message, timeout_s: float) -> Any:
        """The answer to a call of the control plane."""
        control = ControlStub(self._channel(peer, "control"))
        with calling(peer.target):
            return checked(await getattr(control, method)(message, timeout=timeout_s))

    async def exchange(self, peer: Address, heartbeat: Heartbeat, timeout_s: float) -> Heartbeat:
        message = to_message(heartbeat, control_pb2.Heartbeat)
        return from_message(await self._ask(peer, "Exchange", message, timeout_s), Heartbeat)

    async def disconnected(self, peer: Address) -> None:
        """Return when the connection for heartbeats is lost or dropped, or cannot be established.

        It is established if there is none: of a pair of nodes, one may never call the other.
        """
        channel = self._channel(peer, "control")
        none = (grpc.ChannelConnectivity.SHUTDOWN, grpc.ChannelConnectivity.TRANSIENT_FAILURE)
        state, before = channel.get_state(try_to_connect=True), None
        while state not in none and before is not grpc.ChannelConnectivity.READY:
            await channel.wait_for_state_change(state)
            state, before = channel.get_state(try_to_connect=True), state

    async def refuses(self, peer: Address) -> bool:
        """Whether the peer's machine refuses a new TCP connection now. gRPC's channel state may be outdated."""
        host, port = split_host_port(peer.target)
        try:
            async with asyncio.timeout(0.3):  # a reachable machine refuses a connection within a round trip
                _, writer = await asyncio.open_connection(host, port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False

    async def probe(self, peer: Address, timeout_s: float) -> float:
        """Measure the round trip, in milliseconds."""
        begin = time.perf_counter()
        await self._ask(peer, "Probe", control_pb2.ProbeRequest(), timeout_s)
        return (time.perf_counter() - begin) * 1000

    async def bandwidth(self, peer: Address, timeout_s: float) -> float:
        """Measure the bytes per second to a peer, over a connection of its own.

        9 MB are sent, or less than 1 MB on a slow path. What does not arrive within `timeout_s` counts as if it had.
        """
        stub = ControlStub(self._channel(peer, "bandwidth"))

        async def rate(size: int) -> float:
            begin = time.perf_counter()
            await stub.Probe(control_pb2.ProbeRequest(payload=bytes(size)), timeout=timeout_s)
            return size / (time.perf_counter() - begin)

        async def most(size: int, times: int) -> float:
            try:
                with calling(peer.target):
                    return max([await rate(size) for _ in range(times)])
            except PeerTimeout:
                return size / timeout_s

        try:
            with calling(peer.target):
                await rate(0)  # connects
            first = await most(_FIRST_BYTES, 3)
            return first if first < SLOW_BANDWIDTH else await most(BANDWIDTH_BYTES, 2)
        finally:
            self._close(peer, "bandwidth")

    async def leave(self, peer: Address, node_id: str, incarnation: int, timeout_s: float) -> None:
        await self._ask(peer, "Leave", control_pb2.Departure(id=node_id, incarnation=incarnation), timeout_s)

    async def want(self, peer: Address, model: str) -> None:
        await self._ask(peer, "Want", control_pb2.ModelRequest(model=model), DESCRIBE_TIMEOUT_S)

    async def command(self, peer: Address, command: Command) -> None:
        """Have the head carry out a user's command."""
        method, kind, timeout_s = _COMMANDS[type(command)]
        await self._ask(peer, method, to_message(command, kind), timeout_s)

    async def release(self, peer: Address, model: str) -> None:
        await self._ask(peer, "Release", control_pb2.ModelRequest(model=model), CALL_TIMEOUT_S)

    async def set_draining(self, peer: Address, node: str, *, draining: bool) -> None:
        await self._ask(peer, "SetDraining", control_pb2.DrainRequest(node=node, draining=draining), CALL_TIMEOUT_S)

    async def describe(self, peer: Address, version: ModelVersion) -> ModelSpec:
        message = to_message(version, control_pb2.ModelRequest)
        return from_message(await self._ask(peer, "Describe", message, DESCRIBE_TIMEOUT_S), ModelSpec)

    async def log(self, peer: Address, lines: int, *, follow: bool) -> AsyncGenerator[list[str], None]:
        """Yield lines of a peer's log, as RecentLines.read. Raises Incompatible for a peer that is too old."""
        stub = ControlStub(self._channel(peer, "files"))
        call = stub.Log(control_pb2.LogRequest(lines=lines, follow=follow), timeout=None if follow else STALL_TIMEOUT_S)
        count = 0
        async with aclosing(_parts(call, peer, "its log")) as parts:
            async for part in parts:
                count += len(part.lines)
                if count > lines and not follow:
                    raise Incompatible(f"{peer.target} sent more than {lines:,} lines of its log.")
                yield list(part.lines)

    async def response(self, peer: Address, ask: Ask, response_id: str) -> bytes:
        """A response that a peer keeps, as JSON of at most MAX_RESPONSE_BYTES; it may be cancelled or deleted as well."""
        stub = ControlStub(self._channel(peer, "files"))
        call = stub.Response(control_pb2.ResponseRequest(id=response_id, ask=ask), timeout=RESPONSE_TIMEOUT_S)
        data = bytearray()
        async with aclosing(_parts(call, peer, "a response")) as parts:
            async for part in parts:
                data += part.data
                if len(data) > MAX_RESPONSE_BYTES:
                    raise Incompatible(f"{peer.target} sent more than {MAX_RESPONSE_BYTES:,} bytes of a response.")
        return bytes(data)

    async def events(self, peer: Address, response_id: str, first: int) -> AsyncGenerator[bytes, None]:
        """Yield events of a response that a peer keeps, as ControlHandler.events. Raises Incompatible for one that is too old."""
        stub = ControlStub(self._channel(peer, "files"))
        call = stub.Events(control_pb2.EventsRequest(id=response_id, first=first))
        async with aclosing(_parts(call, peer, "a response's events")) as parts:
            async for part in parts:
                yield part.data

    async def generate(
        self, peer: Address, ring: str, request: GenerateRequest
    ) -> AsyncGenerator[TokenEvent | PromptProgress, None]:
        """Generate tokens on a driver, whose own deadlines end the stream.

        Closing the generator cancels the session.
        """
        stub = ServingStub(self._channel(peer, "serving"))
        call = stub.Generate(to_message(request, serving_pb2.GenerateRequest, ring=ring))
        try:
            with calling(peer.target):
                async for message in call:
                    for event in checked(message).events:
                        yield from_message(event, TokenEvent)
                    if message.HasField("progress"):
                        yield from_message(message.progress, PromptProgress)
        finally:
            call.cancel()

    async def evaluate(self, peer: Address, ring: str, request: EvaluateRequest) -> Evaluation:
        """Score or embed a text on a driver, whose own deadlines apply. Cancelling it frees the session."""
        stub = ServingStub(self._channel(peer, "serving"))
        call = stub.Evaluate(to_message(request, serving_pb2.EvaluateRequest, ring=ring))
        try:
            with calling(peer.target):
                parts = [from_message(checked(part), Evaluation) async for part in call]
        finally:
            call.cancel()
        if not parts:
            raise PeerUnavailable(f"{peer.target} ended without an answer.")
        scores = [score for part in parts for score in part.scores]
        rest = parts[-1]  # an answer of several parts has only scores
        return Evaluation(scores, rest.embedding, rest.among)

    async def listing(self, peer: Address, model: str, revision: str) -> Listing:
        stub = FilesStub(self._channel(peer, "files"))
        with calling(peer.target):
            answer = await stub.List(serving_pb2.FileRequest(model=model, revision=revision), timeout=CALL_TIMEOUT_S)
            return from_message(checked(answer), Listing)

    async def read(
        self, peer: Address, model: str, revision: str, name: str, offset: int, length: int = 0
    ) -> AsyncGenerator[tuple[bytes, str], None]:
        """Yield chunks of a file, as `FilesHandler.read`. A peer of the protocol before sends all from `offset` on."""
        stub = FilesStub(self._channel(peer, "files"))
        span = {"offset": offset, "length": length}
        call = stub.Read(serving_pb2.FileRequest(model=model, revision=revision, name=name, **span))
        async with aclosing(_parts(call, peer, name)) as parts:
            async for chunk in parts:
                yield chunk.data, chunk.sha256

    async def find_kv(self, peer: Address, chain: bytes) -> list[tuple[int, int, int]]:
        """As KvHandler.find; nothing of a peer that is too old."""
        stub = KvStub(self._channel(peer, "files"))
        with calling(peer.target):
            answer = checked(await stub.Find(serving_pb2.KvQuery(chain=chain), timeout=FIND_TIMEOUT_S))
            return [(span.block, span.first, span.end) for span in answer.spans]

    async def read_kv(self, peer: Address, chain: bytes, caches: range, most: int) -> AsyncGenerator[bytearray, None]:
        """Yield blocks of at most so many bytes, as KvHandler.read."""
        stub = KvStub(self._channel(peer, "files"))
        call = stub.Read(serving_pb2.KvQuery(chain=chain, first=caches.start, end=caches.stop))
        block = bytearray()
        async with aclosing(_parts(call, peer, "KV")) as parts:
            async for part in parts:
                block += part.data
                if len(block) > most:
                    raise Incompatible(f"{peer.target} sent more than {most:,} bytes of a block of KV.")
                if part.ends:
                    yield block
                    block = bytearray()

    async def keep_kv(self, peer: Address, model: str, chain: bytes, block: bytes, bytes_per_s: float) -> None:
        """As KvHandler.keep; the block is sent at most at this rate."""

        async def parts() -> AsyncGenerator[serving_pb2.KvCopy, None]:
            names = {"model": model, "chain": chain}
            async for data in paced(block, bytes_per_s):
                yield serving_pb2.KvCopy(data=data, **names)  # type: ignore[arg-type]
                names = {}

        stub = KvStub(self._channel(peer, "copies"))
        with calling(peer.target):
            await stub.Keep(parts(), timeout=STALL_TIMEOUT_S + len(block) / bytes_per_s)

    async def discard_kv(self, peer: Address, chain: bytes) -> None:
        stub = KvStub(self._channel(peer, "copies"))
        with calling(peer.target):
            await stub.Discard(serving_pb2.KvQuery(chain=chain), timeout=CALL_TIMEOUT_S)

    def link(self, peer: Address, on_broken: Callable[[PippinError], None]) -> FrameLink:
        return FrameLink(self._channel(peer, "frames"), FRAMES_METHOD, peer.target, on_broken)


async def paced(block: bytes, bytes_per_s: float) -> AsyncGenerator[bytes, None]:
    """The parts of a block, at most so many bytes in a second."""
    size = max(1, int(bytes_per_s * PART_S))
    for begin in range(0, len(block), size):
        data = block[begin : begin + size]
        yield data
        await asyncio.sleep(len(data) / bytes_per_s)


async def _parts(call: grpc.aio.UnaryStreamCall[Any, Any], peer: Address, what: str) -> AsyncGenerator[Any, None]:
    """Yield the messages of a stream in which a healthy node is never silent for long. Closing it cancels the call."""
    try:
        with calling(peer.target):
            while True:
                async with asyncio.timeout(STALL_TIMEOUT_S):
                    part: Any = await call.read()
                if part is grpc.aio.EOF:
                    return
                yield checked(part)
    except TimeoutError as error:
        raise PeerUnavailable(f"{peer.target} has sent nothing of {what} for {STALL_TIMEOUT_S:.0f} s.") from error
    finally:
        call.cancel()
