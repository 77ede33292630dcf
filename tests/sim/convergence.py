"""How long many nodes that start at once take until all know each other and follow one head.

    python -m tests.sim.convergence NODES SEED

All are given the address of one node, and learn the others from it. Prints seconds of the simulation.
"""

import sys

from tests.sim.whole_cluster import simulated
from tests.sim.world.cluster import World
from tests.sim.world.machine import Process

LIMIT_S = 60.0
STEP_S = 0.05


def converged(processes: list[Process], count: int) -> bool:
    """Whether each process hears all, and all follow one head and its placement."""
    agents = [process.agent for process in processes]
    whole = all(len(agent.alive()) == count for agent in agents)
    opinions = {(agent.head, agent.term, agent.placement.fence) for agent in agents}
    return len(agents) == count and whole and len(opinions) == 1 and all(agent.head for agent in agents)


def convergence_s(count: int, seed: int) -> float:
    """Raises AssertionError if it takes longer than LIMIT_S."""
    world = World(seed, count)
    world.preload = False
    world.given_peers = ("n1",)
    with simulated(world):
        for machine in world.machines.values():
            machine.start()
        while world.timeline.now < LIMIT_S:
            world.run(STEP_S)
            if converged(world.processes(), count):
                return world.timeline.now
    raise AssertionError(f"{count} nodes do not agree within {LIMIT_S:.0f} s (seed {seed})")


if __name__ == "__main__":
    print(f"{convergence_s(int(sys.argv[1]), int(sys.argv[2])):.2f}")  # noqa: T201
