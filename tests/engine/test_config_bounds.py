"""Bounds for the size and the numbers of a config."""

import pytest

from node.core.errors import ModelBroken
from node.engine.config_bounds import MAX_EXPERTS, MAX_HEADS, MAX_LAYERS, check_config
from node.model.config import CONFIGS, read_config


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("num_hidden_layers", MAX_LAYERS),
        ("n_layer", MAX_LAYERS),
        ("moe_n_routed_experts", MAX_EXPERTS),
        ("num_experts", MAX_EXPERTS),
        ("num_key_value_heads", MAX_HEADS),
        ("depth", MAX_LAYERS),  # of towers
        ("layers", MAX_LAYERS),
    ],
)
def test_counts_are_known_by_their_names(name, most):
    for config in ({name: most}, {"text_config": {name: [most]}}):
        check_config(config)
    for config in ({name: most + 1}, {"text_config": {name: [most + 1]}}):
        with pytest.raises(ModelBroken, match=f"{name} of {most + 1}"):
            check_config(config)


@pytest.mark.parametrize("name", ["layers_x", "head_dim", "num_experts_per_tok", "n", ""])
def test_other_numbers_may_be_larger(name):
    check_config({name: 10**9})


def test_a_long_name_takes_no_longer_than_its_length():
    check_config({"n_" * 500_000 + "x": 1, "num_" * 500_000 + "layerss": 1})


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_have_a_bound(tmp_path, name):
    for file in CONFIGS:
        (tmp_path / file).write_text('{"model_type": "llama"}')
    assert read_config(tmp_path)["model_type"] == "llama"
    (tmp_path / name).write_bytes(b'{"model_type": "llama"}' + b" " * 2**24)
    with pytest.raises(ModelBroken, match=f"{name} has .* bytes"):
        read_config(tmp_path)
