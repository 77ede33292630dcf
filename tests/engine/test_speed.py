"""The measurement of a stage's speed."""

import itertools
from types import SimpleNamespace

import mlx.core as mx
import pytest

from node.core.frames import Open
from node.engine import speed
from node.engine.device import probe_tokens
from node.engine.ghosts import find_layers
from node.engine.graph import weights_in
from node.engine.speed import measure
from node.engine.stage import Stage
from tests.engine.configurations import CONFIGURATIONS, LAYERS, TYPICAL
from tests.engine.models import at_a_stretch, load, prompt, same, write_model


@pytest.mark.parametrize("name", TYPICAL)
def test_stages_of_any_kind_can_be_measured_and_keep_nothing_of_it(name, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS[name])
    driver = load(directory, 0, 1)
    for stage in (driver, load(directory, 1, driver.plan.layers)):
        found = at_a_stretch(measure(stage))
        assert found.bytes_per_s > 0 < found.tokens_per_s
        assert (found.head_s > 0) == (stage is driver)
        assert stage.lanes.kv_bytes == 0
        stage.lanes.apply(Open(-1))  # the number of its lane is free


def test_a_measurement_that_is_broken_off_frees_its_caches(tmp_path):
    stage = load(write_model(tmp_path, CONFIGURATIONS["llama"]), 0, 2)
    pieces = measure(stage)
    next(pieces)
    pieces.close()
    stage.lanes.apply(Open(-1))


def test_it_changes_no_answer(tmp_path):
    stage = load(write_model(tmp_path, CONFIGURATIONS["llama"]), 0, LAYERS)

    def answer():
        own = stage.sibling()
        own.lanes.apply(Open(0))
        return own.finish(own.run(0, prompt(5)))

    before = answer()
    state = mx.random.state[0]
    at_a_stretch(measure(stage))
    assert same(answer(), before)
    assert same(mx.random.state[0], state)


@pytest.mark.parametrize(("seconds", "steps"), [(0.01, 8), (0.06, 4), (1.0, 2)])
def test_the_quickest_step_counts_and_slow_stages_make_few(seconds, steps, tmp_path, monkeypatch):
    stage = load(write_model(tmp_path, CONFIGURATIONS["llama"]), 1, 3)
    ticks = itertools.count(0.0, seconds)  # read before and after each step
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    made = sum(1 for _ in measure(stage, ((1,),)))
    assert made == 2 * (1 + steps)
    found = at_a_stretch(measure(stage, ((1,),)))
    layers = find_layers(stage.model)[1:3]
    expected = sum(w.nbytes for layer in layers for _, w in weights_in(layer)) / seconds
    assert found.bytes_per_s == pytest.approx(expected)
    assert found.tokens_per_s == pytest.approx(probe_tokens() / seconds)
    assert found.seconds == {}


def test_steps_of_several_tokens_are_timed_in_turns_and_the_quickest_counts(tmp_path, monkeypatch):
    stage = load(write_model(tmp_path, CONFIGURATIONS["llama"]), 0, 3)
    took = itertools.chain(
        itertools.repeat(0.09, 3 * 3),  # of a prompt, of one token, of the head
        [0.08, 0.12, 0.1, 0.05, 0.2, 0.09],  # two turns, which are more than enough
    )
    clock, ends = 0.0, itertools.cycle((False, True))

    def perf_counter():
        nonlocal clock
        clock += next(took) if next(ends) else 1.0
        return clock

    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=perf_counter))
    monkeypatch.setattr(speed, "_ENOUGH_S", 0.15)
    found = at_a_stretch(measure(stage, ((1,), (2, 4), (3,), (5,))))
    assert found.seconds == pytest.approx({1: 0.05, 2: 0.12, 4: 0.09})


@pytest.mark.parametrize(("seconds", "timed"), [(0.1, [1, 2, 4]), (0.6, [1, 2]), (1.5, [])])
def test_a_slow_stage_times_fewer_steps_of_several_tokens(seconds, timed, tmp_path, monkeypatch):
    stage = load(write_model(tmp_path, CONFIGURATIONS["llama"]), 1, 3)
    ticks = itertools.count(0.0, seconds)
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    found = at_a_stretch(measure(stage, ((1,), (2, 4), (3,), (5,))))
    assert list(found.seconds) == timed


@pytest.mark.parametrize(("end", "ahead"), [(LAYERS, True), (LAYERS - 1, False)], ids=["whole", "part"])
def test_a_step_of_one_token_is_timed_as_the_ring_runs_it(end, ahead, tmp_path, monkeypatch):
    stage = load(write_model(tmp_path, CONFIGURATIONS["llama"]), 0, end)
    seen, run = [], Stage.run

    def noted(self, lane, tokens, *args, **kwargs):
        seen.append(tokens.shape[1])
        return run(self, lane, tokens, *args, **kwargs)

    def perf_counter():
        seen.append("clock")
        return 0.01 * seen.count("clock")

    monkeypatch.setattr(Stage, "run", noted)
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=perf_counter))
    assert list(at_a_stretch(measure(stage, ((1, 2),))).seconds) == [1, 2]
    one, two = ["clock", 1, "clock"], ["clock", 2, "clock"]
    expected = [*([1] if ahead else []), *one, *two]
    assert seen[-len(expected) :] == expected
