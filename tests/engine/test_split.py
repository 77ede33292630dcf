"""Every architecture, cut into 2 and 3 stages, computes the same bits as the whole model."""

import itertools
import json
import os
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models import gated_delta, rwkv7, ssm

from node.core.errors import ModelUnsupported
from node.engine import architectures
from node.engine.architectures import (
    PROVEN,
    REFUSED,
    SUPPORTED,
    UNBATCHABLE,
    UNPROVEN_ON_METAL,
    check_supported,
    code_of,
    fingerprint,
    is_of_mlx_vlm,
    module_of,
)
from node.engine.plan import make_plan
from tests.engine import configurations
from tests.engine.configurations import CONFIGURATIONS, each
from tests.engine.models import Stages, Whole, likeliest, plan_of, prompt, same, shared_model

GREEDY_STEPS = 10
"""With the prompt, more tokens than the windows of all configurations (16), but for those that other tests are about."""
QUANTIZED = (
    "llama/sliding", "qwen3_moe", "deepseek_v3", "gemma3n", "qwen3_next", "gpt_oss", "mamba2", "gemma4_text", "deepseek_v4", "glm5_next",
    "hy_v4", "mimo_v2", "minimax_m3/sparse", "qwen4_exp", "step3p7",
)  # fmt: skip
FORMATS = [("affine", bits) for bits in (3, 5, 6, 8)] + [("mxfp4", 4), ("nvfp4", 4), ("mxfp8", 8)]


def kernel_of(config):
    return None if is_of_mlx_vlm(module_of(config)) else UNPROVEN_ON_METAL.get(module_of(config))


PROVING = "PIPPIN_PROVING" in os.environ
"""Whether the fingerprints of the modules whose tests pass are written, with one process: `PIPPIN_PROVING=1 pytest
tests/engine/test_split.py -k equals_whole -p no:xdist`. Commit them with the new version of mlx-lm.
"""


@pytest.fixture(autouse=PROVING)
def any_code(monkeypatch):
    monkeypatch.setattr(architectures, "PROVEN", {name: fingerprint(name) for name in SUPPORTED})


def note_proof(name):
    file = Path(architectures.__file__).with_name("proven.json")
    proven = json.loads(file.read_text()) | {name: fingerprint(name)}
    file.write_text(json.dumps(dict(sorted(proven.items())), indent=0) + "\n")


def check_split(directory, cuts, layers):
    """Compare two chunks of a prompt and then greedy tokens: at all 2-way cuts, and at 3-way cuts from end to end."""
    whole = Whole(directory)
    tokens = [prompt(7), prompt(6, seed=2)]
    logits = [whole.step(chunk) for chunk in tokens]
    for _ in range(GREEDY_STEPS):
        tokens.append(likeliest(logits[-1]))
        logits.append(whole.step(tokens[-1]))
    last = mx.where(mx.isinf(logits[-1]), 0, logits[-1])
    assert mx.isfinite(last).all()
    assert mx.std(last) > 1e-3, "the model says nothing that could be compared"

    stages = Stages(directory)
    pairs = list(itertools.combinations(cuts, 2))
    three = pairs if len(pairs) <= 3 else [pairs[0], pairs[len(pairs) // 2], pairs[-1]]
    for inner in ((), *((cut,) for cut in cuts), *three):
        ring = stages.ring(0, *inner, layers)
        for step, (chunk, expected) in enumerate(zip(tokens, logits, strict=True)):
            assert same(ring.step(chunk), expected), f"cut at {inner}: step {step} differs"
    return whole


@pytest.mark.parametrize("name", each(CONFIGURATIONS))
def test_split_equals_whole(name):
    directory = shared_model(CONFIGURATIONS[name])
    plan = plan_of(directory)
    assert plan.cuts, "a model that cannot be cut is not one that Pippin supports"
    whole = check_split(directory, plan.cuts, plan.layers)
    assert depends_on_chunks(whole) == plan.chunked
    if PROVING:
        note_proof(plan.model_type)


def test_the_code_is_that_of_the_proof(monkeypatch):
    assert {name: fingerprint(name) for name in SUPPORTED} == PROVEN
    monkeypatch.setattr(architectures, "PROVEN", PROVEN | {"llama": "0" * 16})
    with pytest.raises(ModelUnsupported, match="type mistral are unproven with this mlx-lm"):
        check_supported({"model_type": "mistral"})
    assert check_supported({"model_type": "qwen3"}) == "qwen3"


def depends_on_chunks(whole):
    """Whether the result depends on the division of a prompt into steps."""
    tokens = prompt(90)
    together, apart = whole.fresh(), whole.fresh()
    expected = together.step(tokens)[0, -1]
    for begin, end in itertools.pairwise((0, 7, 20, 41, 77, 90)):
        got = apart.step(tokens[:, begin:end])[0, -1]
    expected, got = (mx.where(mx.isinf(logits), 0, logits) for logits in (expected, got))
    return bool(mx.max(mx.abs(got - expected)) > 0.01 * mx.std(expected))


@pytest.mark.parametrize("name", each(QUANTIZED, typical=("llama", "gpt_oss", "qwen3_next")))
def test_quantized_split_equals_whole(name):
    directory = shared_model(CONFIGURATIONS[name], bits=4)
    plan = plan_of(directory)
    check_split(directory, plan.cuts, plan.layers)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "bits"), FORMATS)
@pytest.mark.parametrize(
    "name", ["llama", "kimi_k3", "deepseek_v4", "glm5_next", "hy_v4", "minimax_m3/sparse", "qwen4_exp"]
)
def test_each_format_of_quantization(name, mode, bits):
    directory = shared_model(CONFIGURATIONS[name], bits=bits, mode=mode)
    plan = plan_of(directory)
    check_split(directory, plan.cuts, plan.layers)


@pytest.mark.parametrize("dtype", [mx.bfloat16, pytest.param(mx.float16, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(each, marks=pytest.mark.slow) for each in ("gemma3_text", "mamba2"))]
)
def test_half_precision_split_equals_whole(name, dtype):
    directory = shared_model(CONFIGURATIONS[name], dtype=dtype)
    plan = plan_of(directory)
    check_split(directory, plan.cuts, plan.layers)


def test_what_is_supported_is_what_is_tested():
    tested = {check_supported(config) for config in CONFIGURATIONS.values()}
    assert tested == SUPPORTED
    assert not SUPPORTED & REFUSED.keys()
    assert UNBATCHABLE.keys() <= SUPPORTED
    assert configurations.REFUSED.keys() == REFUSED.keys()


def test_every_architecture_with_a_metal_kernel_is_known():
    """By the imports of modules: which of them lead to one that makes a kernel?"""

    def makes_kernel(name):
        return any(b"metal_kernel(" in text for text in code_of(name).values())

    assert set(filter(makes_kernel, SUPPORTED)) == UNPROVEN_ON_METAL.keys()


class Reached(Exception):
    """The model computes with a Metal kernel, whose lanes share a state of this size."""


@pytest.mark.parametrize("name", [name for name, config in CONFIGURATIONS.items() if kernel_of(config)])
def test_the_tests_reach_the_kernels_of_metal(name, monkeypatch):
    """On a Mac the tests of these architectures compute with the kernels. They have no code for sizes below 32: mlx-lm
    leaves the gated delta rule to plain operations then, and the others would compute nothing.
    """
    whole = Whole(shared_model(CONFIGURATIONS[name]))
    whole.step(prompt(3))

    def reached(size):
        def kernel(*tensors):
            raise Reached(size(tensors))

        return kernel

    monkeypatch.setattr(gated_delta, "gated_delta_kernel", reached(lambda tensors: tensors[1].shape[-1]))
    monkeypatch.setattr(ssm, "ssm_update_kernel", reached(lambda tensors: tensors[2].shape[-1]))
    monkeypatch.setattr(rwkv7, "wkv7_kernel", reached(lambda tensors: tensors[0].shape[-1]))
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    with pytest.raises(Reached, match=r"^32$"):
        whole.step(prompt(1))


@pytest.mark.parametrize("name", configurations.REFUSED)
def test_refused(name):
    with pytest.raises(ModelUnsupported, match=f"{name} are not supported: {REFUSED[name][:20]}"):
        make_plan(configurations.REFUSED[name])
