"""The HTTP server of a node: one listening port on each of its addresses, or two."""

import asyncio
import errno
import json
import logging
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from api.http.access_log import HEADER, new_request_id
from api.http.connections import ConnectionLimits, Connections
from api.http.errors import describe, error_object
from api.http.in_flight import IN_FLIGHT
from api.http.limits import CLOSE_S, MAX_HEADERS, MAX_WAITING, MAX_WAITING_BODIES
from api.http.reading_pace import ReadingPace
from node.core.errors import Overloaded, PortTaken
from node.host.ports import is_served

TAKEN_HINT = "Is another node running? Choose another port with --api-port, or 0 for any free one."
OLLAMA_TAKEN_HINT = "Is Ollama running? Quit it, choose another port with --ollama-port, or leave the option out."
TOO_MANY = Overloaded("Too many connections are open already.", hint="Close some of them, or try again soon.")
HEAD = b"HEAD "

log = logging.getLogger(__name__)


class ApiServer:
    """HTTP server that binds when it is created: the port is known, or refused if taken, before anything else."""

    def __init__(
        self,
        hosts: Sequence[str],
        port: int,
        limits: ConnectionLimits | None = None,
        *,
        ollama_port: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Raises PortTaken. Port 0: the system chooses the port, which is the same for all hosts.

        `ollama_port`: a second port, for Ollama's clients; None: there is none. `tls`: of both; None: there is no TLS.
        """
        self._limits = limits or ConnectionLimits()
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self.port = self._bind(hosts, port, "API port", TAKEN_HINT)
        self.ollama_port = ollama_port
        if ollama_port is not None:
            self.ollama_port = self._bind(hosts, ollama_port, "Ollama port", OLLAMA_TAKEN_HINT)
        self._runner: web.AppRunner | None = None
        self._listening: list[asyncio.Server] = []

    def _bind(self, hosts: Sequence[str], port: int, name: str, hint: str) -> int:
        """Bind a port on each host. `name`: of the port, and `hint`: what to do if it is taken. Raises PortTaken."""
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            bound = socket.socket(family, socket.SOCK_STREAM)
            self._sockets.append(bound)
            try:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if host == "::":
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                if port and is_served(host, port):
                    raise OSError(errno.EADDRINUSE, "another program listens there")
                bound.bind((host, port))
            except OSError as error:
                for each in self._sockets:
                    each.close()
                why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
                raise PortTaken(f"{name} {port} of {host} {why}.", hint=hint) from error
            port = bound.getsockname()[1]
        return port

    async def start(self, app: web.Application) -> None:
        # A client that hangs up cancels its handler, and so its session, at once.
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        assert self._runner.server
        loop = asyncio.get_running_loop()
        settings: dict[str, Any] = {
            "access_log": None,
            "logger": _HttpLog(log, {}),
            "keepalive_timeout": self._limits.idle_s,
            "auto_decompress": False,  # Bodies does it, with bounds and in a thread
        }
        connections = Connections(self._limits)
        protocol = partial(_Protocol, self._runner.server, connections, self._limits, loop=loop, **settings)
        for each in self._sockets:
            handshake_s = self._limits.header_s if self._tls else None
            server = await loop.create_server(protocol, sock=each, ssl=self._tls, ssl_handshake_timeout=handshake_s)
            self._listening.append(server)

    async def finish(self, limit_s: float) -> None:
        """Refuse new requests, and wait up to `limit_s` seconds for requests in flight.

        The port stays open: a closed one could not be distinguished from a crash.
        """
        if self._runner:
            await self._runner.app[IN_FLIGHT].finish(limit_s)

    async def stop(self) -> None:
        if self._runner is None:
            return
        for server in self._listening:
            server.close()
        if self._runner.server:
            await self._runner.server.shutdown(CLOSE_S)
        await self._runner.cleanup()


class _Protocol(web.RequestHandler):
    """aiohttp's protocol, which also closes connections of clients that send no request or read nothing of an answer.

    Input that aiohttp refuses because it is not a valid request gets an error object like any other error.
    """

    def __init__(self, server: web.Server, connections: Connections, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(server, **kwargs)
        self.address = ""
        self.heard_at = 0.0
        self._connections = connections
        self._limits = limits
        self._pace = ReadingPace(limits.stall_s)
        self._stall_timer: asyncio.Handle | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        """Closes the connection if the headers of its request stay incomplete."""
        self._unread = 0
        """Bytes of incomplete headers."""
        self._method = b""
        """Their first bytes, of which one learns whether the answer to input that is no request may have a body."""

    @property
    def waits_for_client(self) -> bool:
        request = self._current_request
        return not self._request_in_progress or (request is not None and not request.content.is_eof())

    @property
    def _waits_for_request(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else ""
        self.heard_at = asyncio.get_running_loop().time()
        if not self._connections.add(self):
            self._refuse(transport, TOO_MANY.status, describe(TOO_MANY), f"Retry-After: {TOO_MANY.retry_after}\r\n")
            return
        super().connection_made(transport)
        # Pause until the system has taken every byte. asyncio's TLS would pause at 0 for an empty buffer, without end.
        transport.set_write_buffer_limits(high=1, low=0)

    def _refuse(self, transport: asyncio.Transport, status: int, error: dict[str, Any], headers: str = "") -> None:
        """Send an error for input that aiohttp makes no request of, and close the connection."""
        body, request_id = json.dumps(error).encode(), new_request_id()
        log.debug("%s no request from %s: %d", request_id, self.address, status)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{HEADER}: {request_id}\r\nContent-Type: application/json; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n{headers}Connection: close\r\n\r\n"
        )
        transport.write(head.encode() + (b"" if self._method == HEAD else body))
        transport.close()
        self.force_close()

    def data_received(self, data: bytes) -> None:
        if self._waits_for_request and self._header_timer is None:  # whatever came before was answered
            self._unread, self._method = 0, b""
        self._method += data[: len(HEAD) - len(self._method)]
        super().data_received(data)
        loop = asyncio.get_running_loop()
        self.heard_at = loop.time()
        waits = self._waits_for_request
        self._unread = self._unread + len(data) if waits else 0
        if not waits:
            self._stop_timers(self._header_timer)
            self._header_timer = None
            if self._current_request is not None:
                self._close_if_too_much_waits()
        elif self._unread > MAX_HEADERS and self.transport:
            said = f"The headers have more than {MAX_HEADERS:,} bytes."
            self._refuse(self.transport, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, error_object(431, said))
        elif self._header_timer is None:
            self._header_timer = loop.call_later(self._limits.header_s, self.force_close)

    async def _handle_request(
        self, request: web.BaseRequest, start_time: float | None, request_handler: Any
    ) -> tuple[web.StreamResponse, bool]:
        self._close_if_too_much_waits()
        handler = request_handler if self._connections.admits(self, request.path) else self._too_many
        return await super()._handle_request(request, start_time, handler)

    async def _too_many(self, _request: web.BaseRequest) -> web.StreamResponse:
        response = self._error(TOO_MANY.status, describe(TOO_MANY))
        response.headers[hdrs.RETRY_AFTER] = str(TOO_MANY.retry_after)
        return response

    def _error(self, status: int, error: dict[str, Any]) -> web.Response:
        """Error for what gets to no handler, after which the connection is closed."""
        request_id = new_request_id()
        log.debug("%s no request from %s: %d", request_id, self.address, status)
        response = web.json_response(error, status=status, headers={HEADER: request_id})
        response.force_close()
        return response

    def _close_if_too_much_waits(self) -> None:
        """What waits behind the current request must not make reading pause: it would hide the end of the client."""
        waiting = sum(payload.total_bytes for _, payload in self._messages) + len(self._message_tail)
        if len(self._messages) > MAX_WAITING or waiting > MAX_WAITING_BODIES:
            self.force_close()

    @staticmethod
    def _stop_timers(*timers: asyncio.Handle | None) -> None:
        for timer in filter(None, timers):
            timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = asyncio.get_running_loop().call_soon(self._look_at_reader)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timers(self._stall_timer)
        self._pace.look(asyncio.get_running_loop().time(), 0)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._connections.remove(self)
        self._stop_timers(self._stall_timer, self._header_timer)

    def _look_at_reader(self) -> None:
        """Abort if next to nothing was read while writing was paused."""
        if self.transport is None:
            return
        loop = asyncio.get_running_loop()
        self._pace.look(loop.time(), self.transport.get_write_buffer_size())
        if self._pace.is_too_slow:
            self.transport.abort()
        else:
            self._stall_timer = loop.call_later(self._pace.next_look_s, self._look_at_reader)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # it logs, and raises if an answer has begun
        said = f"The HTTP request is invalid: {(message or 'it cannot be parsed').splitlines()[0].rstrip(':')}."
        response = self._error(status, error_object(status, said if status < 500 else "The server failed."))
        if request.method not in hdrs.METH_ALL and self._method == HEAD:
            response.headers[hdrs.CONTENT_LENGTH], response.body = str(response.content_length), None
        return response


class _HttpLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log, without tracebacks for port scanners and clients that do not speak HTTP."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if isinstance(kwargs.get("exc_info"), HttpProcessingError):
            level, kwargs["exc_info"] = logging.DEBUG, None
        super().log(level, msg, *args, **kwargs)
