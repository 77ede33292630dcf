"""A request's body, from the network to what is made of it. Whatever is wrong with it is the sender's to know.

Small bodies are read on the event loop. Large ones are decompressed, parsed and checked in one thread, one after the
other: Python would not do two of them at once, and what runs on the loop shall not wait for more than one.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from aiohttp import hdrs, web

from api.errors import BodyTimeout, WrongMediaType
from api.json_object import Counts, parse_object
from api.limits import BODIES_HELD, BODIES_WAITING, BODY_RATE, BODY_S, FREE_RATIO, MAX_RATIO, SMALL_BODY, SMALL_VALUES
from node.core.errors import BadRequest, Overloaded
from node.core.pool import Pool

T = TypeVar("T")
Json = dict[str, Any]

ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
RAW_DEFLATE = -zlib.MAX_WBITS


class Bodies:
    """Reads the bodies of one application's requests. The server must leave them compressed."""

    def __init__(self, limit: int, body_s: float = BODY_S) -> None:
        """`limit`: bytes of one body; `body_s`: seconds for one, and a second more for each `BODY_RATE` bytes of it."""
        self.limit = limit
        self._body_s = body_s
        self._pool = Pool("body", 1, BODIES_WAITING)
        self._held = 0
        """Bytes of the bodies that are being received or parsed."""

    async def read(self, request: web.Request, make: Callable[[Json], T]) -> T:
        """What `make` makes of the body, a JSON object of whatever content type: curl calls all of them forms.

        `make` may run in a thread. Raises BadRequest, WrongMediaType, BodyTimeout, Overloaded, aiohttp's 413, and what
        `make` raises.
        """
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower()
        if encoding not in ("identity", *ENCODINGS):
            accepted = " or ".join(("identity", *ENCODINGS))
            raise WrongMediaType(f"The body is encoded as {encoding[:40]}; it may be {accepted}.")
        if request.content_type.startswith("multipart/"):
            raise WrongMediaType("The body is a form.", hint="Send a JSON object.")
        form = request.content_type == "application/x-www-form-urlencoded"
        with self._holding() as hold:
            body = await self._receive(request, hold)
            if encoding == "identity":
                small = len(body) <= SMALL_BODY and Counts.of(body).values <= SMALL_VALUES
                return await self.work(lambda: make(_parsed(body, form=form)), small=small)
            return await self.work(
                lambda: make(_parsed(_decompressed(body, ENCODINGS[encoding], self.limit), form=form)), small=False
            )

    async def work(self, work: Callable[[], T], *, small: bool) -> T:
        """Do what a body asks for before its model is asked: here, or in the thread."""
        return work() if small else await self._pool.run(work)

    @contextmanager
    def _holding(self) -> Iterator[Callable[[int], None]]:
        """Inside, what is called with a number of bytes accounts for them. Raises Overloaded."""
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            held += size
            self._held += size
            if held > SMALL_BODY and self._held > BODIES_HELD * self.limit:
                raise Overloaded(f"Requests of {self._held:,} bytes are being read already.", hint="Try again soon.")

        try:
            yield hold
        finally:
            self._held -= held

    async def _receive(self, request: web.Request, hold: Callable[[int], None]) -> bytes:
        loop = asyncio.get_running_loop()
        body = bytearray()  # a list of pieces would take far more where they are of a few bytes each
        try:
            async with asyncio.timeout(self._body_s) as patience:
                begun = loop.time()
                while part := await request.content.readany():
                    body += part
                    if len(body) > self.limit:
                        raise web.HTTPRequestEntityTooLarge(self.limit, len(body))
                    hold(len(part))
                    patience.reschedule(begun + self._body_s + len(body) / BODY_RATE)
        except TimeoutError as error:
            raise BodyTimeout(
                f"{len(body):,} bytes of the body came in {loop.time() - begun:.0f} s; that is too slow."
            ) from error
        except web.RequestPayloadError as error:
            raise BadRequest("The body is cut off.") from error
        return bytes(body)


def _parsed(body: bytes, *, form: bool) -> Json:
    try:
        return parse_object(body)
    except BadRequest as error:
        if form and body[:1] not in (b"", b"{"):
            raise WrongMediaType("The body is a form.", hint="Send a JSON object.") from error
        raise


def _decompressed(data: bytes, window: int, limit: int) -> bytes:
    """`window`: zlib's `wbits`. Some clients send deflate without zlib's header. Raises BadRequest, aiohttp's 413."""
    if window == zlib.MAX_WBITS and data[:1] and data[0] & 0xF != 8:
        window = RAW_DEFLATE
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
        raise BadRequest("The compressed body is cut off.")
    if stream.unused_data:
        raise BadRequest("Something follows the compressed body.")
    return body
