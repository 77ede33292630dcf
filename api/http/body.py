"""Receives, decompresses and parses request bodies. Whatever is wrong with a body is reported to its sender.

Small bodies are processed on the event loop. Large ones are decompressed, parsed and checked one at a time in a single
thread: the GIL would let no two run in parallel, and the event loop should compete with one thread only. Clients take
turns there.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from aiohttp import hdrs, web

from api.http.callers import CLIENT
from api.http.errors import BodyTimeout, WrongMediaType
from api.http.json_object import Counts, Json, parse_object
from api.http.limits import (
    BODIES_HELD,
    BODIES_HELD_OF_ONE,
    BODIES_WAITING,
    BODY_RATE,
    BODY_S,
    FREE_RATIO,
    MAX_RATIO,
    SMALL_BODY,
    SMALL_VALUES,
)
from node.core.errors import BadRequest, Overloaded
from node.core.fair_turns import FairTurns
from node.core.pool import Pool

T = TypeVar("T")

ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
HELD = web.RequestKey("held", int)
"""Bytes of this request that are included in `Bodies._held`."""
ACCOUNTS = web.RequestKey("accounts", int)
"""Accounts that are open for this request."""


class Bodies:
    """Reads the bodies of one application's requests. The server must not decompress them."""

    def __init__(self, limit: int, body_s: float = BODY_S) -> None:
        """`limit`: maximum bytes of one body. `body_s`: seconds for a body, plus one for each `BODY_RATE` bytes."""
        self.limit = limit
        self._body_s = body_s
        self._pool = Pool("body", 1, BODIES_WAITING)
        self._turns = FairTurns("a large body to be parsed", 1, BODIES_WAITING)
        self._held = Counter[str]()
        """Bytes that each client's requests in flight hold: of their bodies, as received plus decompressed, and see `hold`."""

    async def read(self, request: web.Request, make: Callable[[Json], T]) -> T:
        """Parse the body as a JSON object and return `make(object)`.

        The object may be sent with any content type but multipart: curl declares every body to be a form. Call this
        inside `account`. `make` may run in a thread.

        Raises BadRequest, WrongMediaType, BodyTimeout, Overloaded, aiohttp's 413, and what `make` raises.
        """
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower()
        if encoding not in ("identity", *ENCODINGS):
            accepted = " or ".join(("identity", *ENCODINGS))
            raise WrongMediaType(f"The body is encoded as {encoding[:40]}; it may be {accepted}.")
        if request.content_type.startswith("multipart/"):
            raise WrongMediaType("The body is a form.", hint="Send a JSON object.")
        form = request.content_type == "application/x-www-form-urlencoded"
        body = await self._receive(request)
        if encoding != "identity":
            unpack = partial(_decompressed, body, ENCODINGS[encoding], self.limit)
            body = await self.work(unpack, small=False, client=request[CLIENT])
            self.hold(request, len(body))
        small = len(body) <= SMALL_BODY and Counts.of(body).values <= SMALL_VALUES
        return await self.work(lambda: make(_parsed(body, form=form)), small=small, client=request[CLIENT])

    async def work(self, work: Callable[[], T], *, small: bool, client: str = "") -> T:
        """Do work that precedes the request to the model: on the event loop if it is `small`, else in the thread.

        `client`: whose work it is; empty: that on what other nodes sent, which has turns of its own.
        """
        if small:
            return work()
        async with self._turns.turn(client):
            return await self._pool.run(work)

    @contextmanager
    def account(self, request: web.Request) -> Iterator[None]:
        """Inside, the body counts towards the limits: what is made of it stays in memory until the answer, of which a
        response in the background has an account of its own.
        """
        request[ACCOUNTS] = request.get(ACCOUNTS, 0) + 1
        request.setdefault(HELD, 0)
        try:
            yield
        finally:
            request[ACCOUNTS] -= 1
            if not request[ACCOUNTS]:
                self._held -= Counter({request[CLIENT]: request[HELD]})  # leaves only clients that hold something

    def hold(self, request: web.Request, size: int) -> None:
        """Add `size` bytes to the account of the request, which it holds until its answer. Raises Overloaded."""
        client = request[CLIENT]
        request[HELD] += size
        self._held[client] += size
        if request[HELD] <= SMALL_BODY:
            return
        if (own := self._held[client]) > BODIES_HELD_OF_ONE * self.limit:
            raise Overloaded(f"Your requests of {own:,} bytes are already in flight.", hint="Try again soon.")
        if (held := self._held.total()) > BODIES_HELD * self.limit:
            raise Overloaded(f"Requests of {held:,} bytes are already in flight.", hint="Try again soon.")

    async def _receive(self, request: web.Request) -> bytes:
        loop = asyncio.get_running_loop()
        body = bytearray()  # a list of chunks would take far more memory where each has a few bytes
        try:
            async with asyncio.timeout(self._body_s) as patience:
                begun = loop.time()
                while part := await request.content.readany():
                    body += part
                    if len(body) > self.limit:
                        raise web.HTTPRequestEntityTooLarge(self.limit, len(body))
                    self.hold(request, len(part))
                    patience.reschedule(begun + self._body_s + len(body) / BODY_RATE)
        except TimeoutError as error:
            raise BodyTimeout(
                f"{len(body):,} bytes of the body arrived in {loop.time() - begun:.0f} s, which is too slow."
            ) from error
        except web.RequestPayloadError as error:
            raise BadRequest("The body is truncated.") from error
        return bytes(body)


def _parsed(body: bytes, *, form: bool) -> Json:
    try:
        return parse_object(body)
    except BadRequest as error:
        if form and body[:1] not in (b"", b"{"):
            raise WrongMediaType("The body is a form.", hint="Send a JSON object.") from error
        raise


def _decompressed(data: bytes, window: int, limit: int) -> bytes:
    """Decompress a body. `window`: zlib's `wbits`.

    Raises BadRequest, and aiohttp's 413 if the result is longer than `limit` or its ratio to `data` exceeds MAX_RATIO.
    """
    if window == zlib.MAX_WBITS and data[:1] and data[0] & 0xF != 8:
        window = -zlib.MAX_WBITS  # deflate without zlib's header, which some clients send
    most = min(limit, max(FREE_RATIO, MAX_RATIO * len(data)))
    stream = zlib.decompressobj(window)
    try:
        body = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise BadRequest("The body is not compressed as its Content-Encoding says.") from error
    if len(body) > most:
        raise web.HTTPRequestEntityTooLarge(
            most, len(body), text=f"The body is more than {most:,} bytes long when it is decompressed."
        )
    if data and not stream.eof:
        raise BadRequest("The compressed body is truncated.")
    if stream.unused_data:
        raise BadRequest("The compressed body is followed by other data.")
    return body
