"""A driver is lost after it has sampled a token that no gateway has received yet."""

from collections.abc import Callable

import pytest

from node.ring.driver import Driver
from tests.sim.whole_cluster import simulated
from tests.sim.world.cluster import World
from tests.sim.world.machine import Ask, Machine
from tests.sim.world.model import MB

LOSSES: dict[str, Callable[[Machine], None]] = {
    "killed": Machine.kill,
    "unplugged": Machine.pull_plug,
    "stopped": lambda machine: machine.stop(4.0),
    "leaves": Machine.leave,
}


def drawn(world: World, ask: Ask) -> dict[str, int]:
    """Number of tokens of an answer that each machine's driver has sampled."""
    return {
        process.name: session.generated
        for process in world.processes()
        for part in process.rings._parts.values()
        if isinstance(part.role, Driver)
        for session in part.role._scheduler.admission.sessions()
        if session.request.id == ask.request.id
    }


@pytest.mark.parametrize("at", [1, 7, 40])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_token_that_was_drawn_and_not_told_comes_once(loss: str, at: int) -> None:
    world = World(at, 3)
    with simulated(world):
        world.step_s = 0.02
        for machine in world.machines.values():
            machine.usable = (300 if machine.name == "n3" else 700) * MB
            machine.start()
        world.run(7.0)
        gateway = world.machines["n3"].process
        assert gateway
        ask = world.ask(gateway, max_tokens=80, stop_tokens=frozenset())
        for _ in range(200_000):
            world.run(0.00005)
            ahead = [name for name, count in drawn(world, ask).items() if count > len(ask.tokens) >= at]
            if ahead:
                break
        told = len(ask.tokens)
        assert at <= told < 80
        LOSSES[loss](world.machines[ahead[0]])
        assert world.until(lambda: world.ended(ask), 30.0)
        assert ask.finished
        assert len(ask.tokens) == 80
