"""A whole cluster, the faults that happen to it, and the invariants that must hold in any case."""

from __future__ import annotations

import logging
import random
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from node.core.errors import PippinError
from node.core.generation import GenerateRequest, Sampling
from node.core.limits import COUNTER_LIMIT
from node.core.models import ModelSpec
from node.core.nodes import Memory, NodeInfo
from node.core.pictures import Picture
from node.core.reports import Heartbeat, NodeReport
from node.core.rings import Fence, Placement, Ring, StageSpec
from node.members.election import MAX_TERM_LEAD
from node.placement.place import place
from node.ring.driver import Driver
from node.ring.worker import Worker
from node.rpc.client import DECIDE_TIMEOUT_S
from tests.sim.world.loop import ProcessLoop, Timeline
from tests.sim.world.machine import BEGUN, Ask, Machine, Process
from tests.sim.world.model import DRAFT, LAYERS, MB, MODEL, PLACES, SPEC, VOCABULARY, answer
from tests.sim.world.network import Network

PASSING = {
    "not_ready",
    "no_capacity",
    "ring_lost",
    "peer_unavailable",
    "peer_timeout",
    "stale_fence",
    "rate_limit_exceeded",
}
"""Errors that a client may get while nodes come and go. All tell it to come back later."""


class World:
    def __init__(self, seed: int, count: int, *, loud: bool = False) -> None:
        self.rng = random.Random(seed)
        self.timeline = Timeline()
        self.faults = Counter[str]()
        """What has happened, by its kind."""
        self.net = Network(self.timeline, self.rng, random.Random(f"flips {seed}"), self.faults)
        self.of_disks = random.Random(f"disks {seed}")
        self.kv_budget = self.of_disks.choice([20_000, 200_000, 1 << 30])
        """Bytes of KV that each node keeps on its disk."""
        self.loud = loud
        self.preload = True
        self.min_stages = 1
        self.max_queue = 64
        self.step_s = 0.01
        self.rtt_ms: float | None = None
        """What nodes tell of the paths between them; None: they have not measured these."""
        self.trimmable = self.rng.random() < 0.7
        self.guesses = True
        self.computed = 0
        """Number of positions that stages have computed."""
        self.loads = 0
        """Number of stages that were loaded."""
        self.failing_steps = 0.0
        self.failing_loads = 0.0
        self.found_once = False
        """Whether the hub is unreachable once a live node has the model's description: nodes must tell each other."""
        self.machines = {f"n{k}": Machine(self, k, 1000 * MB) for k in range(1, count + 1)}
        speeds = random.Random(f"speeds {seed}")
        for machine in self.machines.values():
            machine.bytes_per_s = speeds.choice([25e9, 50e9, 100e9])
        self.of_drafts = random.Random(f"drafts {seed}")
        self.has_draft = self.of_drafts.random() < 0.5
        self.draft_rate = self.of_drafts.choice([0.0, 0.5, 0.9])
        """Of tokens that the draft model guesses rightly."""
        self.of_pictures = random.Random(f"pictures {seed}")
        self.picture_rate = 0.0
        """Share of requests that have a picture of their own."""
        self.mutual = self.of_pictures.random() < 0.5
        """Whether the places of a picture see each other."""
        self.of_guesses = random.Random(f"guesses {seed}")
        self.observes = self.of_guesses.random() < 0.6
        """The draft model is an MTP layer, which needs the states that the last stage computes."""
        self.spoiling = self.of_guesses.choice([0.0, 0.0, 0.05])
        """Of steps with guesses: those in which a guess spoils what the tokens before it give."""
        self.observed = self.again = 0
        """Number of states that MTP layers were told, and of steps that were computed again without guesses."""
        self.restored = 0
        """Number of positions that stages have taken from disks."""
        self.before: dict[int, int] = {}
        """Of each key that a stage has computed, the key before it in its layer; 0 if it is the first."""
        self.seen = 0
        """Number of places of pictures that towers have computed."""
        self.drafted = 0
        """Number of tokens that draft models have drawn."""
        self.groups = random.Random(f"rows {seed}").choice([((1, 2, 3, 4, 5),), ((1,), (2, 3, 4)), ((1,), (2,))])
        """Numbers of tokens of one session whose steps give equal bits."""
        self.frames = 0
        """Steps of several tokens of one session, some of them guesses, that a stage computed."""
        self.of_unloads = random.Random(f"unloads {seed}")
        self.unloads = 0
        """How often the model was unloaded for a user."""
        self.given_peers: tuple[str, ...] = ()
        """The machines whose addresses all nodes are given; empty: all."""
        self.net.machines = {machine.address: machine for machine in self.machines.values()}
        self.asks: list[Ask] = []
        self.loops: list[ProcessLoop] = []
        self._accepted: dict[tuple[str, int, int], str] = {}
        self._fences: dict[tuple[str, int], Fence] = {}
        self._rings: dict[str, tuple[StageSpec, ...]] = {}

    @property
    def spec(self) -> ModelSpec:
        return replace(SPEC, draft=DRAFT) if self.has_draft else SPEC

    def tell(self, event: str) -> None:
        if self.loud:
            print(f"{self.timeline.now:8.3f} -- {event}")  # noqa: T201

    def wall(self) -> float:
        """The wall clock of the machine whose process runs now."""
        name = self.timeline.running.partition("/")[0]
        return self.machines[name].wall() if name else BEGUN

    def wall_ns(self) -> int:
        return int(self.wall() * 1e9)

    def run(self, seconds: float) -> None:
        self.timeline.run(self.timeline.now + seconds)

    def until(self, holds: Callable[[], bool], within: float) -> bool:
        end = self.timeline.now + within
        while not holds():
            if self.timeline.now >= end:
                return False
            self.run(0.25)
        return True

    def end(self) -> None:
        """Let all coroutines end, also those of killed processes: their effects reach nobody any more."""
        self.timeline.over = True
        for machine in self.machines.values():
            machine.powered = False
        for loop in self.loops:
            loop.dead, loop.stopped_until = False, 0.0
            for handle in loop.missed:
                self.timeline.push(self.timeline.now, loop, handle)
        for _ in range(3):  # ending tasks may begin new ones
            for loop in self.loops:
                for task in loop.tasks():
                    task.cancel()
            self.timeline.run(self.timeline.now + 10.0)

    # --- faults that the fakes ask for -------------------------------------------------------------------------------

    def steps_fail(self) -> bool:
        return self.failing_steps > 0 and self.rng.random() < self.failing_steps

    def loads_fail(self) -> bool:
        return self.failing_loads > 0 and self.rng.random() < self.failing_loads

    # --- clients ------------------------------------------------------------------------------------------------------

    def request(self, **given: Any) -> GenerateRequest:
        rng = self.rng
        old = rng.choice(self.asks) if self.asks and rng.random() < 0.4 else None
        known = (*old.request.prompt, *old.tokens)[:150] if old else ()
        cut = sum(token >= VOCABULARY for token in known) // PLACES
        pictures = old.request.pictures[:cut] if old else ()
        while sum(token >= VOCABULARY for token in known) > cut * PLACES:  # of one that is there only in part
            known = known[:-1]
        if self.of_pictures.random() < self.picture_rate:
            pictures = (*pictures, Picture(1, 1, self.of_pictures.randbytes(3)))
            known = (*known, *pictures[-1].numbers(PLACES, VOCABULARY))
        prompt = (*known, *(rng.randrange(VOCABULARY) for _ in range(rng.choice([1, 5, 20, 60]))))
        sampling = Sampling(temperature=rng.choice([0.0, 1.0]), seed=rng.randrange(1000))
        stops = frozenset(rng.sample(range(VOCABULARY), 40))
        client = str(len(self.asks) % 3)
        how = {
            "max_tokens": rng.choice([1, 8, 30, 80]),
            "stop_tokens": stops,
            "client": client,
            "pictures": pictures,
            **given,
        }
        return GenerateRequest(f"r{len(self.asks)}", MODEL, prompt, sampling=sampling, **how)

    def ask(self, gateway: Process, **given: Any) -> Ask:
        request = self.request(**given)
        expected = answer(request)
        predicts = 0.2 if self.has_draft else 0.7
        predicted = (
            [token if self.rng.random() < 0.8 else 3 for token in expected] if self.rng.random() < predicts else ()
        )
        ask = Ask(gateway, replace(request, prediction=tuple(predicted)), expected)
        self.asks.append(ask)
        self.tell(f"{gateway.name} is asked {request.id}: {len(request.prompt)} tokens, {len(ask.expected)} to come")
        gateway.loop.call_soon(gateway.serve, ask)
        return ask

    def processes(self) -> list[Process]:
        return [machine.process for machine in self.machines.values() if machine.process]

    def lost(self, ask: Ask) -> bool:
        """Whether the gateway's process is gone, so that the client saw its connection close."""
        return ask.ended_at is None and ask.gateway.loop.dead

    def ended(self, ask: Ask) -> bool:
        return ask.ended_at is not None or self.lost(ask)

    def maybe_unload(self) -> None:
        """A user may unload the model, at any node. It has to be found again, so not where it is found only once."""
        if not self.found_once and self.of_unloads.random() < 0.15 and (processes := self.processes()):
            self.of_unloads.choice(processes).unload()

    def poison(self, machine: Machine, head: str) -> None:
        """A stranger sends the highest numbers that pass the checks."""
        most = COUNTER_LIMIT - 1
        info = NodeInfo("stranger", most, "stranger", "home", "1", 1, (), 1, 2)
        fence = Fence(most, most)
        report = NodeReport(info, Memory(most, 0), term=most, head=head, fence=fence)
        if process := machine.process:
            self.tell(f"a stranger follows {head!r} and talks to {machine.name}")
            heartbeat = Heartbeat(report, Placement(fence, head))
            process.loop.call_soon(lambda: process.agent.heard(heartbeat))

    # --- invariants ---------------------------------------------------------------------------------------------------

    def observe(self, process: Process, heartbeat: Heartbeat) -> None:
        """Check a node's own report."""
        report = heartbeat.report
        if report is None:  # it was checked when it was told
            return
        name, term = report.info.id, report.term
        if report.head:
            first = self._accepted.setdefault((name, report.info.incarnation, term), report.head)
            if first != report.head:
                self.timeline.violated(f"{name} accepts both {first} and {report.head} in term {term}")
        if process.machine.term < term and (not report.disk_error or report.head == name):
            self.timeline.violated(f"{name} tells of term {term} before it is saved")
        life = (name, report.info.incarnation)
        if report.fence < self._fences.get(life, Fence()):
            self.timeline.violated(f"{name} goes back to {report.fence} from {self._fences[life]}")
        self._fences[life] = report.fence
        placement = process.agent.placement
        accepted = self._accepted.get((*life, placement.fence.term), placement.head)
        if placement.head != accepted:
            self.timeline.violated(f"{name} follows {accepted} in term {placement.fence.term}, not {placement.head}")
        for ring in process.agent.placement.rings:
            self._check_ring(process, ring)

    def _check_ring(self, process: Process, ring: Ring) -> None:
        stages = self._rings.setdefault(ring.id, ring.stages)
        marks = [0, *(stage.end for stage in ring.stages)]
        covered = all(stage.start == mark < stage.end for stage, mark in zip(ring.stages, marks, strict=False))
        nodes = {stage.node for stage in ring.stages}
        if stages != ring.stages or not covered or marks[-1] != LAYERS or len(nodes) != len(ring.stages):
            self.timeline.violated(f"{process.name} holds with a ring that covers {marks} of {LAYERS}: {ring}")

    def can_serve(self) -> bool:
        """Whether the nodes have room for the model, whatever they hold now."""
        nodes = []
        for process in self.processes():
            info = NodeInfo(process.name, 1, process.name, "home", "1", 1, (), 1, 2)
            nodes.append(NodeReport(info, Memory(process.usable, process.usable)))
        return bool(nodes) and not place([self.spec], nodes, fence=Fence(1, 1), head="x").refused

    def check_ends(self, *, gentle: bool) -> None:
        for ask in self.asks:
            name = ask.request.id
            if not self.ended(ask):
                self.timeline.violated(f"{name} never ends: {len(ask.tokens)} of {len(ask.expected)} tokens")
            elif ask.error is None and not (ask.finished or ask.cancelled or self.lost(ask)):
                self.timeline.violated(f"{name} ends without a last token and without an error")
            elif ask.error and (gentle or not self._proper(ask.error)):
                self.timeline.violated(f"{name} ends with {ask.error.code}: {ask.error} after {len(ask.tokens)} tokens")

    def _proper(self, error: PippinError) -> bool:
        if error.code == "step_failed":
            return self.failing_steps > 0
        if error.code == "hub_unavailable":
            return self.failing_loads > 0
        return error.code in PASSING and error.retry_after is not None

    def check_terms(self) -> None:
        """Check that no term comes near the highest one."""
        for process in self.processes():
            fence = process.agent.placement.fence
            if max(process.agent.term, fence.term, fence.epoch) > 1000 * MAX_TERM_LEAD:
                self.timeline.violated(f"{process.name} is in term {process.agent.term} and follows {fence}")

    def check_left_over(self) -> None:
        """Check that nothing remains but kept prefixes and connections of rings: no session, other
        KV or needless task.
        """
        # The links of a ring that was replaced just now end when the other side hears of it,
        self.until(lambda: not any(map(_stray_links, self.processes())), 1.0)
        # and a call whose own calls were lost ends when those time out.
        self.until(lambda: not any("call" in _task_names(process) for process in self.processes()), DECIDE_TIMEOUT_S)
        for process in self.processes():
            for role in _roles(process):
                stage = role.runner._stage
                if stage.lanes:
                    self.timeline.violated(f"{process.name} still has the KV of lanes {list(stage.lanes)}")
                if (scheduler := getattr(role, "_scheduler", None)) and (left := scheduler.admission.sessions()):
                    self.timeline.violated(f"{process.name} still has {len(left)} sessions")
            used = process.rings.memory_used()
            if used > process.usable:
                self.timeline.violated(f"{process.name} uses {used} bytes of {process.usable}")
            strays = [name for name in _task_names(process) if name in ("generate", "request", "call")]
            if strays or _stray_links(process):
                self.timeline.violated(f"{process.name} still runs {strays}, and {_stray_links(process)} stray links")


def _roles(process: Process) -> list[Driver | Worker]:
    return [part.role for part in process.rings._parts.values() if part.role]


def _task_names(process: Process) -> list[str]:
    return [task.get_name() for task in process.loop.tasks()]


def _stray_links(process: Process) -> int:
    """Number of links that are served for rings that the process has left."""
    links = _task_names(process).count("frames")
    return max(0, links - len(_roles(process)))


class ToTimeline(logging.Handler):
    """Shows the product's log with the simulation's time. An unexpected exception in it is a violation."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG if world.loud else logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        timeline = self._world.timeline
        if self._world.loud:
            print(f"{timeline.now:8.3f} {timeline.running:5} {record.getMessage()}")  # noqa: T201
        if record.exc_info and record.exc_info[1]:
            told = "".join(traceback.format_exception(record.exc_info[1]))
            timeline.violated(f"unexpected in the log: {record.getMessage()}\n{told}")
