"""KV of an ended ring: sequences that stopped at different places continue from the last common token."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from node.core.frames import Drop, Filter, Forget, Frame, Held, Keep, Merge, Open, Reuse, Take
from node.core.rings import Fence
from node.engine.faults import Faults
from node.engine.runner import Runner
from node.engine.stage import Stage
from node.engine.verdict import StepFailed
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import Stages, Whole, likeliest, prompt, shared_model

CUT = (0, 1, 4)


def succeed(stage: Stage, held: Sequence[Held]) -> tuple[Held, ...]:
    """End the stage's ring, and begin one of the same layers."""
    stage.lanes.leave(stage.leftover)
    return stage.lanes.inherit(stage.leftover, held)


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "gemma3_text", "qwen3_next", "mamba2"])
def test_sequences_go_on_from_where_all_stages_have_them(name):
    directory = shared_model(CONFIGURATIONS[name])
    ring = Stages(directory).ring(*CUT)
    ring.apply(Open(1), Open(2), Open(3))
    tokens = [likeliest(ring.step(prompt(4 * k, seed=k), lane=k)) for k in (1, 2)]
    ring.step(prompt(9, seed=3), lane=3)
    ring.apply(Merge(7, 1), Merge(7, 2), Filter(7, (1, 0)), Keep(3, 0, prefix=5, tokens=9))
    ring.step(mx.concatenate([tokens[1], tokens[0]]), lane=7)
    # The next step of both, and the prompt's next chunk, are lost between the stages.
    driver, last = ring.stages
    driver.run(7, mx.array([[1], [2]], mx.int32))
    driver.run(3, prompt(4, seed=9))

    held = (Held(1, 6), Held(2, 10), Held(3, 13), Held(4, 2), Held(5, 9))
    for stage in (driver, last):
        held = succeed(stage, held)
    whole_sequences = {3: 9, 5: 9, 1: 5, 2: 9} if driver.plan.trimmable else {5: 9}
    assert {each.number: each.tokens for each in held} == whole_sequences

    for lane, (number, count) in enumerate(whole_sequences.items(), start=20):
        ring.apply(Reuse(lane, number, count), Forget(number))
        whole = Whole(directory)
        if number in (1, 2):
            whole.step(prompt(4 * number, seed=number))
            whole.step(tokens[number - 1])
        else:
            whole.step(prompt(9, seed=3))
        assert mx.allclose(ring.step(prompt(2), lane=lane), whole.step(prompt(2)), atol=1e-4)


def test_a_taken_prefix_keeps_its_number():
    """So it is found again if the ring ends before all stages know that it was taken."""
    driver, last = Stages(shared_model(CONFIGURATIONS["llama"])).ring(*CUT).stages
    for stage in (driver, last):
        stage.lanes.apply(Open(1))
    last.run(1, None, driver.run(1, prompt(20)))
    for stage in (driver, last):
        stage.lanes.apply(Keep(1, 0, prefix=5, tokens=20))
        stage.lanes.apply(Drop(1))
    driver.lanes.apply(Take(6, prefix=5))
    driver.run(6, prompt(4))
    held = [Held(5, 24)]
    for stage in (driver, last):
        held = succeed(stage, held)
    assert held == (Held(5, 20),)


def test_what_is_not_named_is_freed():
    driver, last = Stages(shared_model(CONFIGURATIONS["llama"])).ring(*CUT).stages
    for lane in (1, 2):
        driver.lanes.apply(Open(lane))
        driver.run(lane, prompt(5))
    driver.lanes.apply(Keep(1, 0, prefix=3, tokens=5))
    before = driver.lanes.kv_bytes
    assert succeed(driver, [Held(2, 5), Held(9, 5)]) == (Held(2, 5),)
    assert 0 < driver.lanes.kv_bytes < before
    assert succeed(driver, [Held(2, 4)]) == (Held(2, 4),)  # again: the ring ended before it had really begun
    driver.lanes.apply(Forget(2))
    assert driver.lanes.kv_bytes == 0
    assert succeed(last, [Held(2, 4)]) == ()


def test_each_sequence_has_the_number_of_the_lane_in_which_it_began():
    (stage,) = Stages(shared_model(CONFIGURATIONS["llama"])).ring(0, 4).stages
    for lane in (1, 2, 3):
        stage.lanes.apply(Open(lane))
        stage.run(lane, prompt(5 + lane))
    for op in (Merge(2, 3), Merge(1, 2), Keep(1, 2, prefix=4, tokens=8), Reuse(5, 4, 7), Filter(1, (2, 0))):
        stage.lanes.apply(op)
    counts = {1: 6, 3: 8, 4: 8, 5: 7}
    held = succeed(stage, [Held(number, 100) for number in range(1, 9)])
    assert {each.number: each.tokens for each in held} == counts


def test_what_stopped_elsewhere_and_cannot_go_back_is_freed():
    (stage,) = Stages(shared_model(CONFIGURATIONS["gemma3_text"])).ring(0, 4).stages
    stage.lanes.apply(Open(1))
    stage.run(1, prompt(5))
    before = stage.lanes.kv_bytes
    assert succeed(stage, [Held(1, 4)]) == ()
    assert stage.lanes.kv_bytes < before


@pytest.mark.slow
def test_a_lane_is_never_there_twice():
    (stage,) = Stages(shared_model(CONFIGURATIONS["llama"])).ring(0, 4).stages
    for lane in range(1, 9):
        stage.lanes.apply(Open(lane))
        stage.run(lane, prompt(500, seed=lane))
        stage.lanes.apply(Merge(20, lane))
    stage.run(20, mx.ones((8, 1), mx.int32))
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    asked = tuple(Held(number, 501) for number in range(1, 9))
    assert succeed(stage, asked) == asked
    assert mx.get_peak_memory() - before < 0.4 * stage.lanes.kv_bytes  # one layer of four


def test_a_step_that_fails_costs_its_own_lane_only(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = shared_model(CONFIGURATIONS["llama"])
    (stage,) = Stages(directory).ring(0, 4).stages
    runner = Runner(stage, directory, Faults())

    def frame(lane: int) -> Frame:
        return Frame("r", Fence(1, 1), 0, ops=(Open(lane),), lane=lane)

    for lane in (1, 2):
        list(runner.run(frame(lane), [[5, 6, 7]]))
    with monkeypatch.context() as broken:

        def fail(*_: Any) -> None:
            raise RuntimeError("out of memory")

        broken.setattr(stage, "_body", fail)
        with pytest.raises(StepFailed, match="out of memory"):
            list(runner.run(Frame("r", Fence(1, 1), 1, lane=1), [[8]]))
    runner.kv.leave()
    assert runner.kv.nbytes == 0
    successor = Runner(stage.sibling(), directory, Faults())
    assert successor.kv.inherit([Held(1, 3), Held(2, 3)]) == (Held(2, 3),)
    assert successor.kv.nbytes > 0
    assert stage.leftover.nbytes == 0


def test_kv_that_cannot_be_kept_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = shared_model(CONFIGURATIONS["llama"])
    (stage,) = Stages(directory).ring(0, 4).stages
    runner = Runner(stage, directory, Faults())
    list(runner.run(Frame("r", Fence(1, 1), 0, ops=(Open(1),), lane=1), [[5, 6, 7]]))

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(stage.lanes, "_split", fail)
    runner.kv.leave()
    assert runner.kv.inherit([Held(1, 3)]) == ()
    assert runner.kv.nbytes == stage.lanes.kv_bytes == stage.leftover.nbytes == 0
