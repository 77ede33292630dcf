import contextlib
import json
from pathlib import Path

import pytest

from node.core.errors import ModelBroken, ModelUnsupported
from node.core.models import TensorHeader
from node.model import file_names
from node.model import layouts as node_layouts
from node.model.file_names import DESCRIPTION, INDEX
from node.model.json_parser import JsonParser
from node.model.layouts import Layout, Layouts, read_header
from node.model.weights import Weights, files_for, is_foreign, layer_of, layers_by_file
from tests.model.conftest import LAYER_BYTES

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


@pytest.mark.parametrize("tensor", ["image_newline.weight", "audio_tower.linear.weight", "mtp.fc.weight"])
def test_foreign(tensor):
    assert is_foreign(tensor)
    assert layers_by_file({tensor: "model.safetensors"}) == {}


@pytest.mark.parametrize("tensor", ["vision_tower.layers.3.weight", "model.multi_modal_projector.linear.weight"])
def test_the_tower_is_with_the_driver(tensor):
    assert is_foreign(tensor)
    assert files_for({tensor: "a", "model.layers.0.w": "b"}, 0, 1, ends=True) == {"a", "b"}
    assert files_for({tensor: "a", "model.layers.0.w": "b"}, 0, 1, ends=False) == {"b"}


@pytest.mark.parametrize("tensor", ["lm_head.weight", "model.norm.weight", "model.layers.3.audio_gate.weight"])
def test_not_foreign(tensor):
    assert not is_foreign(tensor)


def test_the_files_of_a_layer_for_multi_token_prediction():
    own = {"model.layers.0.w": "a", "model.layers.1.w": "b", "model.norm.weight": "b"}
    assert files_for(own | {"model.layers.2.eh_proj.weight": "c"}, 2, 3, ends=False) == {"c"}
    assert files_for(own | {"mtp.fc.weight": "c", "mtp.layers.0.w": "d"}, 2, 3, ends=False) == {"c", "d"}
    assert files_for(own | {"model.mtp_layers.0.w": "c"}, 2, 3, ends=False) == {"c"}
    assert files_for({"fc.weight": "a", "layers.0.w": "a"}, 2, 3, ends=False) == {"a"}
    assert files_for(own | {"mtp.fc.weight": "c"}, 0, 2, ends=True) == {"a", "b"}


def test_bytes_and_files(tmp_path, make_model):
    weights = Layout(make_model(tmp_path)).weights
    assert weights.layers == 4
    assert [weights.layer_bytes(n) for n in range(5)] == [3_000] * 4 + [0]
    assert weights.ends_bytes == 5_000 + 100 + 4_000
    assert weights.head_bytes == 5_000  # the larger of embedding and head
    assert weights.files_for(1, 3, ends=False) == {SECOND}
    assert weights.files_for(1, 2, ends=True) == {FIRST, SECOND, THIRD}
    assert weights.files_for(0, 1, ends=False) == {FIRST}
    assert weights.files_for(2, 2, ends=False) == set()
    assert weights.sizes == {name: (tmp_path / name).stat().st_size for name in (FIRST, SECOND, THIRD)}
    assert JsonParser().description(weights.to_json()) == weights


def test_each_file_is_looked_for_a_few_times_however_many_tensors_it_has(tmp_path, make_model, monkeypatch):
    model = make_model(tmp_path)
    looked, is_file = [], Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: looked.append(path.name) or is_file(path))
    tensors = Layout(model).weights.tensors
    assert max(map(looked.count, (FIRST, SECOND, THIRD))) <= 2
    assert len(tensors) > 3 * 3


def test_a_table_for_the_layers_is_no_head(tmp_path, make_model, make_safetensors):
    tensors = {
        "model.embed_tokens.weight": 30,
        "model.embed_tokens.scales": 3,
        "model.embed_tokens_per_layer.weight": 90,
    }
    make_model(tmp_path, {"model.safetensors": make_safetensors({**tensors, "model.layers.0.w": 10})})
    weights = Layout(tmp_path).weights
    assert (weights.head_bytes, weights.ends_bytes) == (33, 123)


def test_one_file_without_index(tmp_path, make_model, make_safetensors):
    make_model(tmp_path, {"model.safetensors": make_safetensors({"model.layers.0.w": 10, "lm_head.weight": 7})})
    weights = Layout(tmp_path).weights
    assert (weights.layers, weights.layer_bytes(0), weights.ends_bytes) == (1, 10, 7)


def test_a_left_over_index_is_passed_over(tmp_path, make_model, make_safetensors):
    make_model(tmp_path, {"model.safetensors": make_safetensors({"model.layers.0.w": 10})})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": FIRST}}))
    assert Layout(tmp_path).weights.layers == 1


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
        _ = Layout(tmp_path).weights
    assert SECOND in caught.value.message


def test_a_missing_file_is_named(tmp_path, make_model):
    (make_model(tmp_path) / SECOND).unlink()
    with pytest.raises(ModelBroken, match=f"{SECOND} is missing"):
        _ = Layout(tmp_path).weights


def test_a_missing_number_without_index(tmp_path, make_model):
    make_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert Layout(tmp_path).weights.layers == 4
    (tmp_path / SECOND).unlink()
    with pytest.raises(ModelBroken, match="2 of 3 weight files"):
        _ = Layout(tmp_path).weights


def test_a_tensor_that_is_not_where_the_index_says(tmp_path, make_model, make_safetensors):
    make_model(tmp_path)
    (tmp_path / SECOND).write_bytes(make_safetensors({"model.layers.1.self_attn.q_proj.weight": 500}))
    with pytest.raises(ModelBroken, match=f"{SECOND} lacks 3 of the tensors"):
        _ = Layout(tmp_path).weights


@pytest.mark.parametrize(
    "index", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../x"}}', '{"weight_map": {"a": 1}}']
)
def test_a_damaged_index(tmp_path, make_model, index):
    make_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelBroken):
        _ = Layout(tmp_path).weights


@pytest.mark.parametrize(
    ("names", "told", "hint"),
    [
        (["model.gguf"], "model.gguf is GGUF, the format of llama.cpp", "mlx-community"),
        (["pytorch_model-00001-of-00002.bin"], "is PyTorch's format", "mlx_lm.convert"),
        (["consolidated.00.pth"], "is PyTorch's format", "mlx_lm.convert"),
        (["weights.npz"], "is NumPy's format", "mlx_lm.convert"),
        (["pytorch_model-00001-of-00002.safetensors"], "is safetensors under another name", "rename"),
        (["adapter_model.safetensors", "adapter_config.json"], "is an adapter", "mlx_lm.fuse"),
        (["consolidated.safetensors"], "is weights in Mistral's own format", "mlx-community"),
        (["tf_model.h5"], "another framework", "mlx-community"),
        ([], r"has no model\*.safetensors\.", "mlx-community"),
    ],
)
def test_weights_that_are_not_read_are_named(tmp_path, make_model, names, told, hint):
    make_model(tmp_path, {"config.json": b"{}", **dict.fromkeys(names, b"x")})
    with pytest.raises(ModelUnsupported, match=told) as caught:
        _ = Layout(tmp_path).weights
    assert hint in caught.value.hint


def test_an_index_of_files_that_are_not_read(tmp_path, make_model):
    index = json.dumps({"weight_map": {"a": "pytorch_model-1.safetensors", "b": "pytorch_model-2.safetensors"}})
    make_model(tmp_path, {"model.safetensors.index.json": index.encode(), "pytorch_model-1.safetensors": b"x"})
    with pytest.raises(ModelUnsupported, match=r"pytorch_model-1.safetensors is safetensors under another name"):
        _ = Layout(tmp_path).weights


def test_a_description_stands_for_files_that_are_elsewhere(tmp_path, make_model, make_safetensors):
    whole = Layout(make_model(tmp_path)).weights
    (tmp_path / DESCRIPTION).write_bytes(whole.to_json())
    (tmp_path / FIRST).unlink()
    (tmp_path / THIRD).unlink()
    assert Layout(tmp_path).weights == whole
    (tmp_path / SECOND).write_bytes(make_safetensors({"model.layers.1.self_attn.q_proj.weight": 500}))
    with pytest.raises(ModelBroken, match="lacks 3"):
        _ = Layout(tmp_path).weights


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"model.safetensors": 1}',
        b'{"model.safetensors": {"size": 1}}',
        b'{"../../x": {"size": 1, "tensors": {}}}',
        b'{"/etc/passwd": {"size": 1, "tensors": {}}}',
        b'{"model.safetensors": {"size": 9, "tensors": {"a": []}}}',
        b'{"model.safetensors": {"size": 9, "tensors": {"a": ["F31", 1]}}}',
        b'{"model.safetensors": {"size": 9, "tensors": {"a": ["F32", -1]}}}',
        b'{"model.safetensors": {"size": 9, "tensors": {"a": ["F32", true]}}}',
        b'{"model.safetensors": {"size": 9, "tensors": {"a": ["F32", "1"]}}}',
        b'{"model.safetensors": {"size": 9, "tensors": {"a": ["F32", 3]}}}',
        b'{"model.safetensors": {"size": 9, "tensors": {"a": ["F32", 2], "b": ["F32", 1]}}}',
        b'{"model.safetensors": {"size": 9, "tensors": {"a\\u0000": ["F32", 1]}}}',
    ],
)
def test_a_damaged_description(raw):
    with pytest.raises(ValueError):
        JsonParser().description(raw)


def test_the_header_of_an_empty_file(tmp_path, make_safetensors):
    (tmp_path / "model.safetensors").write_bytes(make_safetensors({}))
    assert read_header(tmp_path / "model.safetensors", JsonParser()) == {}


def test_agrees_with_the_safetensors_library(tmp_path):
    numpy = pytest.importorskip("numpy")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    save_file(
        {"model.layers.0.w": numpy.zeros((3, 5), numpy.float16), "n": numpy.ones(2)}, tmp_path / "model.safetensors"
    )
    assert read_header(tmp_path / "model.safetensors", JsonParser()) == {
        "model.layers.0.w": TensorHeader("model.safetensors", "F16", (3, 5), 30),
        "n": TensorHeader("model.safetensors", "F64", (2,), 16),
    }


@pytest.mark.slow
def test_the_description_of_a_large_model_stays_small(tmp_path):
    """A model of 160 files and 100,000 tensors, like DeepSeek-V3."""
    files = [f"model-{number:05}-of-00160.safetensors" for number in range(160)]
    tensors = {
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight": TensorHeader(
            file, "BF16", (2048, 7168), 29360128
        )
        for layer, file in enumerate(files)
        for expert in range(210)
        for part in ("gate", "up", "down")
    }
    weights = Weights(tensors, dict.fromkeys(files, 10**11))
    assert len(tensors) > 100_000
    assert len(weights.to_json()) < 80 * len(tensors)
    assert JsonParser().description(weights.to_json()) == weights


def header(**entries):
    raw = json.dumps(entries).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(8)


@pytest.mark.parametrize(
    "entries",
    [
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "b": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F16", "shape": [2.0, 2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F16", "shape": [-2, -2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F16", "shape": [4], "data_offsets": [0.0, 8.0]}},
        {"a": {"dtype": "F16", "shape": [4], "data_offsets": [0, 8, 8]}},
        {"a": {"dtype": "F17", "shape": [4], "data_offsets": [0, 8]}},
        {"a": {"dtype": ["F16"], "shape": [4], "data_offsets": [0, 8]}},
        {"a": {"dtype": "U8", "shape": [1] * 17 + [8], "data_offsets": [0, 8]}},
        {"a": {"dtype": "U8", "shape": "8", "data_offsets": [0, 8]}},
        {"a": {"dtype": "U8", "shape": None, "data_offsets": [0, 8]}},
        {"x" * 2_000: {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}},
        {"a\n": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}},
        {"a": [[[]]]},
        {"a": "dtype"},
    ],
)  # fmt: skip
def test_headers_that_lie(tmp_path, entries):
    (tmp_path / "model.safetensors").write_bytes(header(**entries))
    with pytest.raises(ModelBroken, match="header .* is damaged"):
        read_header(tmp_path / "model.safetensors", JsonParser())


@pytest.mark.parametrize("raw", [b"[" * 200_000, b'{"a": ' * 200_000, b"\xff\xfe{}", b"NaN", b"1" * 6_000])
def test_headers_that_are_hardly_json(tmp_path, raw):
    (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)
    with pytest.raises(ModelBroken, match="is damaged"):
        read_header(tmp_path / "model.safetensors", JsonParser())


def test_things_in_place_of_files(tmp_path, make_model):
    """Folders, dangling links and circular links."""
    make_model(tmp_path)
    for name in (SECOND, "model.safetensors.index.json", DESCRIPTION):
        path = tmp_path / name
        whole = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        for make in (
            path.mkdir,
            lambda path=path: path.symlink_to(path),
            lambda path=path: path.symlink_to("/nowhere"),
        ):
            make()
            with contextlib.suppress(ModelBroken):
                _ = Layout(tmp_path).weights
            path.rmdir() if path.is_dir() else path.unlink()
        if whole is not None:
            path.write_bytes(whole)
    assert Layout(tmp_path).weights.layers == 4


def test_an_index_has_a_bound(tmp_path, make_model, monkeypatch):
    directory = make_model(tmp_path / "model")
    assert Layout(directory).weight_map
    monkeypatch.setattr("node.model.file_names._MAX_BYTES", {INDEX: 100})
    with pytest.raises(ModelBroken, match="100 are the most"):
        _ = Layout(directory).weight_map


@pytest.mark.parametrize("raw", [b"{", b'{"model.safetensors": {"size": 1, "tensors": {"a": ["U8", 2]}}}', b" " * 40])
def test_a_description_that_fails_is_dropped_with_one_line(tmp_path, make_model, raw, caplog, monkeypatch):
    monkeypatch.setitem(file_names._MAX_BYTES, DESCRIPTION, 39 if raw.isspace() else 1000)
    whole = Layout(make_model(tmp_path)).weights
    (tmp_path / DESCRIPTION).write_bytes(raw)
    layouts = Layouts()
    assert layouts.of(tmp_path).weights == layouts.of(tmp_path).weights == whole
    assert not (tmp_path / DESCRIPTION).exists()
    assert [str(tmp_path / DESCRIPTION) in record.getMessage() for record in caplog.records] == [True]


def test_a_layout_is_read_once_until_a_file_changes(tmp_path, make_model, make_safetensors, monkeypatch):
    made = [make_model(tmp_path / str(number)) for number in range(3)]
    layouts, read = Layouts(), []
    read_header = node_layouts.read_header
    monkeypatch.setattr(
        node_layouts, "read_header", lambda path, parser: read.append(path) or read_header(path, parser)
    )
    for _ in range(2):
        assert {layouts.of(each).parameters for each in made} == {4 * LAYER_BYTES + 9_100}
    assert len(read) == 3 * 3
    index = made[0] / INDEX
    index.write_bytes(index.read_bytes() + b" ")
    for each in made:
        _ = layouts.of(each).weights
    assert len(read) == 4 * 3
