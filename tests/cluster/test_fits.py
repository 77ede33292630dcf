"""Which models fit which Macs: what is known of the models with short names, and what `cluster models --fits` shows."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model

from node.cli import models
from node.cluster import fits
from node.core.models import ModelVersion
from node.engine.converted import converted
from node.engine.plan import build, make_plan
from node.model.layouts import Layouts
from node.model.short_names import SHORT_NAMES, known_configs, known_sizes
from node.model.weights import count_parameters
from tests.engine.configurations import CONFIGURATIONS

PUBLISHED = {
    "llama-3.2-1b": 1.24, "llama-3.2-3b": 3.21, "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.6, "llama-3": 8.03,
    "llama-3.3": 70.6, "qwen3-0.6b": 0.596, "qwen3-1.7b": 1.72, "qwen3-4b": 4.02, "qwen3-8b": 8.19, "qwen3-14b": 14.8,
    "qwen3-32b": 32.8, "qwen3-30b": 30.5, "qwen3-30b-a3b-instruct-2507": 30.5, "qwen3-coder": 30.5,
    "qwen3-coder-next": 79.7, "qwen2.5-0.5b": 0.494, "qwen2.5-1.5b": 1.54, "qwen2.5-3b": 3.09, "qwen2.5-7b": 7.62,
    "qwen2.5-14b": 14.8, "qwen2.5-32b": 32.8, "qwen2.5-coder-1.5b": 1.54, "qwen2.5-coder-7b": 7.62,
    "qwen2.5-coder-14b": 14.8, "qwen2.5-coder-32b": 32.8, "qwq": 32.8, "gemma-2-2b": 2.61, "gemma-2-9b": 9.24,
    "gemma-3-270m": 0.268, "gemma-3-1b": 1.0, "gemma-3-4b": 3.88, "gemma-3-12b": 11.8, "gemma-3-27b": 27.0,
    "gemma-3n-e2b": 4.46, "gemma-3n-e4b": 6.87, "mistral-7b": 7.25, "mistral-nemo": 12.2, "mistral-small": 23.6,
    "deepseek-r1-1.5b": 1.78, "deepseek-r1-7b": 7.62, "deepseek-r1-8b": 8.03, "deepseek-r1-14b": 14.8,
    "deepseek-r1-32b": 32.8, "deepseek-r1-70b": 70.6, "deepseek-r1-671b": 671, "deepseek-v3.1": 671,
    "phi-3.5-mini": 3.82, "phi-4-mini": 3.84, "phi-4": 14.7, "gpt-oss-20b": 20.9, "gpt-oss-120b": 117,
    "smollm-135m": 0.135, "smollm2-135m": 0.135, "smollm2-360m": 0.362, "smollm2-1.7b": 1.71, "smollm3": 3.08,
    "glm-4-9b": 9.4, "glm-4.5-air": 107, "glm-4.7-flash": 29.9, "granite-3.3-2b": 2.53, "granite-4.0-h-tiny": 6.94,
    "lfm2-1.2b": 1.17, "olmo-2-7b": 7.3, "olmoe-1b-7b": 6.92, "kimi-k2": 1026,
}  # fmt: skip
"""Billions of parameters of the language models, as their cards or technical reports have them."""


@pytest.mark.slow
def test_each_short_name_has_a_config_with_as_many_parameters_as_were_published():
    known = known_configs()
    assert {SHORT_NAMES[name] for name in PUBLISHED} == set(SHORT_NAMES.values()) == set(known)
    for name, billions in PUBLISHED.items():
        plain = {key: value for key, value in known[SHORT_NAMES[name]].items() if key != "quantization"}
        assert count_parameters(converted(plain), plain) / 1e9 == pytest.approx(billions, rel=0.01), name


@pytest.mark.slow
def test_the_sizes_that_are_told_before_a_download_are_those_computed():
    assert {row["model"]: row["bytes"] for row in fits.rows()} == known_sizes()


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "gemma3_text", "deepseek_v3"])
def test_the_tensors_are_those_of_a_model_that_mlx_lm_converts(tmp_path, architecture):
    config = CONFIGURATIONS[architecture] | {"torch_dtype": "bfloat16", "tie_word_embeddings": True}
    model = build(config)
    whole = dict(tree_flatten(model.parameters()))
    model.sanitize({name: value for name, value in whole.items() if "lm_head" not in name})
    model.set_dtype(mx.bfloat16)
    quantize_model(model, dict(config), 32, 4, quant_predicate=lambda *_: True)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    written = Layouts().of(tmp_path).weights.tensors
    computed = converted(config | {"quantization": {"group_size": 32, "bits": 4}}).tensors
    assert {name: (t.shape, t.nbytes) for name, t in computed.items()} == {
        name: (t.shape, t.nbytes) for name, t in written.items()
    }


def test_of_two_kinds_of_quantization_each_module_has_its_own():
    config = known_configs()["mlx-community/gpt-oss-20b-MXFP4-Q8"] | {"num_hidden_layers": 2}
    tensors = converted(config).tensors
    bits = {
        kind: 8 * tensors[f"{name}.weight"].nbytes / math.prod((*tensors[f"{name}.weight"].shape[:-1], 2880))
        for kind, name in (
            ("expert", "model.layers.0.mlp.experts.up_proj"),
            ("attention", "model.layers.0.self_attn.q_proj"),
        )
    }
    assert bits == {"expert": 4, "attention": 8}


def spec(name):
    config = known_configs()[SHORT_NAMES[name]]
    weights = converted(config)
    return fits.spec_of(ModelVersion(name), make_plan(config, weights.total_bytes), weights)


def test_macs_get_the_ring_that_the_placement_makes():
    big = spec("qwen3-32b")
    assert fits.ring_on(big, (8,)) is None
    assert fits.ring_on(big, (8, 8)) is None
    alone, two = fits.ring_on(big, (48,)), fits.ring_on(big, (24, 24))
    assert [(len(ring.stages), ring.context) for ring in (alone, two)] == [(1, 32768), (2, 32768)]
    assert len(fits.ring_on(spec("qwen3-0.6b"), (64, 64, 64, 64)).stages) == 1


def run(*args, home):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home), "HOME": str(home)}
    command = [sys.executable, "-m", "node.cli", "models", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_the_command_needs_no_node_and_of_a_short_name_no_hub(tmp_path):
    known = run("--fits", "llama3.2:3b", "--json", home=tmp_path)
    (row,) = json.loads(known.stdout)
    assert (known.returncode, row["short_names"]) == (0, ["llama-3.2-3b", "llama-3.2"])
    assert row["fits"][0] == {"macs": [8], "stages": 1, "context": 16384}
    unknown = run("--fits", "nobody/nothing", home=tmp_path)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "cluster: nobody/nothing is not on this node, and HF_HUB_OFFLINE forbids to fetch it" in unknown.stderr
    wrong = run("--fits", "qwen3-8c", home=tmp_path)
    assert (wrong.returncode, wrong.stderr) == (
        1,
        "cluster: No model has the short name 'qwen3-8c'. Did you mean qwen3-8b?\n",
    )


def test_of_a_folder_the_files_count(capfd):
    folder = Path(fits.__file__).parents[1] / "builtin" / "pippin-demo"
    assert models.fits(str(folder), as_json=False) == 0
    heads, row, *_ = capfd.readouterr().out.splitlines()
    assert heads.split()[-3:] == ["2x24", "4x64", "2x512"]
    assert row.split()[0] == "pippin-demo"
    assert row.split()[-1] == "16k"


def test_several_macs_and_none_are_shown_as_such():
    found = {"macs": [24, 24], "stages": 2, "context": 32768}
    assert (models.macs(found["macs"]), models.fit(found)) == ("2x24", "32k/2")
    assert models.fit({**found, "stages": 0, "context": 0}) == "-"
