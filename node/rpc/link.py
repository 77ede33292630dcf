"""The way to the next stage of a ring: one long-lived stream of frames."""

import asyncio
import logging
from collections.abc import Callable

import grpc

from node.core.errors import PeerUnavailable, PippinError
from node.core.frames import Frame
from node.rpc.boundary import is_cancelled, to_error
from node.rpc.frame_codec import encode

log = logging.getLogger(__name__)


class Link:
    """Sends frames in order. Once broken it stays so; `on_broken` is called once, with the reason, unless closed.

    There is no timeout on a send: a peer that takes no bytes lets the driver's step time out, which closes its links, and
    so on round the ring.
    """

    def __init__(
        self, channel: grpc.aio.Channel, method: str, peer: str, on_broken: Callable[[PippinError], None]
    ) -> None:
        self._peer = peer
        self._on_broken = on_broken
        self._call: grpc.aio.StreamUnaryCall[bytes, bytes] = channel.stream_unary(method)()
        self._connected = False
        self._closed = False
        self._reporting: asyncio.Task[None] | None = None
        self._error: PippinError | None = None
        self._call.add_done_callback(lambda _: self._ended())

    async def send(self, frame: Frame) -> None:
        """Raises PeerUnavailable (or what the peer answered) when the link is or gets broken."""
        if self._error:
            raise self._error
        try:
            if not self._connected:
                await self._connect()
            await self._call.write(encode(frame))
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise await self._reason() from error
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            raise await self._reason() from error

    async def _connect(self) -> None:
        """A write without a connection would wait for ever if the call ended before there is one (grpcio 1.85)."""
        connecting = asyncio.create_task(self._call.wait_for_connection(), name=f"connect to {self._peer}")

        def give_up(_: object) -> None:
            connecting.cancel()

        self._call.add_done_callback(give_up)
        await connecting
        self._connected = True

    def close(self) -> None:
        """Frames that the peer has not read yet may be lost."""
        self._closed = True
        self._call.cancel()

    async def _reason(self) -> PippinError:
        try:
            await self._call
        except grpc.aio.AioRpcError as error:
            return to_error(error, self._peer)
        except asyncio.CancelledError:
            if not self._call.cancelled():
                raise
        return PeerUnavailable(f"The link to {self._peer} is closed.")

    def _ended(self) -> None:
        if not self._closed:
            self._reporting = asyncio.create_task(self._report(), name=f"link to {self._peer}")

    async def _report(self) -> None:
        self._error = await self._reason()
        log.info("the link to %s broke: %s", self._peer, self._error)
        if not self._closed:
            self._on_broken(self._error)
