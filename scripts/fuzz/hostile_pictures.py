"""Chats with pictures that are damaged, huge, nested in one another, or that lie, to a model that takes pictures."""

import base64
import io
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable

import wire_http
from drawing import batches
from hypothesis import strategies as st
from PIL import Image
from target import Target

from tests.conftest import ROOT, Node

MODEL = "tiny-mistral3"
KINDS = ("PNG", "JPEG", "WEBP")
TYPES = (*("image/png", "image/jpeg", "image/webp", "image/svg+xml", "text/html", ""), "image/png;charset=x")


async def attack(target: Target, count: int, seed: int) -> None:
    make = [
        sys.executable,
        str(ROOT / "scripts" / "make_model.py"),
        "--preset",
        MODEL,
        "--out",
        str(target.models / MODEL),
    ]
    subprocess.run(make, check=True, capture_output=True)  # noqa: ASYNC221 - our own script, before all attacks
    for batch in batches(_requests(), count, seed):
        await target.each("picture", batch, lambda node, sent: _send(target, node, sent))


async def _send(target: Target, node: Node, sent: tuple[str, bytes]) -> str:
    kind, data = sent
    status, body = await wire_http.exchange(node.port, data)
    if not status:
        target.findings.complain(f"picture: no answer to {kind}")
        return f"{kind}: no answer"
    if b"0x" in body and status >= 400:
        target.findings.complain(f"picture: an address in the answer to {kind}: {body!r}")
    return f"{kind}: {target.check_answer('picture', (kind, len(data)), status, body)}"


def _requests() -> st.SearchStrategy[tuple[str, bytes]]:
    built = st.tuples(st.sampled_from(sorted(MADE)), st.integers(0, 2**32), st.sampled_from(TYPES))
    return built.map(lambda drawn: (drawn[0], _asked(MADE[drawn[0]](random.Random(drawn[1])), drawn[2])))


def _asked(pictures: list[bytes], kind: str) -> bytes:
    urls = [f"data:{kind};base64,{base64.b64encode(picture).decode()}" for picture in pictures]
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages = [{"role": "user", "content": [*content, {"type": "text", "text": "What is it?"}]}]
    return wire_http.post("/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 2})


def _drawn(draw: random.Random, most: int = 80) -> Image.Image:
    size = draw.randint(1, most), draw.randint(1, most)
    return Image.frombytes("RGBA", size, draw.randbytes(4 * size[0] * size[1]))


def _filed(picture: Image.Image, kind: str, **more: object) -> bytes:
    file = io.BytesIO()
    (picture.convert("RGB") if kind == "JPEG" else picture).save(file, kind, **more)
    return file.getvalue()


def _good(draw: random.Random) -> bytes:
    return _filed(_drawn(draw), draw.choice(KINDS))


def _damaged(draw: random.Random) -> bytes:
    data = bytearray(_good(draw))
    for _ in range(draw.randint(1, 8)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data[: draw.choice((len(data), draw.randint(1, len(data))))])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))


def _lying(draw: random.Random) -> bytes:
    """A PNG that says to have another size, depth or kind of colours than it has."""
    sides = [draw.choice((0, 1, 7, 8000, 60_000, 2**31 - 1, 2**32 - 1)) for _ in range(2)]
    head = struct.pack(
        "!IIBBBBB", *sides, draw.choice((1, 2, 4, 8, 16, 99)), draw.randrange(8), 0, 0, draw.randrange(3)
    )
    body = zlib.compress(draw.randbytes(draw.choice((0, 100, 10_000))))
    more = _chunk(
        draw.choice((b"iCCP", b"zTXt", b"tRNS", b"PLTE", b"eXIf", b"acTL")), draw.randbytes(draw.randrange(200))
    )
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + more + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _bomb(draw: random.Random) -> bytes:
    """A few KiB that are many pixels, about as many as are taken."""
    side = draw.choice((3000, 7000, 8100))
    return _filed(Image.new(draw.choice(("1", "L", "P")), (side, side)), "PNG")


def _text_bomb(draw: random.Random) -> bytes:
    whole = _filed(_drawn(draw), "PNG")
    text = b"a\0\0" + zlib.compress(bytes(draw.choice((10**6, 10**8))))
    return whole[:33] + _chunk(b"zTXt", text) * draw.randint(1, 3) + whole[33:]


def _nested(draw: random.Random) -> bytes:
    """A picture behind, or in the metadata of, another one."""
    inner, outer = _good(draw), _good(draw)
    return draw.choice(
        (
            outer + inner,
            outer[: len(outer) // 2] + inner,
            _filed(_drawn(draw), "JPEG", exif=b"Exif\0\0" + inner[:60_000]),
        )
    )


def _foreign(draw: random.Random) -> bytes:
    kind = draw.choice(("GIF", "TIFF", "BMP", "PPM", "ICO", "svg", "ps"))
    if kind == "svg":
        return b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    if kind == "ps":
        return b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run"
    return _filed(_drawn(draw).convert("RGB"), kind)


def _animated(draw: random.Random) -> bytes:
    frames = [_drawn(draw, 20).resize((16, 16)) for _ in range(draw.randint(2, 30))]
    return _filed(frames[0], draw.choice(("PNG", "WEBP")), save_all=True, append_images=frames[1:])


MADE: dict[str, Callable[[random.Random], list[bytes]]] = {
    "good": lambda draw: [_good(draw)],
    "several": lambda draw: [draw.choice((_good, _damaged))(draw) for _ in range(draw.randint(2, 40))],
    "damaged": lambda draw: [_damaged(draw)],
    "damaged again": lambda draw: [_damaged(draw)],
    "lying": lambda draw: [_lying(draw)],
    "bomb": lambda draw: [_bomb(draw)],
    "text bomb": lambda draw: [_text_bomb(draw)],
    "nested": lambda draw: [_nested(draw)],
    "foreign": lambda draw: [_foreign(draw)],
    "animated": lambda draw: [_animated(draw)],
    "noise": lambda draw: [draw.randbytes(draw.choice((0, 1, 8, 3000, 100_000)))],
    "large": lambda draw: [_good(draw) + bytes(draw.choice((2**20, 2**22)))],
}
"""Pictures by their kind."""
