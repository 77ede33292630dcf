"""KV on disks: a chat goes on with it after all processes were killed, and with its layers on other nodes."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from node.core.generation import GenerateRequest
from tests.sim.whole_cluster import simulated
from tests.sim.world import disk
from tests.sim.world.cluster import World
from tests.sim.world.disk import BLOCK
from tests.sim.world.loop import Violation
from tests.sim.world.machine import Ask
from tests.sim.world.model import LAYERS, MB, answer

ANSWER = 40


def begun(*, machines: int, stages: int) -> World:
    world = World(6, machines)
    world.kv_budget = 1 << 30
    world.trimmable, world.has_draft, world.guesses, world.groups, world.min_stages = True, False, False, (), stages
    for machine in world.machines.values():
        machine.usable = 700 * MB
        machine.start()
    return world


def ask(world: World, prompt: tuple[int, ...]) -> Ask:
    """Have a prompt answered by the first machine that runs."""
    world.run(8.0)
    request = GenerateRequest(f"r{len(world.asks)}", "exact", prompt, max_tokens=ANSWER)
    asked = Ask(world.processes()[0], request, answer(request))
    world.asks.append(asked)
    asked.gateway.loop.call_soon(asked.gateway.serve, asked)
    assert world.until(lambda: asked.finished, 60.0), asked
    world.run(2.0)  # the KV is written
    return asked


def turns(world: World, between: Callable[[], None]) -> float:
    """Two turns of a chat. Returns the tokens that the second one computed, apart from its answer."""
    first = ask(world, tuple(range(100, 200)))
    between()
    before = world.computed
    ask(world, (*first.request.prompt, *first.tokens, 7, 8, 9))
    assert not world.timeline.violations
    return (world.computed - before) / world.min_stages - ANSWER


def kill_all(world: World) -> None:
    for machine in world.machines.values():
        machine.kill()
    for machine in world.machines.values():
        machine.start()


def test_all_processes_are_killed():
    world = begun(machines=2, stages=2)
    with simulated(world), mock.patch.object(disk, "DAMAGE", 0.0):
        assert turns(world, lambda: kill_all(world)) < 3 + 2 * BLOCK
        assert world.restored


@pytest.mark.parametrize("stages", [1, 3, 4])
def test_the_layers_are_on_other_nodes(stages: int):
    """What a node lacks it gets from the one that computed it."""
    world = begun(machines=4, stages=2)

    def cut_anew() -> None:
        world.min_stages = stages
        kill_all(world)

    # Tokens are computed faster here than nodes read disks, so without it only a part would be awaited.
    patient = mock.patch("node.ring.restoring.MIN_S", 10.0)
    with simulated(world), patient, mock.patch.object(disk, "DAMAGE", 0.0):
        assert turns(world, cut_anew) < 3 + 2 * BLOCK
        assert world.restored >= LAYERS * 100


def test_what_is_damaged_is_computed():
    world = begun(machines=2, stages=2)
    with simulated(world), mock.patch.object(disk, "DAMAGE", 1.0):
        assert turns(world, lambda: kill_all(world)) > 100
        assert not world.restored


def test_a_full_disk_keeps_nothing_and_answers():
    world = begun(machines=2, stages=2)
    with simulated(world):
        for machine in world.machines.values():
            world.timeline.after(5.0, lambda machine=machine: setattr(machine.disk, "is_full", True))

        def free() -> None:
            assert not any(machine.disk.files for machine in world.machines.values())
            for machine in world.machines.values():
                machine.disk.heal()
            kill_all(world)

        assert turns(world, free) > 100


def test_without_its_digests_damaged_kv_would_be_noticed():
    world = begun(machines=2, stages=2)
    no_digests = mock.patch("node.kv.blocks._digest", return_value="")
    with (
        simulated(world),
        no_digests,
        mock.patch.object(disk, "DAMAGE", 1.0),
        mock.patch.object(disk, "flip", lambda data, _rng: data[:-1] + bytes([data[-1] ^ 1])),
        pytest.raises(Violation, match="no stage"),
    ):
        turns(world, lambda: kill_all(world))


@pytest.mark.parametrize(
    "fault", [{"failing": 1.0}, {"failing": 0.3}, {"is_full": True, "hides_it": True}, {"is_slow": True}]
)
def test_a_disk_that_is_sick_changes_no_answer(fault: dict[str, Any]):
    world = begun(machines=2, stages=2)

    def fall_sick() -> None:
        kill_all(world)
        world.run(6.0)  # no node becomes head with a disk to which it can't write the term
        for machine in world.machines.values():
            for name, value in fault.items():
                setattr(machine.disk, name, value)

    with simulated(world):
        turns(world, fall_sick)
        assert all(machine.disk.is_sick for machine in world.machines.values())


@pytest.mark.parametrize("fails", [True, False])
def test_what_a_failed_device_has_computed_is_taken_by_nobody(fails: bool):
    """Neither from its own disk, nor from the copies on that of an idle node."""
    world = begun(machines=3, stages=2)

    def fail() -> None:
        holder, idle = (
            next(p for p in world.processes() if bool(p.rings.reports()) is holds) for holds in (True, False)
        )
        assert holder.machine.disk.files
        assert idle.machine.disk.files
        if fails:
            holder.loop.call_soon(lambda: holder.loop.create_task(holder.stored.device_failed()))
            world.run(3.0)
            assert not holder.machine.disk.files
        kill_all(world)

    with simulated(world), mock.patch.object(disk, "DAMAGE", 0.0):
        turns(world, fail)
        assert bool(world.restored) is not fails


def test_after_a_power_cut_only_whole_blocks_are_taken():
    world = begun(machines=2, stages=2)

    def cut_power() -> None:
        for machine in world.machines.values():
            machine.pull_plug()
            machine.start()

    with simulated(world):
        turns(world, cut_power)
        assert world.faults["files lost or torn by power cuts"]
