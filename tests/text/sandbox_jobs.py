"""Jobs for sandboxes that do harm."""

import ctypes
import os
import signal
import socket
import subprocess
from pathlib import Path

from tokenizers import Tokenizer

from node.core.errors import BadRequest, error_from


class Panic(BaseException):
    """Like the exception of a Rust panic."""


def make_harmful():
    """Answers a request with its own text, or does the harm that it names."""
    kept = []

    def answer(request: bytes) -> bytes:
        match request.partition(b" "):
            case b"loop", _, _:
                while True:
                    pass
            case b"crash", _, _:
                ctypes.string_at(0)
            case b"exit", _, _:
                os._exit(0)
            case b"raise", _, words:
                raise Panic(words.decode())
            case b"keep", _, size:
                kept.append(b"x" * int(size))
                return str(os.getpid()).encode()
            case b"make", _, size:
                return b"x" * int(size)
            case b"environment", _, _:
                return repr(dict(os.environ)).encode()
            case b"pid", _, _:
                return str(os.getpid()).encode()
        return request

    return answer


def make_refusing():
    """Raises the error that a request names."""

    def answer(request: bytes) -> bytes:
        match request.decode():
            case "malformed":
                raise BadRequest(["no text"])
            case "lengthy":
                raise BadRequest("x" * 2**16)
            case "":
                return request
            case code:
                raise error_from(code, "no")

    return answer


def make_curious():
    """Opens, lists, runs, or connects to what a request names."""

    def answer(request: bytes) -> bytes:
        harm, _, named = request.decode().partition(" ")
        match harm:
            case "open":
                return Path(named).read_bytes()
            case "write":
                Path(named).write_bytes(b"written")
            case "list":
                return repr(os.listdir(named)).encode()  # noqa: PTH208
            case "open-natively":
                return Tokenizer.from_file(named).to_str().encode()
            case "connect":
                socket.create_connection(("127.0.0.1", int(named)))
            case "run":
                subprocess.run([named], check=True)
            case "end":
                os.kill(int(named), signal.SIGTERM)
        return b""

    return answer


def make_nothing():
    raise ValueError("no job")
