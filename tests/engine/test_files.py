"""Stages with only the files that a node fetches for them, in any division into files and any format."""

import itertools
import json
import shutil

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from node.core.errors import ModelBroken
from node.engine.plan import make_plan
from node.model.layouts import Layout
from tests.engine.checkpoints import FORMATS, to_checkpoint
from tests.engine.configurations import BASE, CONFIGURATIONS, each
from tests.engine.models import Ring, Whole, by_layer, fetched, into_files, likeliest, load, prompt, same, write_model

SOME = (
    "llama",
    "gemma4_text",
    "qwen3_moe",
    "falcon_h1",
    "kimi_vl",
    "longcat_flash",
    "nemotron_h",
    "gpt2",
    "plamo2",
    "rwkv7",
)


def check_stages(directory, tmp_path, *bounds):
    """Compare a ring of stages, each with only its own files, with the whole model."""
    whole = Whole(directory)
    pairs = list(itertools.pairwise(bounds))
    ring = Ring([load(fetched(directory, tmp_path / f"{start}-{end}", start, end), start, end) for start, end in pairs])
    tokens = prompt(11)
    for step in range(2):
        expected = whole.step(tokens)
        assert same(ring.step(tokens), expected), f"step {step} differs"
        tokens = likeliest(expected)


def one_file_each(number, _name):
    return str(number)


@pytest.mark.parametrize("name", SOME)
def test_a_file_for_each_tensor(name, tmp_path):
    plan = make_plan(CONFIGURATIONS[name])
    directory = write_model(tmp_path / "whole", CONFIGURATIONS[name], bits=4)
    into_files(directory, one_file_each)
    check_stages(directory, tmp_path, 0, plan.cuts[1], plan.layers)


@pytest.mark.parametrize("name", each(FORMATS))
def test_checkpoints_in_the_format_of_hugging_face(name, tmp_path):
    """mlx-lm guesses the format from the tensors that it sees; a stage has those of one layer."""
    plan = make_plan(CONFIGURATIONS[name])
    directory = write_model(tmp_path / "whole", CONFIGURATIONS[name])
    to_checkpoint(directory, name)
    into_files(directory, by_layer)
    check_stages(directory, tmp_path, 0, *plan.cuts, plan.layers)


MIXED = {"model.layers.0.self_attn.q_proj": 8, "model.layers.1.mlp.down_proj": 8, "lm_head": 0}


@pytest.mark.parametrize(
    ("others", "every"), [({}, 4), pytest.param(MIXED, 1, marks=pytest.mark.slow)], ids=["uniform", "mixed"]
)
def test_two_files_cut_at_any_tensor(others, every, tmp_path):
    """Weights and their scales may be in different files, and so may the tensors of one layer."""
    config = BASE | {"model_type": "llama", "num_hidden_layers": 2}
    source = write_model(tmp_path / "source", config, bits=4, others=others)
    names = sorted(Layout(source).weights.tensors)
    expected = Whole(source).step(prompt(5))
    for cut in range(1, len(names), every):
        both = tmp_path / f"{cut}"
        shutil.copytree(source, both)
        into_files(both, lambda number, _, cut=cut: "1" if number < cut else "2")
        first, second = fetched(both, tmp_path / f"{cut}a", 0, 1), fetched(both, tmp_path / f"{cut}b", 1, 2)
        ring = Ring([load(first, 0, 1), load(second, 1, 2)])
        assert same(ring.step(prompt(5)), expected), f"cut before {names[cut]}"


def add(directory, name, value):
    """Add a tensor, in its own file if the model has several."""
    path, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if path.exists():
        weights = mx.load(str(path))
        mx.eval(weights)
        mx.save_safetensors(str(path), weights | {name: value})
    else:
        mx.save_safetensors(str(directory / "model-more.safetensors"), {name: value})
        held = json.loads(index.read_text())
        held["weight_map"][name] = "model-more.safetensors"
        index.write_text(json.dumps(held))


def stock_loads(directory):
    try:
        load_model(directory, lazy=True)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("layer_files", [False, True])
@pytest.mark.parametrize(
    ("tensor", "taken"),
    [
        ("model.layers.1.self_attn.q_proj.bias", False),
        ("model.layers.3.self_attn.q_proj.scales", False),
        ("model.layers.4.self_attn.q_proj.weight", False),
        ("model.embed_tokens.bias", False),
        ("mtp.other.weight", False),
        ("model.layers.1.self_attn.rotary_emb.inv_freq", True),
    ],
)
def test_tensors_that_the_model_does_not_take_are_refused_as_mlx_lm_refuses_them(tensor, taken, layer_files, tmp_path):
    """By each stage, whichever file they are in."""
    directory = write_model(tmp_path / "whole", CONFIGURATIONS["llama"], layer_files=layer_files)
    add(directory, tensor, mx.ones((64,)))
    assert stock_loads(directory) == taken
    for start, end in ((0, 2), (2, 4)):
        own = fetched(directory, tmp_path / f"{start}", start, end)
        if taken:
            load(own, start, end)
        else:
            with pytest.raises(ModelBroken, match=f"1 tensors that .* does not take: {tensor}"):
                load(own, start, end)


def test_weights_that_come_from_files_which_are_not_here_are_named(tmp_path):
    """A stand-in never becomes a weight, whatever a description says."""
    directory = write_model(tmp_path / "whole", CONFIGURATIONS["llama"], layer_files=True)
    own = fetched(directory, tmp_path / "own", 2, 4)
    with pytest.raises(ModelBroken, match=r"9 of 18 tensors are in others: .*layers.1.* \(in model-1.safetensors\)"):
        load(own, 1, 3)


def test_a_stage_whose_layers_have_no_weights(tmp_path):
    """It has no weight file at all."""
    none = {
        "attention": {"n_heads_in_group": None, "no_op": True, "replace_with_linear": False},
        "ffn": {"ffn_mult": None, "no_op": True, "replace_with_linear": False},
    }
    config = CONFIGURATIONS["nemotron-nas"]
    config = config | {"block_configs": [config["block_configs"][0], none, none, config["block_configs"][3]]}
    directory = write_model(tmp_path / "whole", config, layer_files=True, dtype=mx.bfloat16)
    check_stages(directory, tmp_path, 0, 1, 2, 3, 4)
