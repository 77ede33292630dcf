import json

import pytest

from node.core.errors import ModelBroken, ModelUnsupported
from node.store.files import DESCRIPTION
from node.store.headers import read_header
from node.store.weights import Weights, files_for, is_foreign, layer_of

FIRST, SECOND, THIRD = (f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("tensor", "layer"),
    [
        ("model.layers.12.self_attn.q_proj.weight", 12),
        ("language_model.model.layers.3.mlp.experts.7.up_proj.scales", 3),
        ("model.language_model.layers.0.input_layernorm.weight", 0),
        ("transformer.h.5.attn.c_attn.weight", 5),
        ("transformer.blocks.9.norm_attn_norm.norm_1.weight", 9),
        ("gpt_neox.layers.1.attention.dense.bias", 1),
        ("backbone.layers.40.mixer.A_log", 40),
        ("model.layers.layers.2.mlp.down_proj.weight", 2),
        ("layers.6.attention.wq.weight", 6),
        ("model.layers.4.blocks.1.weight", 4),
        ("model.embed_tokens.weight", None),
        ("model.embed_tokens_per_layer.weight", None),
        ("lm_head.weight", None),
        ("model.norm.weight", None),
        ("vision_tower.vision_model.encoder.layers.3.mlp.fc1.weight", None),
        ("model.vision_tower.transformer.layers.3.attention.weight", None),
        ("model.visual.blocks.3.attn.qkv.weight", None),
        ("visual.blocks.3.attn.qkv.weight", None),
        ("audio_tower.conformer.layers.1.weight", None),
        ("mtp.layers.0.self_attn.q_proj.weight", None),
        ("model.mtp_layers.0.self_attn.q_proj.weight", None),
    ],
)
def test_layer_of(tensor, layer):
    assert layer_of(tensor) == layer


@pytest.mark.parametrize(
    "tensor", ["vision_tower.patch_embed.weight", "multi_modal_projector.linear.weight", "mtp.fc.weight"]
)
def test_foreign(tensor):
    assert is_foreign(tensor)
    assert files_for({tensor: "model.safetensors"}, 0, 99, ends=True) == set()


@pytest.mark.parametrize("tensor", ["lm_head.weight", "model.norm.weight", "model.layers.3.audio_gate.weight"])
def test_not_foreign(tensor):
    assert not is_foreign(tensor)


def test_bytes_and_files(tmp_path, make_model):
    weights = Weights.read(make_model(tmp_path))
    assert weights.layers == 4
    assert [weights.layer_bytes(n) for n in range(5)] == [3_000] * 4 + [0]
    assert weights.ends_bytes == 5_000 + 100 + 4_000
    assert weights.head_bytes == 5_000  # of embedding and head the larger
    assert weights.files_for(1, 3, ends=False) == {SECOND}
    assert weights.files_for(1, 2, ends=True) == {FIRST, SECOND, THIRD}
    assert weights.files_for(0, 1, ends=False) == {FIRST}
    assert weights.files_for(2, 2, ends=False) == set()
    assert weights.sizes == {name: (tmp_path / name).stat().st_size for name in (FIRST, SECOND, THIRD)}
    assert Weights.from_json(weights.to_json()) == weights


def test_a_table_for_the_layers_is_no_head(tmp_path, make_model, make_safetensors):
    tensors = {
        "model.embed_tokens.weight": 30,
        "model.embed_tokens.scales": 3,
        "model.embed_tokens_per_layer.weight": 90,
    }
    make_model(tmp_path, {"model.safetensors": make_safetensors({**tensors, "model.layers.0.w": 10})})
    weights = Weights.read(tmp_path)
    assert (weights.head_bytes, weights.ends_bytes) == (33, 123)


def test_one_file_without_index(tmp_path, make_model, make_safetensors):
    make_model(tmp_path, {"model.safetensors": make_safetensors({"model.layers.0.w": 10, "lm_head.weight": 7})})
    weights = Weights.read(tmp_path)
    assert (weights.layers, weights.layer_bytes(0), weights.ends_bytes) == (1, 10, 7)


def test_a_left_over_index_is_passed_over(tmp_path, make_model, make_safetensors):
    make_model(tmp_path, {"model.safetensors": make_safetensors({"model.layers.0.w": 10})})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": FIRST}}))
    assert Weights.read(tmp_path).layers == 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda raw: raw[:-1], "bytes; its header says"),
        (lambda raw: raw + b"\0", "bytes; its header says"),
        (lambda raw: raw[:5], "not a whole safetensors file: 5 bytes"),
        (lambda raw: b"", "not a whole safetensors file: 0 bytes"),
        (lambda raw: (1 << 62).to_bytes(8, "little") + raw[8:], "header of 4,611,686,018,427,387,904"),
        (lambda raw: raw[:8] + b"X" * 10 + raw[18:], "is damaged"),
        (lambda raw: (2).to_bytes(8, "little") + b"[]", "is damaged"),
        (lambda raw: (18).to_bytes(8, "little") + b'{"a": {"b": [1]}} ', "is damaged"),
        (lambda raw: (27).to_bytes(8, "little") + b'{"a":{"data_offsets":[4,2]}}', "is damaged"),
        (lambda raw: (30).to_bytes(8, "little") + b'{"a":{"data_offsets":["0","2"]}}', "is damaged"),
    ],
)
def test_damaged_files(tmp_path, make_model, damage, told):
    path = make_model(tmp_path) / SECOND
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelBroken, match=told) as caught:
        Weights.read(tmp_path)
    assert SECOND in caught.value.message


def test_a_missing_file_is_named(tmp_path, make_model):
    (make_model(tmp_path) / SECOND).unlink()
    with pytest.raises(ModelBroken, match=f"{SECOND} is missing"):
        Weights.read(tmp_path)


def test_a_missing_number_without_index(tmp_path, make_model):
    make_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert Weights.read(tmp_path).layers == 4
    (tmp_path / SECOND).unlink()
    with pytest.raises(ModelBroken, match="2 of 3 weight files"):
        Weights.read(tmp_path)


def test_a_tensor_that_is_not_where_the_index_says(tmp_path, make_model, make_safetensors):
    make_model(tmp_path)
    (tmp_path / SECOND).write_bytes(make_safetensors({"model.layers.1.self_attn.q_proj.weight": 500}))
    with pytest.raises(ModelBroken, match=f"{SECOND} lacks 3 of the tensors"):
        Weights.read(tmp_path)


@pytest.mark.parametrize(
    "index", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../x"}}', '{"weight_map": {"a": 1}}']
)
def test_a_damaged_index(tmp_path, make_model, index):
    make_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelBroken):
        Weights.read(tmp_path)


def test_no_weights_at_all(tmp_path, make_model):
    make_model(tmp_path, {"config.json": b"{}", "model.gguf": b"GGUF"})
    with pytest.raises(ModelUnsupported, match="no model"):
        Weights.read(tmp_path)


def test_a_description_stands_for_files_that_are_elsewhere(tmp_path, make_model, make_safetensors):
    whole = Weights.read(make_model(tmp_path))
    (tmp_path / DESCRIPTION).write_bytes(whole.to_json())
    (tmp_path / FIRST).unlink()
    (tmp_path / THIRD).unlink()
    assert Weights.read(tmp_path) == whole
    (tmp_path / SECOND).write_bytes(make_safetensors({"model.layers.1.self_attn.q_proj.weight": 500}))
    with pytest.raises(ModelBroken, match="lacks 3"):
        Weights.read(tmp_path)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"tensors": {"a": ["model.safetensors"]}, "sizes": {}}',
        b'{"tensors": {"a": ["../../x", 1]}, "sizes": {}}',
        b'{"tensors": {"a": ["model.safetensors", 1]}, "sizes": {}}',
        b'{"tensors": {"a": ["model.safetensors", 1]}, "sizes": {"/etc/passwd": 1}}',
    ],
)
def test_a_damaged_description(raw):
    with pytest.raises(ModelBroken):
        Weights.from_json(raw)


def test_the_header_of_an_empty_file(tmp_path, make_safetensors):
    (tmp_path / "model.safetensors").write_bytes(make_safetensors({}))
    assert read_header(tmp_path / "model.safetensors") == {}


def test_agrees_with_the_safetensors_library(tmp_path):
    numpy = pytest.importorskip("numpy")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    save_file(
        {"model.layers.0.w": numpy.zeros((3, 5), numpy.float16), "n": numpy.ones(2)}, tmp_path / "model.safetensors"
    )
    assert read_header(tmp_path / "model.safetensors") == {"model.layers.0.w": 30, "n": 16}
