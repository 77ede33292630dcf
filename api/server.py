"""The HTTP server of a node: one listening port on each of its addresses."""

import errno
import logging
import socket
from collections.abc import Sequence
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from api.drain import DRAIN
from node.core.errors import PortTaken

CLOSE_S = 1.0
"""For the last bytes of what is done."""

log = logging.getLogger(__name__)


class ApiServer:
    """Bound before it serves: the port is known, and refused if it is taken, before anything else starts."""

    def __init__(self, hosts: Sequence[str], port: int) -> None:
        """Raises PortTaken. Port 0 is chosen by the system, the same for all hosts."""
        self._sockets: list[socket.socket] = []
        for host in hosts:
            self._sockets.append(_bind(host, port))
            port = self._sockets[0].getsockname()[1]
        self.port = port
        self._runner: web.AppRunner | None = None

    async def start(self, app: web.Application) -> None:
        # A client that hangs up cancels its handler, and so its session, at once.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, logger=_HttpLog(log, {}))
        await self._runner.setup()
        for each in self._sockets:
            await web.SockSite(self._runner, each).start()

    async def stop(self, drain_s: float) -> None:
        """Refuse new requests, which a closed port would not tell from a crash; wait for the answers under way."""
        if self._runner is None:
            return
        await self._runner.app[DRAIN].finish(drain_s)
        for site in list(self._runner.sites):
            await site.stop()
        if self._runner.server:
            await self._runner.server.shutdown(CLOSE_S)
        await self._runner.cleanup()


class _HttpLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log, without a traceback for each scanner and each client that speaks no HTTP."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if isinstance(kwargs.get("exc_info"), HttpProcessingError):
            level, kwargs["exc_info"] = logging.DEBUG, None
        super().log(level, msg, *args, **kwargs)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6 and host == "::":
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        taken = error.errno == errno.EADDRINUSE
        raise PortTaken(
            f"API port {port} of {host} {'is taken' if taken else f'cannot be used: {error.strerror}'}.",
            hint="Is another node running? Choose another port with --api-port, or 0 for any free one.",
        ) from error
    return bound
