"""gRPC calls, frames and connections of a lying peer: of a stranger, and of a member if there is a secret."""

import asyncio
import contextlib
import random
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Self

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from messages import Known, change, fill
from target import Target

from node import PROTOCOL
from node.host.node_key import CURVE, NodeKey, id_of
from node.rpc.security import secure
from node.rpc.server import FRAMES_METHOD
from node.wire import control_pb2, frame_pb2, serving_pb2
from tests.conftest import MODEL, Node, until

CALL_S = 5.0
"""Seconds after which the caller hangs up."""
IDLE_S = 0.5
BATCH = 500
SERVICES = [*control_pb2.DESCRIPTOR.services_by_name.values(), *serving_pb2.DESCRIPTOR.services_by_name.values()]
METHODS: dict[str, Any] = {
    f"/{service.full_name}/{method.name}": GetMessageClass(method.input_type)
    for service in SERVICES
    for method in service.methods
} | {FRAMES_METHOD: frame_pb2.Header}
"""The request of each method that a node has."""
STREAMED = {
    f"/{service.full_name}/{method.name}"
    for service in SERVICES
    for method in service.methods
    if method.server_streaming
}
FRAGMENTS = (
    b"\x16\x03\x01",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"GET / HTTP/1.1\r\n",
)


GOOD: dict[str, Callable[[Known], dict[str, Any]]] = {
    "Heartbeat": lambda known: {
        "report": {
            "info": {
                "id": known["id"][0],
                "incarnation": 1,
                "name": "stranger",
                "cluster": known["cluster"][0],
                "version": "0.1.0",
                "protocol": PROTOCOL,
                "addresses": ["127.0.0.1"],
                "grpcPort": 9,
                "apiPort": 9,
            },
            "memory": {"total": 2**34, "usable": 2**34},
            "term": known["term"][0],
            "head": known["id"][0],
            "fence": {"term": known["term"][0], "epoch": 1},
        },
        "placement": {"fence": {"term": known["term"][0], "epoch": 1}, "head": known["id"][0]},
    },
    "GenerateRequest": lambda known: {
        "id": "x",
        "ring": known["ring"][0],
        "model": MODEL,
        "prompt": [1, 2, 3],
        "maxTokens": 3,
        "sampling": {"temperature": 0, "topP": 1},
    },
    "EvaluateRequest": lambda known: {"id": "x", "ring": known["ring"][0], "model": MODEL, "prompt": [1, 2, 3]},
    "Header": lambda known: {
        "ring": known["ring"][0],
        "term": known["term"][0],
        "epoch": known["epoch"][0],
        "ops": [{"kind": "OPEN", "lane": 1}],
        "lane": 1,
        "lengths": [1],
        "sampled": True,
        "tensors": [{"dtype": "float32", "shape": [1, 1, 3], "bytes": 12}],
    },
}
"""Messages as an honest peer sends them, by name."""


@dataclass(frozen=True, slots=True)
class Attack:
    as_member: bool
    method: str
    """Method of the call; empty for raw bytes on a connection."""
    sent: tuple[bytes, ...]
    patience_s: float


async def attack(target: Target, count: int, seed: int) -> None:
    key, rng = ec.derive_private_key(seed + 1, CURVE), random.Random(seed)
    known = await asyncio.to_thread(_known, target, id_of(key.public_key()))
    async with _Callers(target, key) as callers:
        for first in range(0, count, BATCH):
            attacks = [_attack(known, rng, target.secret is not None) for _ in range(min(BATCH, count - first))]
            await target.each("stream", attacks, callers.send)


def _known(target: Target, own: str) -> Known:
    """Return the values that a message needs to get past the first checks; `own` is the attacker's id."""
    status = until(target.nodes[0].status, "the status of a node")
    ids = [node["id"] for node in status["nodes"]]
    rings = [ring for model in status["models"] for ring in model["rings"]]
    return {
        "id": [own, own, *ids],
        "node": [*ids, own],
        "to": ids,
        "head": [own, *ids],
        "cluster": [target.cluster],
        "protocol": [PROTOCOL],
        "version": ["0.1.0"],
        "name": ["stranger", "config.json", "node.json"],
        "model": [MODEL, "someone/else"],
        "models": [MODEL],
        "preload": [MODEL, "someone/else"],
        "ring": [ring["id"] for ring in rings],
        "term": [status["term"], status["term"] + 1],
        "epoch": [status["epoch"]],
        "addresses": ["127.0.0.1"],
        "total": [2**34],
        "usable": [2**34],
        "end": [4, 8],
        "dtype": ["float32", "uint32", "poem"],
        "prompt": [1, 5],
        "max_tokens": [1, 5],
        "temperature": [0.0, 1.0],
        "top_p": [1.0],
    }


def _attack(known: Known, rng: random.Random, has_members: bool) -> Attack:
    method = rng.choice([*METHODS, ""])
    patience_s = rng.choice([CALL_S, CALL_S, CALL_S, 0.05, 0.0])
    if not method:
        pieces = [rng.choice((*FRAGMENTS, rng.randbytes(100))) for _ in range(rng.randint(0, 3))]
        return Attack(False, method, tuple(pieces), patience_s)
    messages = [_message(method, known, rng).SerializeToString() for _ in range(rng.randint(1, 4))]
    if method == FRAMES_METHOD:
        sent = [_frame(data, rng.randbytes(rng.choice([0, 0, 12, 64])), rng) for data in messages]
    else:
        sent = [messages[0] if rng.random() < 0.8 else _damaged(messages[0], rng)]
    return Attack(has_members and rng.random() < 0.8, method, tuple(sent), patience_s)


def _message(method: str, known: Known, rng: random.Random) -> Any:
    """Return a random message, or a valid one with a few fields changed."""
    kind = METHODS[method]
    if kind.DESCRIPTOR.name not in GOOD or rng.random() < 0.4:
        return fill(kind(), known, rng)
    message = ParseDict(GOOD[kind.DESCRIPTOR.name](known), kind())
    for _ in range(rng.randint(0, 3)):
        change(message, known, rng)
    return message


def _frame(header: bytes, payload: bytes, rng: random.Random) -> bytes:
    return (
        struct.pack("<I", len(header) + (rng.randint(-9, 9) if rng.random() < 0.1 else 0) & 0xFFFFFFFF)
        + header
        + payload
    )


def _damaged(data: bytes, rng: random.Random) -> bytes:
    at, piece = rng.randrange(len(data) + 1), rng.randbytes(rng.randint(0, 6))
    return data[:at] + piece + data[at + len(piece) :]


class _Callers:
    """Connections to each node: of a stranger, and of a member if the cluster has a secret."""

    def __init__(self, target: Target, key: NodeKey) -> None:
        self._target = target
        self._channels: dict[tuple[str, bool], grpc.aio.Channel] = {}
        self._ports: dict[str, int] = {}
        self._security = secure(target.secret, target.cluster, key) if target.secret else None

    async def __aenter__(self) -> Self:
        for node in self._target.nodes:
            status = await asyncio.to_thread(node.status)
            own = next(each for each in status["nodes"] if each["name"] == node.name)
            self._ports[node.name] = int(own["address"].rpartition(":")[2])
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def send(self, node: Node, attack: Attack) -> str:
        if not attack.method:
            return await _raw(self._ports[node.name], attack)
        channel = self._channel(node, attack.as_member)
        who, what = "member" if attack.as_member else "stranger", attack.method.rpartition("/")[2]
        return f"{who} {what}: {await _call(channel, attack)}"

    def _channel(self, node: Node, as_member: bool) -> grpc.aio.Channel:
        key = (node.name, as_member)
        if key not in self._channels:
            peer, options = f"127.0.0.1:{self._ports[node.name]}", [("grpc.use_local_subchannel_pool", 1)]
            if as_member and self._security:
                named = [*options, ("grpc.ssl_target_name_override", self._security.server_name)]
                channel = grpc.aio.secure_channel(peer, self._security.channel_credentials(""), options=named)
            else:
                channel = grpc.aio.insecure_channel(peer, options=options)
            self._channels[key] = channel
        return self._channels[key]


async def _call(channel: Any, attack: Attack) -> str:
    """Make a call; return gRPC's status, or that the caller hung up."""

    async def sent() -> AsyncIterator[bytes]:
        for data in attack.sent:
            yield data

    try:
        async with asyncio.timeout(attack.patience_s):
            if attack.method == FRAMES_METHOD:
                await channel.stream_unary(attack.method)(sent(), timeout=CALL_S)
            elif attack.method in STREAMED:
                async for _ in channel.unary_stream(attack.method)(attack.sent[0], timeout=CALL_S):
                    pass
            else:
                await channel.unary_unary(attack.method)(attack.sent[0], timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    except TimeoutError:
        return "hung up"
    return "OK"


async def _raw(port: int, attack: Attack) -> str:
    """Send bytes on a connection, or a TLS handshake without a certificate, and then nothing for a while."""
    tls = None
    if not attack.sent:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(min(attack.patience_s, IDLE_S)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            try:
                for data in attack.sent:
                    writer.write(data)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                while await reader.read(1 << 16):
                    pass
            finally:
                writer.transport.abort()
    except (TimeoutError, OSError):
        pass
    return "bytes"
