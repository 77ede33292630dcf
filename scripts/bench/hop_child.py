"""One end of a link, or of a blocking TCP connection for comparison; see hop.py. Its argument says which."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from time import perf_counter_ns as now
from typing import Any, cast
from unittest import mock

import mlx.core as mx
import numpy as np
from hop import BYTES

from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.frames import Frame, Tensor
from node.core.generation import GenerateRequest, TokenEvent
from node.core.nodes import Address, Caller
from node.core.rings import Fence
from node.engine.compute import Compute
from node.engine.tensor_codec import pack, unpack
from node.host.node_key import new_key
from node.rpc.client import RpcClient
from node.rpc.frame_codec import decode, encode
from node.rpc.link import FrameLink
from node.rpc.security import secure
from node.rpc.server import RpcServer


class End:
    """One end. Both ends are alike, except that the near one begins and counts the round trips."""

    def __init__(self) -> None:
        self.compute = Compute()
        self.outgoing: list[list[int]] = []
        self.incoming: list[list[int]] = []
        self.link: FrameLink | None = None
        self.trips_left = 0
        self.sweep = np.zeros(0)
        """Memory that is read before each hop, like a stage's weights, so that the caches hold
        neither code nor data.
        """
        self.done = asyncio.Event()
        self._hidden: mx.array | None = None  # used by the compute thread only

    # --- what is timed ----------------------------------------------------------------------------------------------

    async def send(self, tensors: tuple[Tensor, ...]) -> None:
        assert self.link
        self.outgoing[-1].append(now())  # RESUMED
        await self.link.send(Frame(ring="bench", fence=Fence(1, 1), seq=0, lane=0, tensors=tensors))

    def compute_and_pack(self) -> tuple[Tensor, ...]:
        hidden = mx.zeros((1, 1, BYTES // 4)) if self._hidden is None else self._hidden + 1
        mx.eval(hidden)
        self.sweep.sum()
        computed = now()
        tensors = pack([hidden])
        self.outgoing.append([computed, now()])
        return tensors

    def receive(self, frame: Frame) -> None:
        unpacking = now()
        (self._hidden,) = unpack(frame.tensors)
        self.incoming[-1] += [unpacking, now()]

    def relay(self, frame: Frame) -> tuple[Tensor, ...]:
        self.receive(frame)
        return self.compute_and_pack()

    # --- the handler of the RPC server --------------------------------------------------------------------------------

    async def serve_link(self, frames: AsyncIterator[Frame], caller: Caller) -> None:
        near = self.trips_left > 0
        async for frame in frames:
            if not near:
                await self.send(await self.compute.run(self.relay, frame))
                continue
            self.trips_left -= 1
            if self.trips_left:
                await self.send(await self.compute.run(self.relay, frame))
            else:
                await self.compute.run(self.receive, frame)
                self.done.set()

    def generate(self, ring: str, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        raise NotImplementedError

    async def evaluate(self, ring: str, request: EvaluateRequest) -> Evaluation:
        raise NotImplementedError


async def link_end(*, near: bool, tls: bool) -> None:
    end = End()
    security = secure(b"of the benchmark alone", "bench", new_key()) if tls else None
    server = RpcServer(["127.0.0.1"], 0, security)
    nothing: Any = None  # no request reaches the control plane or files
    end.compute.start()

    def timed_encode(frame: Frame) -> bytes:
        begin = now()
        data = encode(frame)
        end.outgoing[-1] += [begin, now()]
        return data

    def timed_decode(data: bytes) -> Frame:
        begin = now()
        frame = decode(data)
        end.incoming.append([begin, now()])
        return frame

    with mock.patch("node.rpc.link.encode", timed_encode), mock.patch("node.rpc.server.decode", timed_decode):
        async with RpcClient(security) as client:
            await server.start(nothing, end, nothing)
            say({"port": server.port})
            question = await asyncio.to_thread(listen)
            end.trips_left = question.get("trips", 0)
            end.sweep = np.ones(question["sweep_bytes"] // 8)
            end.link = client.link(Address(f"127.0.0.1:{question['peer']}"), lambda reason: say({"error": str(reason)}))
            if near:
                await end.send(await end.compute.run(end.compute_and_pack))
                await end.done.wait()
            else:
                say({})
                await asyncio.to_thread(listen)
            say({"out": end.outgoing, "in": end.incoming})
            await asyncio.to_thread(sys.stdin.readline)  # until the parent has read the lines of both
            end.link.close()
            await server.stop(0)
    end.compute.stop()


def tcp_far() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        say({"port": listener.getsockname()[1]})
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := receive_all(connection):
            connection.sendall(data)


def tcp_near() -> None:
    say({})
    question = listen()
    payload = bytes(BYTES)
    stamps = []
    with socket.create_connection(("127.0.0.1", question["peer"])) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(question["trips"]):
            begin = now()
            connection.sendall(payload)
            receive_all(connection)
            stamps.append(now() - begin)
    say({"out": stamps})


def receive_all(connection: socket.socket) -> bytes:
    data = bytearray()
    while len(data) < BYTES:
        part = connection.recv(BYTES - len(data))
        if not part:
            return b""
        data += part
    return bytes(data)


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def listen() -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(sys.stdin.readline() or "{}"))


def main() -> None:
    match sys.argv[1]:
        case "tcp-far":
            tcp_far()
        case "tcp-near":
            tcp_near()
        case role:
            asyncio.run(link_end(near=role.startswith("near"), tls=role.endswith("-tls")))


if __name__ == "__main__":
    main()
