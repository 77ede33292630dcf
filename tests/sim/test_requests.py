"""Requests that a ring does not serve: it is full or lost, or the next one has a shorter context."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from node.core.commands import DrainNode
from node.core.generation import GenerateRequest, Sampling
from node.core.rings import Ring
from tests.sim.whole_cluster import simulated
from tests.sim.world.cluster import World
from tests.sim.world.machine import Ask
from tests.sim.world.model import MB, MODEL, SPEC, answer

PROMPT = tuple(range(200))
"""Long enough for the gateway to remember the ring that served it."""


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Two or more nodes, each with its own ring, in which one request may wait."""
    world = World(1, getattr(request, "param", 2))
    world.max_queue = 1
    with simulated(world):
        for machine in world.machines.values():
            machine.usable = 700 * MB
            machine.start()
        world.run(7.0)
        assert len(world.processes()[0].agent.placement.rings) == len(world.machines)
        yield world
        assert not world.timeline.violations


def ask(world: World, max_tokens: int, expected: int | None = None) -> Ask:
    """Send a request to the first node. `expected`: tokens of the answer, if not `max_tokens`."""
    process = world.processes()[0]
    request = GenerateRequest(f"r{len(world.asks)}", MODEL, PROMPT, max_tokens, frozenset(), Sampling(temperature=0))
    ask = Ask(process, request, answer(replace(request, max_tokens=expected or max_tokens)))
    world.asks.append(ask)
    process.loop.call_soon(process.serve, ask)
    return ask


def test_a_request_goes_to_a_replica_when_the_ring_that_knows_its_prompt_is_full(world):
    first = ask(world, 5)
    assert world.until(lambda: first.finished, 5.0)
    both = [ask(world, 5) for _ in range(2)]
    assert world.until(lambda: all(map(world.ended, both)), 5.0)
    assert [each.error for each in both] == [None, None]
    assert all(each.finished for each in both)


def test_a_request_is_refused_when_all_rings_are_full(world):
    asks = [ask(world, 5) for _ in range(12)]
    assert world.until(lambda: all(map(world.ended, asks)), 5.0)
    refused = [each for each in asks if each.error]
    assert {each.error.code for each in refused} == {"rate_limit_exceeded"}
    assert all(each.finished for each in asks if each not in refused)


def test_a_request_that_was_made_for_a_longer_context_ends_with_that_of_the_ring(world):
    room = SPEC.max_context - len(PROMPT)
    whole = ask(world, room + 1000, expected=room)
    assert world.until(lambda: world.ended(whole), 60.0)
    assert whole.finished


@pytest.mark.parametrize("world", [3], indirect=True)
def test_a_request_that_was_taken_is_not_refused_when_its_ring_is_lost_before_the_first_token(world):
    """The remaining rings are full for a while."""
    world.step_s = 0.1
    asks = []
    while len([each for each in asks if each.error]) < 3:
        asks.append(ask(world, 5))
        world.run(0.05)
    taken = [each for each in asks if not each.error]
    assert not any(each.tokens for each in taken)
    world.machines["n3"].kill()
    assert world.until(lambda: all(map(world.ended, taken)), 40.0)
    assert [each.error for each in taken if each.error] == []


@pytest.fixture
def apart() -> Iterator[tuple[World, Ring]]:
    """n1 is head and n2 a gateway; the other two hold a ring."""
    world = World(2, 4)
    world.min_stages = 2
    with simulated(world):
        head, gateway, *others = world.machines.values()
        head.start()
        world.run(3.0)
        head.process.usable = gateway.usable = 50 * MB
        for machine in (gateway, *others):
            machine.start()
        world.run(7.0)
        (ring,) = head.process.agent.placement.rings
        assert {stage.node for stage in ring.stages} == {machine.name for machine in others}
        assert head.process.agent.is_head
        yield world, ring
        assert not world.timeline.violations


def break_path(world: World, one: str, other: str) -> None:
    world.net.unreachable.add(frozenset({one, other}))
    world.net.review()
    world.run(10.0)


def test_a_ring_serves_a_gateway_that_does_not_reach_all_of_its_stages(apart):
    world, ring = apart
    break_path(world, "n2", ring.stages[1].node)
    asked = world.ask(world.machines["n2"].process, max_tokens=20)
    assert world.until(lambda: world.ended(asked), 2.0)
    assert asked.finished


def test_a_gateway_that_does_not_reach_the_driver_says_so_at_once(apart):
    world, ring = apart
    break_path(world, "n2", ring.driver)
    asked = world.ask(world.machines["n2"].process, max_tokens=20)
    assert world.until(lambda: world.ended(asked), 2.0)
    assert asked.error.code == "peer_unavailable"
    assert ring.driver in asked.error.message
    world.net.unreachable.clear()
    world.net.review()
    world.run(10.0)
    again = world.ask(world.machines["n2"].process, max_tokens=20)
    assert world.until(lambda: again.finished, 10.0)


@pytest.mark.parametrize("world", [3], indirect=True)
def test_all_who_wait_for_a_model_that_cannot_be_loaded_are_told_why(world):
    """And it is not placed again for each of them."""
    world.failing_loads = 1.0
    world.preload = False
    for machine in world.machines.values():
        machine.kill()
    world.run(1.0)
    for machine in world.machines.values():
        machine.start()
    world.run(5.0)
    asks = [world.ask(process) for process in world.processes() for _ in range(3)]
    assert world.until(lambda: all(map(world.ended, asks)), 15.0)
    assert {each.error.code for each in asks} == {"hub_unavailable"}
    assert world.processes()[0].agent.placement.fence.epoch < 15


def test_what_the_head_decides_waits_for_its_election():
    """`cluster drain` right after the nodes were started."""
    world = World(1, 2)
    with simulated(world):
        for machine in world.machines.values():
            machine.start()
        world.run(0.5)
        process = world.processes()[0]
        assert not process.agent.head
        tasks = []

        def begin() -> None:
            tasks.append(process.loop.create_task(process.commands.run(DrainNode(process.name, draining=True))))

        process.loop.call_soon(begin)
        assert world.until(lambda: bool(tasks) and tasks[0].done(), 10.0)
        assert tasks[0].result() == DrainNode(process.name, draining=True)
        assert process.agent.is_head
        assert process.agent.draining
        assert not world.timeline.violations
