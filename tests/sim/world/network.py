"""The network between the processes: calls that are lost, doubled and late; connections that stall and break.

Each call is lost or doubled on its own. Data on one connection arrives in order, as with TCP, but a connection can
break with data in flight, and late data of a broken connection mixes with that of its successor. Moreover some frames
of a ring are lost, doubled or swapped: their numbers must reveal that.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from node.core.commands import Command
from node.core.errors import PeerTimeout, PeerUnavailable, PippinError, as_pippin_error, error_from
from node.core.frames import Frame
from node.core.generation import GenerateRequest, TokenEvent
from node.core.nodes import Address, Caller
from node.rpc.client import DECIDE_TIMEOUT_S, FIND_TIMEOUT_S
from tests.sim.world.disk import flip

if TYPE_CHECKING:
    from tests.sim.world.loop import Timeline
    from tests.sim.world.machine import Machine, Process

PORT = 1
CONNECT_S = 1.0
KEEPALIVE_S = 10.0


@dataclass
class Weather:
    loss: float = 0.0
    doubling: float = 0.0
    slowest_s: float = 0.002
    frame_faults: float = 0.0
    hiccups: float = 0.0
    """Share of messages that take up to a second longer, and delay the later ones on the same connection."""
    flips: float = 0.0
    """Share of frames, and of blocks of KV, in which a bit flips that neither Ethernet nor TCP notices."""


class Network:
    def __init__(self, timeline: Timeline, rng: random.Random, of_flips: random.Random, faults: Counter[str]) -> None:
        """`faults`: counts what happens."""
        self.timeline = timeline
        self.rng = rng
        self._of_flips = of_flips
        self.faults = faults
        self.weather = Weather()
        self.machines: dict[str, Machine] = {}
        """By address."""
        self.side: dict[str, int] = {}
        """Machines on different sides do not reach each other."""
        self.unreachable: set[frozenset[str]] = set()
        """Pairs that do not reach each other, though others reach both."""
        self.pipes: dict[Pipe, None] = {}
        self.sick: dict[str, str] = {}
        """The fault of each frame of a ring: it "vanishes" or "breaks" the link. The name `""` means all rings."""

    def delay(self) -> float:
        late = self.rng.uniform(0, 1) if self.rng.random() < self.weather.hiccups else 0.0
        return late + self.rng.uniform(0.0002, self.weather.slowest_s)

    def lost(self) -> bool:
        return self.rng.random() < self.weather.loss

    def flips(self) -> bool:
        if not self.weather.flips or self._of_flips.random() >= self.weather.flips:
            return False
        self.faults["bits flipped on the wire"] += 1
        return True

    def arrived(self, block: bytes) -> bytes:
        """A block of KV after its way."""
        return flip(block, self._of_flips) if self.flips() else block

    def connected(self, a: Machine, b: Machine) -> bool:
        if not (a.powered and b.powered):
            return False
        return (
            self.side.get(a.name, 0) == self.side.get(b.name, 0) and frozenset((a.name, b.name)) not in self.unreachable
        )

    def review(self) -> None:
        """Called when cables have changed, or a process was stopped or continued."""
        for pipe in list(self.pipes):
            pipe.review()

    def process_at(self, peer: Address) -> Process | None:
        """The process that listens there; None if a connection would be refused."""
        return self.machines[peer.target.rpartition(":")[0]].process


@dataclass(eq=False)
class Pipe:
    """One connection. Data arrives in order: late while the path is interrupted, never once the
    connection is broken.
    """

    net: Network
    ends: tuple[Process, Process]
    broke: list[Callable[[], None] | None] = field(default_factory=lambda: [None, None])
    """Each end's callback for a break that it did not cause itself."""
    broken: bool = False
    _last: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _held: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    _silent: int = 0
    """Odd while a keepalive is unanswered; it counts up, so that an old timer recognises itself."""

    def __post_init__(self) -> None:
        self.net.pipes[self] = None
        self.review()

    @property
    def _works(self) -> bool:
        return self.net.connected(self.ends[0].machine, self.ends[1].machine)

    def send(self, to: int, act: Callable[[], None]) -> None:
        if self.broken:
            return
        if not self._works:
            self._held.append((to, act))
            return
        timeline = self.net.timeline
        self._last[to] = max(self._last[to], timeline.now + self.net.delay())
        loop = self.ends[to].loop
        timeline.push(self._last[to], None, lambda: None if self.broken else loop.call_soon(act))

    def review(self) -> None:
        """Keepalive: a peer that does not answer for 5 to 10 s is given up."""
        if self._works:
            for by in (0, 1):
                if self.ends[by].loop.dead:
                    self.end(1 - by)
                    return
            held, self._held = self._held, []
            for to, act in held:
                self.send(to, act)
        timeline = self.net.timeline
        silent = not self._works or any(end.loop.stopped_until > timeline.now for end in self.ends)
        if silent and not self._silent % 2:
            self._silent += 1
            mark = self._silent
            timeline.after(
                self.net.rng.uniform(KEEPALIVE_S / 2, KEEPALIVE_S),
                lambda: self.cut_off() if self._silent == mark else None,
            )
        elif not silent and self._silent % 2:
            self._silent += 1

    def cut_off(self) -> None:
        """Break the connection. Each end is told as soon as it can hear it."""
        for to in (0, 1):
            self.tell(to)
        self.close()

    def reset(self, by: int) -> None:
        """The process at one end is gone. Data in flight may or may not arrive."""
        if self.broken:
            return
        other = 1 - by
        if not self._works:
            self._held.append((other, lambda: self.end(other)))
            return
        in_flight = self._last[other] if self.net.rng.random() < 0.5 else 0.0
        when = max(in_flight, self.net.timeline.now + self.net.delay()) + self.net.rng.choice([0.0, 0.0, 0.0, 0.5])
        self.net.timeline.push(when, None, lambda: self.end(other))

    def end(self, to: int) -> None:
        self.tell(to)
        self.close()

    def tell(self, to: int) -> None:
        if not self.broken and (act := self.broke[to]):
            self.ends[to].loop.call_soon(act)

    def close(self) -> None:
        self.broken = True
        self._held.clear()
        self.net.pipes.pop(self, None)


def again(error: PippinError) -> PippinError:
    """The error as the wire carries it: by code and text."""
    return error_from(error.code, error.message, hint=error.hint)


class SimClient:
    """In place of node.rpc.client.RpcClient."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.caller = Caller(process.machine.address, process.name)
        self._net = process.world.net
        self._calls: dict[Address, dict[asyncio.Future[Any], None]] = {}
        self._opened: dict[Address, dict[Pipe, None]] = {}
        self._watched: dict[Address, Pipe] = {}

    def drop(self, peer: Address) -> None:
        for future in list(self._calls.pop(peer, ())):
            if not future.done():
                future.set_exception(PeerUnavailable(f"The connection to {peer} was closed."))
        for pipe in list(self._opened.pop(peer, ())):
            pipe.tell(0)
            pipe.reset(0)

    def drop_control(self, peer: Address) -> None:
        """Nothing to do: the simulation has no idle connections."""

    # --- calls --------------------------------------------------------------------------------------------------------

    async def exchange(self, peer: Address, heartbeat: Any, timeout_s: float) -> Any:
        async def handle(process: Process) -> Any:
            return process.control.exchange(heartbeat, self.caller)

        self._process.world.observe(self._process, heartbeat)
        return await self._call(peer, handle, timeout_s)

    async def probe(self, peer: Address, timeout_s: float) -> float:
        async def handle(process: Process) -> None:
            pass

        begin = self._process.loop.time()
        await self._call(peer, handle, timeout_s)
        return (self._process.loop.time() - begin) * 1000

    async def bandwidth(self, peer: Address, timeout_s: float) -> float:
        return 1e6 / await self.probe(peer, timeout_s)

    async def refuses(self, peer: Address) -> bool:
        there = self._net.machines[peer.target.rpartition(":")[0]]
        await asyncio.sleep(self._net.delay())
        refused = self._net.connected(self._process.machine, there) and there.process is None
        await asyncio.sleep(self._net.delay())
        return refused

    async def leave(self, peer: Address, node_id: str, incarnation: int, timeout_s: float) -> None:
        async def handle(process: Process) -> None:
            process.control.leave(node_id, incarnation)

        await self._call(peer, handle, timeout_s)

    async def want(self, peer: Address, model: str) -> None:
        await self._call(peer, lambda process: process.control.want(model), 60.0)

    async def command(self, peer: Address, command: Command) -> None:
        await self._call(peer, lambda process: process.control.command(command), DECIDE_TIMEOUT_S)

    async def release(self, peer: Address, model: str) -> None:
        await self._call(peer, lambda process: process.control.release(model, self.caller), 10.0)

    async def find_kv(self, peer: Address, chain: bytes) -> list[tuple[int, int, int]]:
        async def handle(process: Process) -> list[tuple[int, int, int]]:
            return await process.kv.find(chain, self.caller)

        found: list[tuple[int, int, int]] = await self._call(peer, handle, FIND_TIMEOUT_S)
        return found

    async def read_kv(self, peer: Address, chain: bytes, caches: range, _most: int) -> AsyncGenerator[bytes, None]:
        async def handle(process: Process) -> list[bytes]:
            async with aclosing(process.kv.read(chain, caches, self.caller)) as blocks:
                return [block async for block in blocks]

        for block in await self._call(peer, handle, 30.0):
            yield self._net.arrived(block)

    async def keep_kv(self, peer: Address, model: str, chain: bytes, block: bytes, bytes_per_s: float) -> None:
        async def parts() -> AsyncGenerator[bytes, None]:
            yield self._net.arrived(block)

        await self._call(peer, lambda process: process.kv.keep(model, chain, parts(), self.caller), 30.0)

    async def discard_kv(self, peer: Address, chain: bytes) -> None:
        await self._call(peer, lambda process: process.kv.discard(chain, self.caller), 5.0)

    async def _call(
        self, peer: Address, handle: Callable[[Process], Coroutine[Any, Any, Any]], timeout_s: float
    ) -> Any:
        future: asyncio.Future[Any] = self._process.loop.create_future()
        calls = self._calls.setdefault(peer, {})
        calls[future] = None
        self._ask(peer, handle, future)
        if self._net.rng.random() < self._net.weather.doubling:
            self._ask(peer, handle, future)
        try:
            async with asyncio.timeout(min(timeout_s, KEEPALIVE_S)):
                return await future
        except TimeoutError:
            slow = timeout_s <= KEEPALIVE_S
            raise (PeerTimeout if slow else PeerUnavailable)(f"{peer} did not answer in time.") from None
        finally:
            calls.pop(future, None)

    def _ask(
        self, peer: Address, handle: Callable[[Process], Coroutine[Any, Any, Any]], future: asyncio.Future[Any]
    ) -> None:
        net, here = self._net, self._process
        there = net.machines[peer.target.rpartition(":")[0]]
        if here.loop.dead or not net.connected(here.machine, there) or net.lost():
            return

        def back(settle: Callable[[], None]) -> None:
            if net.connected(there, here.machine) and not net.lost():
                net.timeline.after(net.delay(), lambda: here.loop.call_soon(lambda: future.done() or settle()))

        def refuse() -> None:
            error = PeerUnavailable(f"{peer} did not answer: unavailable.")
            back(lambda: future.set_exception(error))

        def arrive() -> None:
            process = there.process
            if process is None:
                refuse()
                return
            process.inbound[refuse] = None
            process.loop.call_soon(lambda: process.loop.create_task(serve(process), name="call"))

        async def serve(process: Process) -> None:
            try:
                result = await handle(process)
            except Exception as error:  # noqa: BLE001 - the RPC boundary
                failed = self._told(process, error)
                back(lambda: future.set_exception(failed))
            else:
                back(lambda: future.set_result(result))
            finally:
                process.inbound.pop(refuse, None)

        net.timeline.after(net.delay(), arrive)

    def _told(self, process: Process, error: Exception) -> PippinError:
        if not isinstance(error, PippinError):
            process.world.timeline.violated(f"a call to {process.name} failed: {error!r}")
        return again(as_pippin_error(error))

    # --- connections --------------------------------------------------------------------------------------------------

    def _connect(self, peer: Address, reached: Callable[[Pipe], None], refused: Callable[[PippinError], None]) -> None:
        """Connect; a moment later one of the two callbacks is called."""
        net, here = self._net, self._process
        there = net.machines[peer.target.rpartition(":")[0]]

        def arrive() -> None:
            if here.loop.dead:
                return
            process = there.process
            if process is None or not net.connected(here.machine, there):
                wait = CONNECT_S if process else net.delay()
                error = PeerUnavailable(f"{peer} did not answer: unavailable.")
                net.timeline.after(wait, lambda: here.loop.call_soon(refused, error))
                return
            pipe = Pipe(net, (here, process))
            self._opened.setdefault(peer, {})[pipe] = None
            here.pipes[pipe] = process.pipes[pipe] = None
            reached(pipe)

        net.timeline.after(net.delay(), arrive)

    async def disconnected(self, peer: Address) -> None:
        """Return when a connection to the peer is lost or cannot be made."""
        lost: asyncio.Future[None] = self._process.loop.create_future()
        pipes: list[Pipe] = []

        def finish() -> None:
            if not lost.done():
                lost.set_result(None)

        def reached(pipe: Pipe) -> None:
            pipe.broke[0] = finish
            pipes.append(pipe)

        self._connect(peer, reached, lambda _: finish())
        try:
            await lost
        finally:
            self._hang_up(pipes)

    async def generate(self, peer: Address, ring: str, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        events: asyncio.Queue[TokenEvent | PippinError | None] = asyncio.Queue()
        serving: list[asyncio.Task[None]] = []
        pipes: list[Pipe] = []
        closed = PeerUnavailable(f"The connection to {peer} was closed.")

        def reached(pipe: Pipe) -> None:
            pipes.append(pipe)
            process = pipe.ends[1]
            pipe.broke[0] = lambda: events.put_nowait(closed)
            pipe.broke[1] = lambda: [task.cancel() for task in serving]
            pipe.send(1, lambda: serving.append(process.loop.create_task(serve(pipe, process), name="generate")))

        async def serve(pipe: Pipe, process: Process) -> None:
            last: PippinError | None = None
            try:
                async with aclosing(process.rings.generate(ring, request)) as stream:
                    async for event in stream:
                        pipe.send(0, lambda event=event: events.put_nowait(event))
            except Exception as error:  # noqa: BLE001 - the RPC boundary
                last = self._told(process, error)
            pipe.send(0, lambda: events.put_nowait(last))

        self._connect(peer, reached, events.put_nowait)
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, PippinError):
                    raise event
                yield event
        finally:
            self._hang_up(pipes)

    def link(self, peer: Address, on_broken: Callable[[PippinError], None]) -> SimLink:
        return SimLink(self, peer, on_broken)

    def _hang_up(self, pipes: list[Pipe]) -> None:
        for pipe in pipes:
            if not self._process.loop.dead:
                pipe.reset(0)


class SimLink:
    """In place of node.rpc.link.FrameLink."""

    def __init__(self, client: SimClient, peer: Address, on_broken: Callable[[PippinError], None]) -> None:
        self._client = client
        self._peer = peer
        self._on_broken = on_broken
        self._closed = False
        self._error: PippinError | None = None
        self._pipe: Pipe | None = None
        self._early: list[Frame] = []
        self._swapped: Frame | None = None
        self._frames: asyncio.Queue[Frame] = asyncio.Queue()
        self._serving: asyncio.Task[None] | None = None
        client._connect(peer, self._reached, self._broke)

    async def send(self, frame: Frame) -> None:
        await asyncio.sleep(0)
        if self._error:
            raise self._error
        if self._closed:
            raise PeerUnavailable(f"The link to {self._peer} is closed.")
        if self._pipe:
            self._carry(frame)
        else:
            self._early.append(frame)

    def close(self) -> None:
        self._closed = True
        if self._pipe:
            self._client._hang_up([self._pipe])

    def _carry(self, frame: Frame) -> None:
        assert self._pipe
        net = self._pipe.net
        if sick := net.sick.get(frame.ring) or net.sick.get(""):
            if sick == "breaks":
                self._pipe.cut_off()
            return
        if net.flips():  # TLS refuses the record, as in a cluster with a secret
            self._pipe.cut_off()
            return
        fault = net.rng.random() / net.weather.frame_faults if net.weather.frame_faults else 1.0
        copies = [frame]
        if fault < 0.3:
            copies = []
        elif fault < 0.6:
            copies = [frame, frame]
        elif fault < 0.9 and self._swapped is None:
            self._swapped, copies = frame, []
        elif self._swapped:
            copies, self._swapped = [frame, self._swapped], None
        for each in copies:
            self._pipe.send(1, lambda each=each: self._frames.put_nowait(each))

    def _reached(self, pipe: Pipe) -> None:
        self._pipe = pipe
        process = pipe.ends[1]
        pipe.broke[0] = lambda: self._broke(PeerUnavailable(f"{self._peer} did not answer: unavailable."))
        pipe.broke[1] = self._cancel
        pipe.send(1, lambda: self._begin(pipe, process))
        for frame in self._early:
            self._carry(frame)
        if self._closed:
            self._client._hang_up([pipe])

    def _begin(self, pipe: Pipe, process: Process) -> None:
        self._serving = process.loop.create_task(self._serve(pipe, process), name="frames")

    def _cancel(self) -> None:
        if self._serving:
            self._serving.cancel()

    async def _serve(self, pipe: Pipe, process: Process) -> None:
        error: PippinError = PeerUnavailable(f"The link to {self._peer} is closed.")
        try:
            await process.rings.serve_link(self._incoming(), self._client.caller)
        except Exception as failure:  # noqa: BLE001 - the RPC boundary
            error = self._client._told(process, failure)
        pipe.send(0, lambda: self._broke(error))

    async def _incoming(self) -> AsyncIterator[Frame]:
        while True:
            yield await self._frames.get()

    def _broke(self, error: PippinError) -> None:
        if self._error is None:
            self._error = error
            if not self._closed:
                self._on_broken(error)
