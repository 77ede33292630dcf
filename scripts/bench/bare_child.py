"""One stage of a ring without Pippin: a llama model's own layers and raw bytes over blocking TCP; see bare.py.

Arguments: the model, and its layers [start, end). The stage with layer 0 embeds, samples greedily and measures the
time.
"""

import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from mlx_lm.utils import load_model


class Stage:
    """A stage in one thread that waits for its sockets without an event loop: the minimum work of two processes."""

    def __init__(self, path: Path, start: int, end: int) -> None:
        self.model: Any = load_model(path)[0]
        self.layers = self.model.model.layers[start:end]
        self.model.model.layers = self.layers  # frees the others
        self.first = start == 0
        self.width: int = self.model.args.hidden_size
        self.caches: list[KVCache] = []

    def begin(self) -> None:
        self.caches = [KVCache() for _ in self.layers]

    def run(self, hidden: mx.array) -> mx.array:
        mask = "causal" if hidden.shape[1] > 1 else None
        for layer, cache in zip(self.layers, self.caches, strict=True):
            hidden = layer(hidden, mask, cache)
        mx.eval(hidden)
        return hidden

    def embed(self, tokens: list[int]) -> mx.array:
        embedded: mx.array = self.model.model.embed_tokens(mx.array([tokens]))
        return embedded

    def draw(self, hidden: mx.array) -> int:
        logits = self.model.model.embed_tokens.as_linear(self.model.model.norm(hidden[:, -1:]))
        token: Any = mx.argmax(logits, axis=-1).item()
        return int(token)

    def pack(self, hidden: mx.array) -> bytes:
        view: Any = hidden  # supports the buffer protocol, which MLX's types do not say
        return bytes(memoryview(view))

    def unpack(self, data: bytes) -> mx.array:
        return mx.array(np.frombuffer(data, np.float32).reshape(1, -1, self.width))


def send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(len(data).to_bytes(4) + data)


def receive(connection: socket.socket) -> bytes:
    """Return the next message; empty when the other end has closed the connection."""
    size = int.from_bytes(_exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


def relay(stage: Stage, before: socket.socket, after: socket.socket) -> None:
    """Run frames until the connection closes. A frame of several tokens is a prompt, and begins a new session."""
    while data := receive(before):
        hidden = stage.unpack(data)
        if hidden.shape[1] > 1:
            stage.begin()
        send(after, stage.pack(stage.run(hidden)))


def drive(stage: Stage, before: socket.socket, after: socket.socket, prompt: list[int], tokens: int) -> float:
    """Generate an answer; return the seconds from its first token to its last."""
    stage.begin()
    step, stamps = prompt, []
    for _ in range(tokens):
        send(after, stage.pack(stage.run(stage.embed(step))))
        step = [stage.draw(stage.unpack(receive(before)))]
        stamps.append(time.perf_counter())
    return stamps[-1] - stamps[0]


def main() -> None:
    stage = Stage(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
        after = socket.create_connection(("127.0.0.1", json.loads(sys.stdin.readline())["next"]))
        before, _ = listener.accept()
    for connection in (before, after):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(json.dumps({}), flush=True)
    if not stage.first:
        relay(stage, before, after)
        return
    for line in sys.stdin:
        print(json.dumps({"rest": drive(stage, before, after, **json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
