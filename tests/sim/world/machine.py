"""A machine with a disk, and the node process that runs on it: the product's own parts on a simulated network."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from node import PROTOCOL
from node.cluster.agent import Agent
from node.cluster.allowlist import Allowlist
from node.cluster.commands import Commands
from node.cluster.control_service import ControlService
from node.cluster.head import Head
from node.cluster.heartbeats import Heartbeats
from node.core.commands import UnloadModel
from node.core.errors import HubUnavailable, PippinError
from node.core.generation import GenerateRequest, TokenEvent
from node.core.logs import RecentLines
from node.core.models import DraftChoice, HeldModel, ModelSpec, Shard
from node.core.nodes import Memory, NodeInfo
from node.core.reports import NodeReport, Path
from node.core.rings import Ring
from node.gateway.router import Router
from node.kv.copies import CopyKeeper, KvCopies, keeper_of
from node.kv.exchange import KvExchange
from node.kv.store import KvStore
from node.members.address_book import AddressBook
from node.model.weights import Weights
from node.ring.lifecycle import Rings
from node.ring.limits import RingOptions
from node.ring.stored_kv import StoredKv
from tests.sim.world.disk import Disk, DiskPath, DiskPool
from tests.sim.world.loop import ProcessLoop
from tests.sim.world.model import DRAFT, MODEL, SPEC, FakeCompute
from tests.sim.world.network import PORT, Pipe, SimClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.world.cluster import World


BEGUN = 1_700_000_000.0
"""Unix seconds at which each world begins."""


@dataclass
class Ask:
    """A client's request and its result."""

    gateway: Process
    request: GenerateRequest
    expected: list[int]
    tokens: list[int] = field(default_factory=list)
    finished: bool = False
    cancelled: bool = False
    error: PippinError | None = None
    ended_at: float | None = None
    task: asyncio.Task[None] | None = None

    def take(self, event: Any) -> str:
        """Describe the error in an event; empty if there is none."""
        if self.finished:
            return f"{self.request.id}: {event} comes after the end"
        if event.position != len(self.tokens):
            return f"{self.request.id}: position {event.position} comes after {len(self.tokens)} tokens"
        self.tokens.append(event.token)
        self.finished = event.finish is not None
        if self.tokens != self.expected[: len(self.tokens)]:
            return f"{self.request.id}: {self.tokens} is not {self.expected}"
        if self.finished and len(self.tokens) != len(self.expected):
            return f"{self.request.id}: ended after {len(self.tokens)} of {len(self.expected)} tokens"
        return ""


class Machine:
    """A machine whose disk outlives the process: identity, term, number of starts."""

    def __init__(self, world: World, number: int, usable: int) -> None:
        self.world = world
        self.name = f"n{number}"
        self.address = f"10.0.0.{number}"
        self.usable = usable
        """Of the next process."""
        self.bytes_per_s = 50e9
        """What its nodes measure when they load."""
        self.powered = True
        self.term = 0
        self.clock_ahead_s = 0.0
        """Of its wall clock, which people and programs set."""
        self.disk = Disk(world.of_disks, self.wall, lambda: world.timeline.now, world.faults)
        self.incarnation = 0
        self.process: Process | None = None

    def wall(self) -> float:
        """Its wall clock, in Unix seconds."""
        return BEGUN + self.world.timeline.now + self.clock_ahead_s

    def jump_clock(self, seconds: float) -> None:
        self.world.tell(f"the clock of {self.name} jumps by {seconds:,.0f} s")
        self.world.faults["clock jumps"] += 1
        self.clock_ahead_s += seconds

    def start(self) -> None:
        if self.process is None:
            self.powered = True
            self.incarnation += 1
            self.process = Process(self)
            self.world.tell(f"{self.name} starts")
            self.world.net.review()

    def kill(self) -> None:
        """SIGKILL: the kernel closes the connections."""
        if self.process:
            self.world.tell(f"{self.name} is killed")
            self.world.faults["kills"] += 1
            self.disk.leave_unfinished()
            self.exit()

    def exit(self) -> None:
        """The process ends."""
        if process := self.process:
            self.process = None
            process.loop.dead = True
            for refuse in list(process.inbound):
                refuse()
            for pipe in list(process.pipes):
                pipe.reset(pipe.ends.index(process))
            self.world.net.review()

    def pull_plug(self) -> None:
        """The machine loses power: no peer is told."""
        if process := self.process:
            self.world.tell(f"{self.name} loses power")
            self.world.faults["power cuts"] += 1
            self.disk.lose_power()
            if self.world.of_disks.random() < 0.2:  # a disk that told that it has what it has not
                self.term = self.world.of_disks.randrange(self.term + 1)
                self.world.faults["terms lost by power cuts"] += 1
            self.process, self.powered = None, False
            process.loop.dead = True
            self.world.net.review()

    def stop(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after `seconds`."""
        if process := self.process:
            self.world.tell(f"{self.name} stands still for {seconds:.2f} s")
            self.world.faults["processes stopped"] += 1
            process.loop.stopped_until = max(process.loop.stopped_until, self.world.timeline.now + seconds)
            self.world.net.review()
            self.world.timeline.after(seconds + 1e-6, self.world.net.review)

    def reset_connections(self, share: float) -> None:
        """Break a share of the connections; the processes at both ends live on."""
        if process := self.process:
            self.world.tell(f"connections of {self.name} are reset")
            self.world.faults["resets of connections"] += 1
            for pipe in list(process.pipes):
                if self.world.rng.random() < share:
                    pipe.cut_off()

    def leave(self) -> None:
        """SIGTERM: the node says goodbye and ends."""
        if process := self.process:
            self.world.tell(f"{self.name} says goodbye")
            self.world.faults["goodbyes"] += 1
            process.loop.call_soon(lambda: process.loop.create_task(process.leave(), name="leave"))


class FakeSpecs:
    """In place of node.cluster.model_specs.ModelSpecs."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def find(self, model: str, revision: str = "") -> ModelSpec:
        world = self._process.world
        await asyncio.sleep(world.rng.uniform(0.01, 0.1))
        alive = {report.info.id for report in self._process.agent.alive()}
        told = [process for process in world.processes() if process.name in alive]
        if world.found_once and any(process.agent.placement.specs for process in told):
            raise HubUnavailable("The hub is not reached.")
        return SPEC

    local = find

    async def with_draft(self, draft: str, model: ModelSpec) -> ModelSpec:
        await self.find(draft)
        return replace(model, draft=DRAFT)


class Process:
    """One run of a node's process, composed as node.daemon does it."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.world, self.name = machine, machine.world, machine.name
        self.usable = machine.usable
        self.loop = ProcessLoop(self.world.timeline, f"{machine.name}/{machine.incarnation}")
        self.inbound: dict[Callable[[], None], None] = {}
        self.pipes: dict[Pipe, None] = {}
        self._has_released = False
        self.world.loops.append(self.loop)
        self.loop.call_soon(self._start)

    def _start(self) -> None:
        self.info = NodeInfo(
            id=self.name,
            incarnation=self.machine.incarnation,
            name=self.name,
            cluster="home",
            version="1",
            protocol=PROTOCOL,
            addresses=(self.machine.address,),
            grpc_port=PORT,
            api_port=2,
        )
        client: Any = SimClient(self)
        compute: Any = FakeCompute(self)
        grammars: Any = None  # no request has a grammar
        specs: Any = FakeSpecs(self)
        self.book = AddressBook(self.name, client, (), anywhere=True)
        self.agent = Agent(self.info, self.machine.term, self.book, self._report, self._save_term)
        self.heartbeats = Heartbeats(self.agent, client)
        pool: Any = DiskPool(self.machine.disk)
        directory: Any = DiskPath("kv", self.machine.disk)
        store = KvStore(directory, self.world.kv_budget)
        store.open()
        self.kv = KvExchange(store, pool, client, self.agent.others, self.agent.is_member)
        self.copies = KvCopies(self.kv, self._keeper)
        self.stored = StoredKv(self.kv, compute, pool, self.copies)
        self.rings = Rings(
            self.agent,
            compute,
            client,
            self._fetch,
            grammars,
            RingOptions(
                usable=self.usable,
                max_queue=self.world.max_queue,
                max_batch=8,
                step_timeout_s=60,
                guesses=self.world.guesses,
            ),
            self.stored,
        )
        self.head = Head(self.agent, specs, context=None, max_sessions=None)
        allowlist = Allowlist(self.agent, ())
        no_responses: Any = None
        self.commands = Commands(self.agent, self.head, client, allowlist, self._id_of, self._release)
        self.control = ControlService(
            self.agent, self.head, allowlist, specs, self.commands, RecentLines(), no_responses, no_responses
        )
        self.router = Router(self.agent, self.rings, client, self.head.want)
        self.main = self.loop.create_task(self._run(), name="main")
        self.main.add_done_callback(self._ended)

    async def _run(self) -> None:
        given = self.world.given_peers or self.world.machines
        peers = [(self.world.machines[name].address, PORT) for name in given if name != self.name]
        async with asyncio.TaskGroup() as group:
            group.create_task(self.agent.run(), name="agent")
            group.create_task(self.heartbeats.run(peers), name="heartbeats")
            group.create_task(self.rings.run(), name="rings")
            group.create_task(self.head.run(), name="head")

    def placed(self) -> tuple[Ring, ...]:
        """Empty before the process has started."""
        return self.agent.placement.rings if hasattr(self, "agent") else ()

    def _ended(self, main: asyncio.Task[None]) -> None:
        if not main.cancelled():
            self.world.timeline.violated(f"{self.name} ends by itself: {main.exception()!r}")

    async def leave(self) -> None:
        await self.heartbeats.leave()
        self.loop.call_soon(self.machine.exit)

    # --- in place of a disk, a hub and an engine -------------------------------------------------------------------

    def _report(self) -> NodeReport:
        return NodeReport(
            info=self.agent.info,
            memory=Memory(self.usable, self.usable, self.rings.memory_used()),
            stages=self.rings.reports(),
            idle=self.rings.idle(),
            traffic=self.rings.traffic(),
            models=(HeldModel(MODEL),),
            preload=(MODEL,) if self.world.preload and not self._has_released else (),
            drafts=(DraftChoice(MODEL, DRAFT.id),) if self.world.has_draft else (),
            min_stages=self.world.min_stages,
            speeds=self.rings.speeds(),
            kv_budget=self.kv.store.budget,
            kv_uncopied=self.copies.behind,
            paths=self._paths(),
        )

    def _paths(self) -> tuple[Path, ...]:
        names = self.world.machines if self.world.rtt_ms is not None else ()
        return tuple(Path(name, "", self.world.rtt_ms or 0.0) for name in names if name != self.name)

    def _keeper(self, before: str) -> CopyKeeper | None:
        """Nothing measures the paths of this world."""
        alive = [each for each in self.agent.alive() if each.info.addresses]  # strangers have none
        paths = tuple(Path(each.info.id, each.info.addresses[0], 1.0, kind="ethernet") for each in alive)
        told = [replace(each, paths=paths) if each.info.id == self.name else each for each in alive]
        return keeper_of(self.name, told, self.book.address_of, before, wireless=False)

    def _release(self, model: str) -> None:
        self._has_released = True
        self.rings.release(model)
        self.agent.touch()

    def _save_term(self, term: int) -> None:
        self.machine.disk.write()
        self.machine.term = max(term, self.machine.term)

    async def _fetch(self, shard: Shard, ends: bool, progress: Any) -> Any:
        await asyncio.sleep(self.world.rng.uniform(0.001, 0.01))
        if self.world.loads_fail():
            raise HubUnavailable("The hub is not reached.")
        return self, Weights({}, {})

    async def _id_of(self, model: str) -> str:
        return model

    # --- clients ------------------------------------------------------------------------------------------------------

    def unload(self) -> None:
        """A user unloads the model, which requests load again."""
        self.world.tell(f"{self.name} is told to unload the model")
        self.loop.call_soon(lambda: self.loop.create_task(self._unload(), name="unload"))

    async def _unload(self) -> None:
        try:
            await self.commands.run(UnloadModel(MODEL))
        except PippinError as error:
            self.world.tell(f"{self.name} does not unload the model: {error}")
        else:
            self.world.unloads += 1

    def serve(self, ask: Ask) -> None:
        """An HTTP request came."""
        ask.task = self.loop.create_task(self._answer(ask), name="request")

    async def _answer(self, ask: Ask) -> None:
        try:
            async with aclosing(self.router.generate(ask.request)) as events:
                async for event in events:
                    if isinstance(event, TokenEvent) and (wrong := ask.take(event)):
                        self.world.timeline.violated(wrong)
        except PippinError as error:
            ask.error = error
        finally:
            ask.ended_at = self.world.timeline.now
