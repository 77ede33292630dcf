"""Interceptor of all methods of the gRPC server: admits callers, limits messages, and answers errors."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import lru_cache, partial
from typing import Any, TypeAlias
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from node.core.addresses import is_local_address, split_host_port
from node.core.errors import BadRequest, NotAdmitted
from node.core.nodes import Caller
from node.host.interfaces import with_zone_name
from node.rpc.boundary import answering
from node.rpc.bounds import checked
from node.rpc.channel_options import MAX_CONTROL_BYTES, MAX_HEADERS, MAX_REQUEST_BYTES
from node.rpc.security import node_of

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # at run time it takes no parameters
Read = Callable[[bytes], Any]


GENERATE = "/pippin.serving.Serving/Generate"


class Guard(grpc.aio.ServerInterceptor):
    """`anywhere`: admit any address, as TLS authenticates callers; else only addresses of private networks.

    The guard receives messages as bytes, so that too long or invalid ones are answered with a PippinError. Frames stay
    bytes: their codec has limits of its own.
    """

    def __init__(self, *, anywhere: bool, shut: Callable[[tuple[str, int], str], None]) -> None:
        """`shut`: ends the connection with a remote end, and says why."""
        self._anywhere = anywhere
        self._shut = shut

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        if len(handler_call_details.invocation_metadata) > MAX_HEADERS:
            return grpc.stream_unary_rpc_method_handler(self._refuse)  # it runs before any message has come
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None  # unknown method; gRPC answers
        read, write = handler.request_deserializer, handler.response_serializer
        if handler.stream_unary:
            each = partial(_messages, read) if read else lambda frames: frames
            return grpc.stream_unary_rpc_method_handler(self._answering(handler.stream_unary, each), None, write)
        most = MAX_REQUEST_BYTES if handler_call_details.method == GENERATE else MAX_CONTROL_BYTES
        take = partial(_message, read, most)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._streaming(handler.unary_stream, take), None, write)
        return grpc.unary_unary_rpc_method_handler(self._answering(handler.unary_unary, take), None, write)

    async def _refuse(self, _messages: Any, context: Context) -> None:
        """End a call with too many headers, and its connection: those that wait behind it hold memory until their turn."""
        host, port = split_host_port(unquote(context.peer()).partition(":")[2])
        end = host.removeprefix("::ffff:").partition("%")[0], port  # a socket's own name has the zone apart
        self._shut(end, f"a call had more than {MAX_HEADERS} headers")
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {MAX_HEADERS} headers")

    def _answering(self, method: Any, take: Callable[[Any], Any]) -> Any:
        async def call(data: Any, context: Context) -> Any:
            async with answering(context):
                self._admit(context)
                return await method(take(data), context)

        return call

    def _streaming(self, method: Any, take: Callable[[Any], Any]) -> Any:
        """Wrap a method that streams its answer; its generator is closed when the caller goes away."""

        async def call(data: bytes, context: Context) -> AsyncGenerator[Any, None]:
            async with answering(context):
                self._admit(context)
                async with aclosing(method(take(data), context)) as messages:
                    async for message in messages:
                        yield message

        return call

    def _admit(self, context: Context) -> None:
        """Raises NotAdmitted."""
        caller = caller_of(context)
        if self._anywhere and not caller.node:  # its claims could not be verified
            raise NotAdmitted(f"The certificate of {caller.address} has no node's key.")
        if not self._anywhere and not is_local_address(caller.address):
            raise NotAdmitted(
                f"Without a secret, calls are accepted from private and link-local addresses only, not from {caller.address}.",
                hint="Start all nodes with the same --secret-file.",
            )


def host_of(peer: str) -> str:
    """Host of a gRPC peer such as `ipv4:192.168.1.5:4711` or `ipv6:%5Bfe80::1%252%5D:4711`, with the name of its zone."""
    return with_zone_name(split_host_port(unquote(peer).partition(":")[2])[0])


def caller_of(context: Context) -> Caller:
    shown = list(context.auth_context().get("x509_pem_cert", ()))
    return Caller(host_of(context.peer()), _node_of(shown[0]) if shown else "")


_node_of = lru_cache(maxsize=1024)(node_of)
"""Cached, as parsing a certificate with each heartbeat would cost more than the rest of it."""


def check_sender(node: str, caller: Caller) -> None:
    """Raises NotAdmitted if the caller speaks for another node. Without a secret this cannot be verified."""
    if caller.node and caller.node != node:
        raise NotAdmitted(f"Node {caller.node} at {caller.address} sent a message as node {node!r:.60}.")


async def _messages(read: Read, stream: AsyncIterator[bytes]) -> AsyncGenerator[Any, None]:
    async for data in stream:
        yield _message(read, MAX_CONTROL_BYTES, data)


def _message(read: Read, most: int, data: bytes) -> Any:
    if len(data) > most:
        raise BadRequest(f"A message has {len(data):,} bytes; the maximum is {most:,}.")
    try:
        message = read(data)
    except DecodeError as error:
        raise BadRequest(f"A message of {len(data):,} bytes cannot be parsed: {error}.") from error
    return checked(message)
