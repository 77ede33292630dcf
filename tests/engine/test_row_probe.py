"""Which numbers of tokens have equal bits, found by trying."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from node.core.frames import Open
from node.engine import row_probe
from node.engine.device import tuned_blas
from node.engine.ghosts import find_layers
from node.engine.row_probe import equal_rows
from node.engine.stage import Stage
from tests.engine.configurations import CONFIGURATIONS, each
from tests.engine.models import at_a_stretch, load, plan_of, shared_model, write_model

ALL = ((1, 2, 3, 4, 5),)
LONG = CONFIGURATIONS["llama"] | {"max_position_embeddings": 4096}


def probe(stage: Stage, layer_s: float = 1e-6) -> tuple[tuple[int, ...], ...]:
    """On a device that needs so long for a layer."""
    return at_a_stretch(equal_rows(stage, layer_s, 0.0))


class Odd(nn.Module):  # type: ignore[misc]
    """A module whose result [1, tokens, size] depends on more than it should."""

    def __init__(self, inner: Any, share: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner
        self.share = share

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        return self.inner(x, *args, **kwargs) * (1 + 0.01 * self.share(x, *args, **kwargs))


def group_of(groups: tuple[tuple[int, ...], ...]) -> Callable[[mx.array], float]:
    """As kernels that are chosen by the number of tokens: each group has bits of its own."""
    return lambda x: float(next((number for number, group in enumerate(groups) if x.shape[1] in group), 0))


@pytest.mark.parametrize(
    "groups",
    [
        ALL,
        ((1, 2, 3, 4), (5,)),
        ((1,), (2, 3, 4, 5)),
        ((1,), (2,), (3,), (4,), (5,)),
        ((1, 4), (2, 3, 5)),
    ],
)
@pytest.mark.parametrize("where", ["mlp", "self_attn", "lm_head"])
def test_groups_are_found_wherever_a_kernel_depends_on_the_count(groups, where, tmp_path):
    stage = load(write_model(tmp_path, CONFIGURATIONS["llama"]), 0, 2)
    module = stage.model if where == "lm_head" else find_layers(stage.model)[0]
    setattr(module, where, Odd(getattr(module, where), lambda x, *_, **__: group_of(groups)(x)))
    assert probe(stage) == groups
    assert probe(load(tmp_path, 2, 4)) == ALL


@pytest.mark.parametrize(
    "share",
    [
        lambda x: mx.mean(x, axis=1, keepdims=True),  # of all tokens of the step
        lambda x: mx.arange(x.shape[1])[None, :, None],  # of the place
        lambda x: x.shape[1] - mx.arange(x.shape[1])[None, :, None],  # of what follows
        lambda x: mx.concatenate([x[:, 1:], x[:, :1]], axis=1),
    ],
)
def test_a_kernel_that_looks_at_other_rows_is_caught(share, tmp_path):
    stage = load(write_model(tmp_path, CONFIGURATIONS["llama"]), 1, 3)
    layer = find_layers(stage.model)[1]
    layer.mlp = Odd(layer.mlp, share)
    assert probe(stage) == ((1,),)


def test_each_kind_of_layer_is_tried(tmp_path):
    path = "model.layers.2.mlp.down_proj"
    stage = load(write_model(tmp_path, CONFIGURATIONS["llama"], bits=4, others={path: 8}), 0, 4)
    layer = find_layers(stage.model)[2]
    layer.mlp.down_proj = Odd(layer.mlp.down_proj, group_of(((1,), (2, 3, 4, 5))))
    assert probe(stage) == ((1,), (2, 3, 4, 5))


def test_layers_of_other_shapes_are_of_another_kind(tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"], bits=4, others={"model.layers.2.mlp.down_proj": 8})
    some, more, head = (set(load(directory, *layers).kinds) for layers in ((1, 2), (1, 4), (0, 2)))
    assert (len(some), len(more), len(head)) == (1, 2, 2)
    assert some == more & head


def test_what_differs_with_a_long_context_or_after_others_have_left_counts(tmp_path):
    stage = load(write_model(tmp_path, LONG), 0, 2)
    layer, inner = find_layers(stage.model)[0], find_layers(stage.model)[0].self_attn

    def place(x: mx.array, mask: Any, cache: Any) -> float:
        return float(cache.keys.shape[2] > 1000 and x.shape[1] > 3)

    layer.self_attn = Odd(inner, place)
    assert probe(stage) == ((1, 2, 3), (4, 5))
    assert probe(stage, layer_s=0.032) == ((1,),), "a slow device would try short contexts only"
    layer.self_attn = Odd(inner, lambda x, mask, cache: float(isinstance(mask, mx.array) and x.shape[1] > 1))
    assert probe(stage) == ((1,), (2, 3, 4, 5))


def test_a_device_that_is_too_slow_and_a_model_that_cannot_go_back_keep_to_one_token():
    stage = load(shared_model(CONFIGURATIONS["llama"]), 0, 2)
    assert probe(stage, layer_s=0.1) == ((1,),)
    assert at_a_stretch(equal_rows(stage, 1e-6, 0.1)) == ((1,),), "a slow head"
    assert probe(load(shared_model(CONFIGURATIONS["mamba2"]), 0, 2)) == ((1,),)
    assert probe(load(shared_model(CONFIGURATIONS["gemma3_text"]), 0, 4)) == ((1,),)


def test_contexts_that_would_not_be_tried_are_not_taken_for_proven(monkeypatch):
    stage = load(shared_model(LONG), 0, 2)
    monkeypatch.setattr(row_probe, "_MOST_KV", sum(cost.bytes_for(1100) for cost in stage.plan.kv[:1]))
    assert probe(stage) == ALL
    monkeypatch.setattr(row_probe, "_MOST_KV", row_probe._MOST_KV - 1)
    assert probe(stage) == ((1,),)


def test_on_a_gpu_kernels_that_change_far_beyond_the_beginning_are_found(monkeypatch, tmp_path):
    stage = load(write_model(tmp_path, LONG | {"max_position_embeddings": 20_000}), 0, 1)
    layer = find_layers(stage.model)[0]
    layer.self_attn = Odd(layer.self_attn, lambda x, mask, cache: float(cache.offset >= 16_384 and x.shape[1] > 3))
    monkeypatch.setattr(row_probe, "is_gpu", lambda: True)
    assert probe(stage) == ((1, 2, 3), (4, 5))


def test_it_takes_the_steps_that_it_says(monkeypatch):
    stage = load(shared_model(LONG), 0, 4)
    made = 0
    run, finish = Stage.run, Stage.finish

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal made
            made += 1
            return method(*args, **kwargs)

        return call

    monkeypatch.setattr(Stage, "run", counted(run))
    monkeypatch.setattr(Stage, "finish", counted(finish))
    probe(stage)
    contexts, caches, warm_up = 2, 2, 1
    assert made == row_probe._TRIAL + contexts * caches * (row_probe._TRIAL + warm_up)


@pytest.mark.parametrize("name", each(CONFIGURATIONS))
def test_every_architecture_can_be_tried(name):
    directory = shared_model(CONFIGURATIONS[name])
    plan = plan_of(directory)
    stages = [load(directory, start, plan.layers) for start in (0, *plan.cuts[-1:])]
    for stage in stages:
        groups = probe(stage)
        assert groups[0][0] == 1
        assert stage.plan.trimmable or groups == ((1,),)
        stage.lanes.apply(Open(-1))


@pytest.mark.parametrize(
    ("bits", "dtype", "kv_bits"),
    [(0, mx.float32, 0), (4, mx.float32, 0), (0, mx.bfloat16, 0), (4, mx.bfloat16, 0), (4, mx.float32, 8)],
)
def test_the_kernels_of_this_machine(bits, dtype, kv_bits, tmp_path: Path):
    config = LONG | {"hidden_size": 128, "head_dim": 32, "intermediate_size": 256}
    groups = probe(load(shared_model(config, bits=bits, dtype=dtype), 0, 4, kv_bits))
    known = {ALL, ((1,), (2, 3, 4, 5))}  # the wheel's BLAS, and BLIS in float32
    assert groups in known


PROBE = """
import sys
from pathlib import Path
from tests.engine.models import load
from tests.engine.test_row_probe import probe
print(probe(load(Path(sys.argv[1]), 0, 4)))
"""


@pytest.mark.slow
@pytest.mark.skipif("blis" not in tuned_blas(), reason="needs libblis4-pthread")
@pytest.mark.parametrize(("bits", "dtype"), [(0, mx.float32), (4, mx.float32), (0, mx.bfloat16)])
def test_another_library_has_other_groups(bits, dtype):
    """As with Metal's kernels on later chips, one row of float32 takes another kernel with BLIS."""
    config = LONG | {"hidden_size": 256, "head_dim": 64, "intermediate_size": 512}
    directory = shared_model(config, bits=bits, dtype=dtype)
    preloaded = {**os.environ, "LD_PRELOAD": tuned_blas(), "BLIS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROBE, str(directory)]
    done = subprocess.run(command, env=preloaded, capture_output=True, text=True, check=True)
    # MLX computes bfloat16 by itself.
    assert done.stdout.strip() == str(ALL if dtype == mx.bfloat16 else ((1,), (2, 3, 4, 5)))
