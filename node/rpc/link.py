"""Link to the next stage of a ring: one long-lived stream of frames."""

import asyncio
import logging
from collections.abc import Callable

import grpc

from node.core.errors import PeerUnavailable, PippinError
from node.core.frames import Frame
from node.rpc.boundary import is_cancelled, to_error
from node.rpc.frame_codec import encode

log = logging.getLogger(__name__)


class FrameLink:
    """Sends frames in order. A broken link stays broken; `on_broken` is called once with the reason, unless it was
    closed.

    Sends have no timeout: if a peer takes no bytes, the driver's step times out and closes its links, which in turn
    ends the other links of the ring.
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
        self._call.add_done_callback(self._ended)

    async def send(self, frame: Frame) -> None:
        """Send a frame.

        Raises PeerUnavailable (or the error that the peer answered) if the link is broken or breaks.
        """
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
        """Wait for the connection: a write before it would block forever if the call ended meanwhile (grpcio 1.85)."""
        connecting = asyncio.create_task(self._call.wait_for_connection(), name=f"connect to {self._peer}")

        def give_up(_: object) -> None:
            connecting.cancel()

        self._call.add_done_callback(give_up)
        await connecting
        self._connected = True

    def close(self) -> None:
        """Close the link. Frames that the peer has not read yet may be lost."""
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

    def _ended(self, _: object) -> None:
        if not self._closed:
            self._reporting = asyncio.create_task(self._report(), name=f"link to {self._peer}")

    async def _report(self) -> None:
        self._error = await self._reason()
        log.debug("the link to %s broke: %s", self._peer, self._error)
        if not self._closed:
            self._on_broken(self._error)
