"""gRPC server of a node: takes heartbeats, token requests, frames of rings, and requests for model files."""

import asyncio
import resource
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc

from node.core.addresses import join_host_port
from node.core.commands import DrainNode, KeepModel, LoadModel, UnloadModel
from node.core.errors import PeerTimeout, PortTaken
from node.core.evaluation import EvaluateRequest
from node.core.generation import GenerateRequest, PromptProgress
from node.core.models import ModelVersion
from node.core.quota import Quota
from node.core.reports import Heartbeat
from node.core.response_ids import Ask
from node.host.ports import is_served
from node.rpc.boundary import quiet_tracebacks
from node.rpc.channel_options import MAX_CALLS, MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ADDRESS, SERVER_OPTIONS
from node.rpc.connection_limit import ConnectionLimit
from node.rpc.frame_codec import decode
from node.rpc.guard import Guard, caller_of, check_sender
from node.rpc.handlers import ControlHandler, FilesHandler, KvHandler, ServingHandler
from node.rpc.mapping import from_message, member, to_message
from node.rpc.security import Security
from node.wire import control_pb2, serving_pb2
from node.wire.control_pb2_grpc import ControlServicer, add_ControlServicer_to_server
from node.wire.serving_pb2_grpc import (
    FilesServicer,
    KvServicer,
    ServingServicer,
    add_FilesServicer_to_server,
    add_KvServicer_to_server,
    add_ServingServicer_to_server,
)

Context = grpc.aio.ServicerContext[Any, Any]
RESPONSE_PART = 256 * 1024
"""Bytes of a response in one message."""
SCORES_AT_ONCE = 4096
"""Scores in one message; with 20 candidates each they take 1 MB."""
MAX_RESPONSES = 8
"""Responses that are sent at once; each may have megabytes, which stay in memory until the reader has them."""
MAX_RESPONSES_OF_ONE = 4
"""Of those, to one node; it asks for no more at once."""
KV_PART = 1 << 20
"""Bytes of KV in one message."""
KV_READ_S = 60.0
"""Time after which KV is sent no more: a peer that does not read would keep its place. It wants it in much less."""
KV_KEEP_S = 120.0
"""Time after which a copy of a block is not waited for: a peer that sends nothing would keep its place."""
FRAMES_METHOD = "/pippin.serving.RingLink/Frames"


class RpcServer:
    """gRPC server that binds when it is created, so that its handlers can know the port."""

    def __init__(self, hosts: Sequence[str], port: int, security: Security | None = None) -> None:
        """Port 0: the system chooses the port, which is the same for all hosts. Raises PortTaken. Needs a running loop.

        Without `security`, anybody on the networks of this machine may call.
        """
        quiet_tracebacks()
        guard = Guard(anywhere=security is not None, shut=self._shut)
        # This limit leaves descriptors for all other uses.
        most = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        options = (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", most))
        self._server = grpc.aio.server(interceptors=(guard,), options=options, maximum_concurrent_rpcs=MAX_CALLS)
        self._credentials = security.server_credentials() if security else None
        self._limit: ConnectionLimit | None = None
        self._limiting: asyncio.Task[None] | None = None
        self.port = port
        for host in hosts:
            self.port = self._bind(host)

    def _bind(self, host: str) -> int:
        address = join_host_port(host, self.port).replace("%", "%25")  # gRPC decodes it: see RpcClient
        taken = PortTaken(
            f"gRPC port {self.port} of {host} is taken, or this user may not use it.",
            hint="Choose another with --grpc-port.",
        )
        if self.port and is_served(host, self.port):
            raise taken
        try:
            if self._credentials:
                return self._server.add_secure_port(address, self._credentials)
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise taken from error

    async def start(
        self, control: ControlHandler, serving: ServingHandler, files: FilesHandler, kv: KvHandler | None = None
    ) -> None:
        """`kv`: None if this node keeps no KV on its disk."""
        add_ControlServicer_to_server(_Control(control), self._server)
        add_ServingServicer_to_server(_Serving(serving), self._server)
        add_FilesServicer_to_server(_Files(files), self._server)
        if kv:
            add_KvServicer_to_server(_Kv(kv), self._server)
        self._server.add_generic_rpc_handlers((_frames_handler(serving),))
        await self._server.start()
        self._limit = ConnectionLimit(self.port, MAX_CONNECTIONS_OF_ADDRESS)
        self._limiting = asyncio.create_task(self._limit.run(), name="connections")

    def _shut(self, peer: tuple[str, int], why: str) -> None:
        if self._limit:
            self._limit.shut(peer, why)

    async def stop(self, grace_s: float = 1.0) -> None:
        if self._limiting:
            self._limiting.cancel()
        await self._server.stop(grace_s)


class _Control(ControlServicer):
    def __init__(self, handler: ControlHandler) -> None:
        self._handler = handler
        self._readers = Quota("Responses are being sent", MAX_RESPONSES, MAX_RESPONSES_OF_ONE)

    async def Exchange(self, request: control_pb2.Heartbeat, context: Context) -> control_pb2.Heartbeat:
        caller = caller_of(context)
        check_sender(request.report.info.id or request.node, caller)
        answer = self._handler.exchange(from_message(request, Heartbeat), caller)
        return to_message(answer, control_pb2.Heartbeat)

    async def Leave(self, request: control_pb2.Departure, context: Context) -> control_pb2.Empty:
        check_sender(request.id, caller_of(context))
        self._handler.leave(request.id, request.incarnation)
        return control_pb2.Empty()

    async def Probe(self, request: control_pb2.ProbeRequest, context: Context) -> control_pb2.Empty:
        return control_pb2.Empty()

    async def Want(self, request: control_pb2.ModelRequest, context: Context) -> control_pb2.Empty:
        await self._handler.want(request.model)
        return control_pb2.Empty()

    async def Load(self, request: control_pb2.LoadRequest, context: Context) -> control_pb2.Empty:
        await self._handler.command(from_message(request, LoadModel))
        return control_pb2.Empty()

    async def Unload(self, request: control_pb2.ModelRequest, context: Context) -> control_pb2.Empty:
        await self._handler.command(from_message(request, UnloadModel))
        return control_pb2.Empty()

    async def Keep(self, request: control_pb2.KeepRequest, context: Context) -> control_pb2.Empty:
        await self._handler.command(from_message(request, KeepModel))
        return control_pb2.Empty()

    async def Release(self, request: control_pb2.ModelRequest, context: Context) -> control_pb2.Empty:
        await self._handler.release(request.model, caller_of(context))
        return control_pb2.Empty()

    async def Drain(self, request: control_pb2.DrainRequest, context: Context) -> control_pb2.Empty:
        await self._handler.command(from_message(request, DrainNode))
        return control_pb2.Empty()

    async def SetDraining(self, request: control_pb2.DrainRequest, context: Context) -> control_pb2.Empty:
        self._handler.set_draining(request.node, caller_of(context), draining=request.draining)
        return control_pb2.Empty()

    async def Describe(self, request: control_pb2.ModelRequest, context: Context) -> control_pb2.ModelSpec:
        version = from_message(request, ModelVersion)
        return to_message(await self._handler.describe(version), control_pb2.ModelSpec)

    async def Log(self, request: control_pb2.LogRequest, context: Context) -> AsyncGenerator[control_pb2.LogPart, None]:
        async with aclosing(self._handler.log(request.lines, caller_of(context), follow=request.follow)) as parts:
            async for lines in parts:
                yield control_pb2.LogPart(lines=lines)

    async def Response(
        self, request: control_pb2.ResponseRequest, context: Context
    ) -> AsyncGenerator[control_pb2.ResponsePart, None]:
        with self._readers.use(caller_of(context).name):
            data = await self._handler.response(member("ask", Ask, request.ask), request.id)
            for start in range(0, len(data), RESPONSE_PART):
                yield control_pb2.ResponsePart(data=data[start : start + RESPONSE_PART])

    async def Events(
        self, request: control_pb2.EventsRequest, context: Context
    ) -> AsyncGenerator[control_pb2.ResponsePart, None]:
        async with aclosing(self._handler.events(request.id, request.first, caller_of(context))) as parts:
            async for part in parts:
                for start in range(0, max(len(part), 1), RESPONSE_PART):
                    yield control_pb2.ResponsePart(data=part[start : start + RESPONSE_PART])


class _Serving(ServingServicer):
    def __init__(self, handler: ServingHandler) -> None:
        self._handler = handler

    async def Generate(
        self, request: serving_pb2.GenerateRequest, context: Context
    ) -> AsyncGenerator[serving_pb2.TokenEvents, None]:
        async with aclosing(self._handler.generate(request.ring, from_message(request, GenerateRequest))) as events:
            async for event in events:
                if isinstance(event, PromptProgress):
                    yield serving_pb2.TokenEvents(progress=to_message(event, serving_pb2.PromptProgress))
                else:
                    yield serving_pb2.TokenEvents(events=[to_message(event, serving_pb2.TokenEvent)])

    async def Evaluate(
        self, request: serving_pb2.EvaluateRequest, context: Context
    ) -> AsyncGenerator[serving_pb2.Evaluation, None]:
        asked = from_message(request, EvaluateRequest)
        found = await self._handler.evaluate(request.ring, asked)
        for begin in range(0, max(len(found.scores), 1), SCORES_AT_ONCE):
            part = replace(found, scores=found.scores[begin : begin + SCORES_AT_ONCE])
            yield to_message(part, serving_pb2.Evaluation)


class _Files(FilesServicer):
    def __init__(self, handler: FilesHandler) -> None:
        self._handler = handler

    async def List(self, request: serving_pb2.FileRequest, context: Context) -> serving_pb2.Listing:
        return to_message(await self._handler.listing(request.model, request.revision), serving_pb2.Listing)

    async def Read(
        self, request: serving_pb2.FileRequest, context: Context
    ) -> AsyncGenerator[serving_pb2.FileChunk, None]:
        span = request.offset, request.length
        async for data, sha256 in self._handler.read(request.model, request.revision, request.name, *span):
            yield serving_pb2.FileChunk(data=data, sha256=sha256)


class _Kv(KvServicer):
    def __init__(self, handler: KvHandler) -> None:
        self._handler = handler

    async def Find(self, request: serving_pb2.KvQuery, context: Context) -> serving_pb2.KvFound:
        spans = await self._handler.find(request.chain, caller_of(context))
        return serving_pb2.KvFound(spans=[serving_pb2.KvSpan(block=k, first=a, end=b) for k, a, b in spans])

    async def Read(self, request: serving_pb2.KvQuery, context: Context) -> AsyncGenerator[serving_pb2.KvPart, None]:
        caches = range(request.first, request.end)
        reading = self._handler.read(request.chain, caches, caller_of(context))
        async with asyncio.timeout(KV_READ_S), aclosing(reading) as blocks:
            async for data in blocks:
                for begin in range(0, len(data), KV_PART):
                    part = data[begin : begin + KV_PART]
                    yield serving_pb2.KvPart(data=part, ends=begin + KV_PART >= len(data))

    async def Keep(self, requests: AsyncIterator[serving_pb2.KvCopy], context: Context) -> serving_pb2.KvKept:
        first = await anext(requests, serving_pb2.KvCopy())

        async def parts() -> AsyncGenerator[bytes, None]:
            yield first.data
            async for part in requests:
                yield part.data

        try:
            async with asyncio.timeout(KV_KEEP_S), aclosing(parts()) as data:
                await self._handler.keep(first.model, first.chain, data, caller_of(context))
        except TimeoutError as error:
            raise PeerTimeout(f"A copy of a block of KV did not come within {KV_KEEP_S:.0f} s.") from error
        return serving_pb2.KvKept()

    async def Discard(self, request: serving_pb2.KvQuery, context: Context) -> serving_pb2.KvKept:
        await self._handler.discard(request.chain, caller_of(context))
        return serving_pb2.KvKept()


def _frames_handler(serving: ServingHandler) -> grpc.GenericRpcHandler:
    """Handler of frames. Without a (de)serializer gRPC passes their bytes unchanged."""

    async def receive(frames: AsyncIterator[bytes], context: Context) -> bytes:
        await serving.serve_link((decode(data) async for data in frames), caller_of(context))
        return b""

    service, name = FRAMES_METHOD.strip("/").split("/")
    return grpc.method_handlers_generic_handler(service, {name: grpc.stream_unary_rpc_method_handler(receive)})
