"""HTTP as bytes on a socket, so that a request need not be valid HTTP."""

import asyncio
import contextlib
import json
import re
from typing import Any

MOST_ANSWER = 4 << 20
_STATUS = re.compile(rb"HTTP/\d\.\d (\d{3}) ")


def request(method: str, path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*lines, "Content-Type: application/json", *headers, "", ""]).encode() + body


def post(path: str, body: Any) -> bytes:
    return request("POST", path, json.dumps(body).encode())


async def exchange(port: int, data: bytes, quiet_s: float | None = None) -> tuple[int, bytes]:
    """Send bytes; return the first answer's status (0 for none) and body. `quiet_s` without a byte ends it."""
    answer = await received(port, data, quiet_s)
    status = _STATUS.match(answer)
    head, _, body = answer.partition(b"\r\n\r\n")
    whole = re.search(rb"\r\nContent-Length: (\d+)", head, re.IGNORECASE)
    return int(status[1]) if status else 0, body[: int(whole[1])] if whole else body


async def received(port: int, data: bytes, quiet_s: float | None = None) -> bytes:
    """Send bytes; return all that comes back."""
    answer = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            with contextlib.suppress(ConnectionError):  # the server refused before it read everything
                await writer.drain()
            while len(answer) < MOST_ANSWER:
                async with asyncio.timeout(quiet_s):
                    part = await reader.read(1 << 16)
                if not part:
                    break
                answer += part
        finally:
            writer.transport.abort()
    return answer
