"""Whole clusters on a fake clock. Each seed is another history of faults. Every request must end as without them.

    python -m tests.sim.whole_cluster 1234           one seed, with its events
    python -m tests.sim.whole_cluster 0 20000        many, quietly; stops at the first that fails

In a `gentle` history one node or path fails at a time, often with a disk or a clock as well, and the remaining nodes always hold the
model: no client may get an error. In a `wild` one everything happens at once: a client may get errors that tell it to come back later.
docs/faults.md has the figures of such runs.
"""

import contextlib
import json
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from unittest import mock

from node.rpc.client import CALL_TIMEOUT_S
from tests.sim.world.cluster import ToTimeline, World
from tests.sim.world.disk import BLOCK, HANG_S, SYSTEM
from tests.sim.world.loop import Violation
from tests.sim.world.machine import Machine, Process
from tests.sim.world.model import MB, FakeRunner, fake_load, fake_measure, fake_source
from tests.sim.world.network import Weather

CALM_S = 75.0
"""Longer than a request may wait for a ring."""
PATCHES = {
    "node.ring.roles.Runner": FakeRunner,
    "node.ring.roles.DraftModel": fake_source,
    "node.ring.loaded_shards.load_stage": fake_load,
    "node.ring.loaded_shards.measure": fake_measure,
    "node.ring.lifecycle.shortage": lambda: 0,
    "node.ring.loaded_shards.release_memory": lambda _models: (_ for _ in ()),
    "node.ring.admission.LONG_PREFIX": 20,
    "node.ring.sharing.WORTH_SHARING": 16,
    **dict.fromkeys(
        ("node.kv.blocks.BLOCK", "node.ring.admission.BLOCK", "node.ring.restoring.BLOCK", "node.ring.stored_kv.BLOCK"),
        BLOCK,
    ),
    **dict.fromkeys(("node.ring.admission.MIN_STORED", "node.ring.restoring.MIN_STORED"), 2 * BLOCK),
    "node.ring.limits.prefill_chunk": lambda *_: 16,
    "node.cluster.probes.interface_towards": lambda *_: None,
    **SYSTEM,
}


@dataclass
class Story:
    seed: int
    happened: Counter[str]
    faults: Counter[str]


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """Run the product on the fakes, with its log sent to the world."""
    handler = ToTimeline(world)
    root = logging.getLogger("node")
    level = root.level
    root.setLevel(handler.level)
    root.propagate = False
    root.addHandler(handler)
    old_hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=world.timeline.began, finalizer=world.timeline.dropped)
    try:
        with contextlib.ExitStack() as stack:
            for name, fake in PATCHES.items():
                stack.enter_context(mock.patch(name, fake))
            stack.enter_context(mock.patch("time.time", world.wall))
            stack.enter_context(mock.patch("time.time_ns", world.wall_ns))
            yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        world.end()
        sys.set_asyncgen_hooks(*old_hooks)


def simulate(seed: int, *, loud: bool = False) -> Story:
    rng = random.Random(f"plan {seed}")
    gentle = rng.random() < 0.5
    world = World(seed, rng.choice([3, 3, 4] if gentle else [2, 3, 3, 4, 5]), loud=loud)
    world.picture_rate = 0.3
    world.tell(f"seed {seed}, {'gentle' if gentle else 'wild'}")
    with simulated(world):
        (_gentle if gentle else _wild)(world, rng)
        return Story(seed, _happened(world, gentle=gentle), world.faults)


def _happened(world: World, *, gentle: bool) -> Counter[str]:
    return Counter(
        {
            "gentle histories": gentle,
            "wild histories": not gentle,
            "requests": len(world.asks),
            "errors": sum(ask.error is not None for ask in world.asks),
            "lost with their gateway": sum(world.lost(ask) for ask in world.asks),
            "steps": world.timeline.steps,
            "tokens drafted": world.drafted,
            "unloads": world.unloads,
            "frames": world.frames,
            "keys from disks": world.restored,
            "places of pictures computed": world.seen,
            "states observed": world.observed,
            "steps again": world.again,
        }
    )


def _gentle(world: World, rng: random.Random) -> None:
    machines = list(world.machines.values())
    usable = rng.choice([700, 420] if len(machines) > 3 else [700]) * MB
    for machine in machines:
        machine.usable = usable
        machine.start()
    world.min_stages = rng.choice([1, 2, 3])
    world.step_s = rng.choice([0.005, 0.02, 0.05])
    world.found_once = rng.random() < 0.3
    gateway = rng.choice(machines)
    world.run(rng.choice([0.5, 3.5]))
    for _ in range(rng.randint(1, 3)):
        assert gateway.process
        for _ in range(rng.randint(1, 6)):
            world.ask(gateway.process)
        world.run(rng.choice([0.01, 0.1, 0.5, 1.5]))
        world.maybe_unload()
        if rng.random() < 0.5:
            _small_mishap(world, rng, rng.choice(machines))
        _one_mishap(world, rng, [machine for machine in machines if machine is not gateway])
        if not world.until(lambda: all(map(world.ended, world.asks)), 25.0):
            break
        for machine in machines:
            machine.start()
            if rng.random() < 0.5:
                machine.disk.heal()
        world.maybe_unload()
        world.run(rng.choice([0.0, 0.3, 4.0]))
    _calm_down(world)
    world.check_ends(gentle=True)
    _check_peace(world)


def _one_mishap(world: World, rng: random.Random, others: list[Machine]) -> None:
    """One fault of a machine that is not the gateway, or of the path between two of them."""
    machine = rng.choice(others)
    ways = ("isolate", "break", "apart", "weather", "flips", "reset", "reset")
    match rng.choice(["kill", "kill", "plug", "leave", "stop", "back", *ways]):
        case "kill":
            machine.kill()
        case "plug":
            machine.pull_plug()
        case "leave":
            machine.leave()
        case "stop":
            machine.stop(rng.uniform(0.1, 8.0))
        case "isolate":
            world.net.side = {machine.name: 1}
            world.net.review()
            world.timeline.after(rng.uniform(0.1, 12), lambda: _heal(world))
        case "break":
            world.net.unreachable = {frozenset(rng.sample(list(world.machines), 2))}
            world.net.review()
            world.timeline.after(rng.uniform(0.1, 2), lambda: _heal(world))
        case "apart":
            world.net.unreachable = {frozenset(each.name for each in rng.sample(others, 2))}
            world.net.review()
            world.timeline.after(rng.uniform(2, 40), lambda: _heal(world))
        case "weather" | "flips" as what:
            flips = Weather(slowest_s=0.005, flips=rng.choice([0.01, 0.1]))
            world.net.weather = flips if what == "flips" else Weather(loss=0.05, doubling=0.1, slowest_s=0.1)
            world.timeline.after(3.0, lambda: _clear_up(world))
        case "reset":
            for _ in range(rng.choice([1, 1, 3])):
                machine.reset_connections(rng.choice([0.3, 1.0]))
                world.run(rng.choice([0.1, 0.5]))
        case "back":
            machine.kill()
            world.timeline.after(rng.uniform(0.05, 3.0), machine.start)


def _small_mishap(world: World, rng: random.Random, machine: Machine) -> None:
    """A fault that no client notices, whatever else happens: of the disk that keeps KV, or of a wall clock."""
    disk = machine.disk
    match what := rng.choice(["full", "quota", "slow", "hangs", "EIO", "EIO", "clock"]):
        case "full" | "quota":
            disk.is_full, disk.hides_it = True, what == "quota"
        case "slow":
            disk.is_slow = True
        case "hangs":
            disk.hangs = True
        case "EIO":
            disk.failing = rng.choice([0.05, 0.5, 1.0])
        case "clock":
            machine.jump_clock(rng.choice([-1, 1]) * rng.choice([2.0, 3600.0, 20 * 365 * 86400.0]))
            return
    world.faults["disks full" if what in ("full", "quota") else f"disks: {what}"] += 1
    world.tell(f"the disk of {machine.name}: {what}")


def _heal(world: World) -> None:
    world.tell("healed")
    world.net.side, world.net.unreachable = {}, set()
    world.net.review()


def _clear_up(world: World) -> None:
    world.net.weather = Weather(slowest_s=0.005)


def _wild(world: World, rng: random.Random) -> None:
    machines = list(world.machines.values())
    for machine in machines:
        machine.usable = rng.choice([250, 420, 700]) * MB
        world.timeline.after(rng.choice([0.0, rng.uniform(0, 5)]), machine.start)
    world.min_stages = rng.choice([1, 2, 3])
    world.preload = rng.random() < 0.8
    world.step_s = rng.choice([0.005, 0.02, 0.1])
    world.failing_steps = rng.choice([0, 0, 0, 0.003])
    world.failing_loads = rng.choice([0, 0, 0.1])
    world.run(rng.choice([0.0, 2.0, 4.0]))
    end = world.timeline.now + rng.uniform(3, 10)
    while world.timeline.now < end:
        if rng.random() < 0.5:
            _mishap(world, rng)
        else:
            for process in rng.choices(world.processes(), k=rng.randint(1, 3)) if world.processes() else ():
                world.ask(process)
        world.maybe_unload()
        world.run(rng.choice([0.0, 0.01, 0.1, 0.5, 1.0]))
    world.failing_steps = world.failing_loads = 0
    _calm_down(world)
    world.failing_steps = world.failing_loads = 1e-12  # earlier failures were allowed
    world.check_ends(gentle=False)
    _check_peace(world)


def _mishap(world: World, rng: random.Random) -> None:
    machine = rng.choice(list(world.machines.values()))
    match rng.choice(["kill", "plug", "leave", *3 * ["start"], "stop", "cancel", "reset", "reset", *NETWORK, *RARE]):
        case "kill":
            machine.kill()
        case "plug":
            machine.pull_plug()
        case "leave":
            machine.leave()
        case "start":
            machine.start()
        case "stop":
            machine.stop(rng.choice([0.3, 1.0, 4.0, 9.0]))
        case "reset":
            machine.reset_connections(rng.choice([0.3, 1.0]))
        case "memory":
            machine.kill()
            machine.usable = rng.choice([250, 420, 700]) * MB
            machine.start()
        case "sick":
            rings = [ring.id for process in world.processes() for ring in process.placed()]
            world.net.sick |= dict.fromkeys(rings[:1], "breaks")
            world.tell(f"frames of {rings[:1]} break their links")
        case "disk":
            machine.disk.heal() if machine.disk.is_sick else _small_mishap(world, rng, machine)
        case "poison":
            world.poison(machine, head=rng.choice(["", "stranger", machine.name]))
        case "cancel":
            _some_clients_go_away(world, rng)
        case mishap:
            _network_mishap(world, rng, mishap)


RARE = ("memory", "poison", "disk", "disk", "sick")
NETWORK = ("split", "break", "heal", "weather")


def _network_mishap(world: World, rng: random.Random, mishap: str) -> None:
    net = world.net
    match mishap:
        case "split":
            net.side = {name: rng.randrange(2) for name in world.machines}
        case "break":
            net.unreachable.add(frozenset(rng.sample(list(world.machines), 2)))
        case "heal":
            net.side, net.unreachable = {}, set()
        case "weather":
            net.weather = Weather(
                loss=rng.choice([0.0, 0.05, 0.3]),
                doubling=rng.choice([0.0, 0.2]),
                slowest_s=rng.choice([0.002, 0.1, 0.4]),
                frame_faults=rng.choice([0.0, 0.0, 0.02]),
                hiccups=rng.choice([0.0, 0.02, 0.2]),
                flips=rng.choice([0.0, 0.02]),
            )
    world.tell(f"network: sides {net.side}, unreachable {sorted(map(sorted, net.unreachable))}, {net.weather}")
    net.review()


def _some_clients_go_away(world: World, rng: random.Random) -> None:
    for ask in world.asks:
        if ask.task and ask.ended_at is None and rng.random() < 0.3:
            world.tell(f"the client of {ask.request.id} goes away")
            ask.cancelled = True
            ask.task.get_loop().call_soon(ask.task.cancel)


def _calm_down(world: World) -> None:
    """Stop the faults, switch all machines on and make them fast. Every request must end."""
    world.step_s = min(world.step_s, 0.02)
    _heal(world)
    _clear_up(world)
    world.until(lambda: not any(process.loop.stopped_until > world.timeline.now for process in world.processes()), 10.0)
    hung = any(machine.disk.hangs for machine in world.machines.values())
    for machine in world.machines.values():
        machine.disk.hangs = False
    world.run(HANG_S + 2.0 if hung else 2.0)  # nodes that say goodbye are gone by then
    for machine in world.machines.values():
        machine.disk.heal()
        machine.start()
    world.until(lambda: all(map(world.ended, world.asks)), CALM_S)


def _check_peace(world: World) -> None:
    """Check that the cluster heals, answers at every node, and has freed everything that it does not need."""
    if world.can_serve():
        for process in world.processes():
            _insist(world, process)
    world.run(CALL_TIMEOUT_S + 1.0)  # a node that is to free a model waits for the placement without it
    world.check_left_over()
    world.check_terms()
    world.run(0.0)
    if world.timeline.violations:
        raise Violation("; ".join(world.timeline.violations))


def _insist(world: World, process: Process) -> None:
    """Send a request again and again while the answer is to come back later: temporary failures must end."""
    end = world.timeline.now + 25.0
    while True:
        ask = world.ask(process, max_tokens=5)
        world.until(partial(world.ended, ask), 40.0)
        if ask.finished:
            return
        if world.timeline.now > end or not ask.error or not ask.error.retry_after:
            world.timeline.violated(f"{ask.request.id} after all is over: {ask.error or 'no answer'}")
            return
        world.run(ask.error.retry_after)


def main() -> None:
    if os.environ.get("PYTHONHASHSEED") != "0":  # else the order of sets of strings would differ between runs
        command = [sys.executable, "-m", "tests.sim.whole_cluster", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    seeds = [int(argument) for argument in sys.argv[1:]]
    if len(seeds) == 1:
        print(simulate(seeds[0], loud=True))  # noqa: T201
        return
    happened, faults = Counter[str](), Counter[str]()
    for seed in range(*seeds):
        try:
            story = simulate(seed)
        except AssertionError as error:
            sys.exit(f"seed {seed}: {error}\nreplay: python -m tests.sim.whole_cluster {seed}")
        happened.update(story.happened)
        faults.update(story.faults)
    print(json.dumps({"happened": happened, "faults": dict(sorted(faults.items()))}, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
