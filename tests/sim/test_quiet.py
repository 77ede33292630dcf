"""A cluster at rest: nodes exchange digests, notice losses, and have each other's present state."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any
from unittest import mock

import pytest

from node.cluster.heartbeats import HEARTBEAT_S
from node.core.views import NodeState
from tests.sim.convergence import converged, convergence_s
from tests.sim.whole_cluster import simulated
from tests.sim.world.cluster import World
from tests.sim.world.machine import Machine, Process
from tests.sim.world.network import SimClient, Weather

COUNT = 9
NOTICED_S = 2.2
"""Silence of 1.8 s, which counts from the last heartbeat, and what the machine takes to tell of it."""


@pytest.fixture
def world() -> Iterator[World]:
    """Nodes without a model, some seconds after their start."""
    world = World(7, COUNT)
    world.preload = False
    with simulated(world):
        for machine in world.machines.values():
            machine.start()
        world.run(15.0)
        assert converged(world.processes(), COUNT)
        yield world
        assert not world.timeline.violations


def states(world: World, name: str) -> set[NodeState | None]:
    """How the other running processes see a node."""
    return {
        peer.state
        for p in world.processes()
        if p.name != name
        for peer in p.agent.membership.view(0.0)
        if peer.report.info.id == name
    }


def stale(world: World) -> list[tuple[str, str]]:
    """Pairs of which the first has not the second one's present state."""
    processes = world.processes()
    return [(a.name, b.name) for a in processes for b in processes if a is not b and held(a, b) != told(b)]


def held(by: Process, of: Process) -> Any:
    (report,) = [report for report in by.agent.alive() if report.info.id == of.name] or [None]
    return report and (report.info.incarnation, report.draining, report.term, report.head, report.fence)


def told(process: Process) -> Any:
    agent = process.agent
    return agent.info.incarnation, agent.draining, agent.term, agent.head, agent.placement.fence


def test_each_pair_exchanges_digests_by_one_call_every_interval(world: World) -> None:
    sent: Counter[bool] = Counter()
    exchange = SimClient.exchange

    async def counted(self: SimClient, peer: Any, heartbeat: Any, timeout_s: float) -> Any:
        if heartbeat.held:  # else it is for an address that the user gave
            sent[heartbeat.report is not None] += 1
        return await exchange(self, peer, heartbeat, timeout_s)

    world.run(40.0)  # meanwhile round trips are measured, which goes along with heartbeats that are due
    with mock.patch.object(SimClient, "exchange", counted):
        world.run(20.0)
    pairs = COUNT * (COUNT - 1) / 2
    assert sent.total() <= 20 / HEARTBEAT_S * pairs * 1.1
    assert sent[True] < sent.total() / 10


@pytest.mark.parametrize("slowest_s", [0.05, 0.15, 0.25])
@pytest.mark.parametrize("count", [3, COUNT])
def test_nobody_is_suspect_because_messages_take_long(count: int, slowest_s: float) -> None:
    """As over Wi-Fi, whose round trips are often longer than 100 ms."""
    world, seen = World(7, count), Counter[Any]()
    world.preload = False
    with simulated(world):
        for machine in world.machines.values():
            machine.start()
        world.run(15.0)
        world.net.weather = Weather(slowest_s=slowest_s)
        while world.timeline.now < 90.0:
            world.run(0.1)
            seen.update(peer.state for process in world.processes() for peer in process.agent.membership.view(0.0))
    assert set(seen) == {NodeState.ALIVE}


@pytest.mark.parametrize("how", ["plug", "stop", "cable"])
def test_the_loss_of_a_node_is_noticed_by_all(world: World, how: str) -> None:
    machine = world.machines["n5"]
    match how:
        case "plug":
            machine.pull_plug()
        case "stop":
            machine.stop(60.0)
        case "cable":
            world.net.side = {"n5": 1}
            world.net.review()
    began = world.timeline.now
    others = [process for process in world.processes() if process.name != "n5"]
    while world.timeline.now < began + NOTICED_S:
        world.run(0.05)
    seen = {p.name: [v.state for v in p.agent.membership.view(0.0) if v.report.info.id == "n5"] for p in others}
    assert seen == {process.name: [NodeState.FAILED] for process in others}


def starve(world: World, seed: int) -> None:
    """Give each process a turn of some milliseconds now and then, as where others take all processors. Its threads for
    messages wait for theirs apart from it.
    """
    rng = Random(seed)

    def pause(machine: Machine) -> None:
        if machine.process:
            waits_s = rng.uniform(0.1, 1.2)
            machine.process.loop.stopped_until = world.timeline.now + waits_s
            world.timeline.after(waits_s + 0.005, lambda: pause(machine))

    world.net.weather = Weather(slowest_s=0.8)
    for machine in world.machines.values():
        pause(machine)


@pytest.mark.parametrize("seed", range(4))
def test_processes_that_seldom_get_a_turn_do_not_hold_each_other_dead(world: World, seed: int) -> None:
    starve(world, seed)
    seen: Counter[Any] = Counter()
    for _ in range(600):
        world.run(0.1)
        seen.update(peer.state for process in world.processes() for peer in process.agent.membership.view(0.0))
    assert NodeState.FAILED not in seen
    world.machines["n5"].pull_plug()
    assert world.until(lambda: states(world, "n5") == {NodeState.FAILED}, 12.0), "but a dead node is found"


def test_a_process_that_dies_is_noticed_at_once(world: World) -> None:
    world.machines["n5"].kill()
    world.run(1.0)
    assert states(world, "n5") == {NodeState.FAILED}


def test_a_process_that_dies_is_noticed_by_one_that_has_just_joined(world: World) -> None:
    """It may have no connection yet that could break."""
    late = world.machines["n8"]
    late.kill()
    world.run(5.0)
    late.start()

    def knows() -> bool:
        running = late.process and hasattr(late.process, "agent")
        return bool(running) and "n5" in {report.info.id for report in late.process.agent.alive()}

    assert world.until(knows, 10.0)
    world.machines["n5"].kill()
    world.run(2.0)
    assert states(world, "n5") == {NodeState.FAILED}


def test_both_sides_of_a_split_notice_it_and_heal(world: World) -> None:
    world.net.side = {"n2": 1, "n5": 1, "n6": 1}
    world.net.review()
    world.run(6.0)
    for process in world.processes():
        side = world.net.side.get(process.name, 0)
        assert {r.info.id for r in process.agent.alive()} == {
            n for n in world.machines if world.net.side.get(n, 0) == side
        }
        assert process.agent.head
    world.net.side = {}
    world.net.review()
    assert world.until(lambda: converged(world.processes(), COUNT), 8.0)


def test_a_pair_that_is_cut_off_from_each_other_is_noticed(world: World) -> None:
    world.net.unreachable = {frozenset(("n2", "n7"))}
    world.net.review()
    world.run(NOTICED_S)
    one, other = (next(p for p in world.processes() if p.name == name) for name in ("n2", "n7"))
    assert "n7" not in {report.info.id for report in one.agent.alive()}
    assert "n2" not in {report.info.id for report in other.agent.alive()}
    world.net.unreachable = set()
    world.net.review()
    assert world.until(lambda: converged(world.processes(), COUNT), 8.0)


def test_a_change_is_told_at_once(world: World) -> None:
    process = world.processes()[3]
    process.loop.call_soon(lambda: process.agent.set_draining(True))
    world.run(0.1)
    assert stale(world) == []
    assert {
        report.draining for p in world.processes() for report in p.agent.alive() if report.info.id == process.name
    } == {True}


def test_a_node_that_restarts_is_known_anew(world: World) -> None:
    for down_s in (0.05, 3.0):
        world.machines["n5"].kill()
        world.run(down_s)
        world.machines["n5"].start()
        world.run(4.0)
        assert stale(world) == []
        assert converged(world.processes(), COUNT)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_lost_late_or_doubled_all_have_the_present_state_in_the_end(seed: int) -> None:
    world = World(seed, 5)
    world.preload = False
    with simulated(world):
        for machine in world.machines.values():
            machine.start()
        world.run(4.0)
        world.net.weather = Weather(loss=0.2, doubling=0.2, slowest_s=0.4, hiccups=0.1)
        for _ in range(40):
            process = world.rng.choice(world.processes())
            match world.rng.choice(["drain", "drain", "restart", "wait"]):
                case "drain":
                    process.loop.call_soon(lambda p=process: p.agent.set_draining(not p.agent.draining))
                case "restart" if world.rng.random() < 0.3:
                    process.machine.kill()
                    world.run(world.rng.choice([0.01, 0.5]))
                    process.machine.start()
            world.run(world.rng.choice([0.0, 0.05, 0.3]))
        world.net.weather = Weather()
        world.run(20.0)
        assert stale(world) == []
        assert not world.timeline.violations


@pytest.mark.slow
def test_32_nodes_agree_soon() -> None:
    assert convergence_s(32, 1) < 5.0  # `bench.py control` prints it for 64


def test_16_nodes_agree_soon() -> None:
    assert max(convergence_s(16, seed) for seed in range(3)) < 5.0
