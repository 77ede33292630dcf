"""What is particular to models whose class is mlx-vlm's; the other tests have a configuration of each type."""

import importlib.util
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import pytest

from node.core.errors import ModelBroken, ModelUnsupported
from node.engine import load, mlx_vlm
from node.engine.architectures import OF_MLX_VLM, check_supported
from node.engine.device import is_gpu
from node.engine.plan import make_plan
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import Stages, Whole, likeliest, plan_of, prompt, same, shared_model

PROGRAM = """
import sys
from node.engine import load, stage, tower
from node.engine.plan import make_plan
from tests.engine.configurations import CONFIGURATIONS
make_plan(CONFIGURATIONS["qwen3_next"])
assert not [name for name in sys.modules if name.startswith("mlx_vlm")]
make_plan(CONFIGURATIONS["k2_horizon"])
assert "mlx_vlm.models.k2_horizon" in sys.modules and "mlx_vlm.generate" not in sys.modules
"""


def test_mlx_vlm_is_imported_when_such_a_model_is_here() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


@pytest.mark.parametrize("name", sorted(OF_MLX_VLM))
def test_without_mlx_vlm_they_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx_vlm, "VERSION", "0.0.1")
    with pytest.raises(ModelUnsupported, match=f"Models of type {name} need mlx-vlm 0.0.1; .* is installed") as raised:
        check_supported({"model_type": name})
    assert "pip install --no-deps mlx-vlm==" in str(raised.value.hint)


def test_formats_that_mlx_vlm_converts_are_refused() -> None:
    with pytest.raises(ModelUnsupported, match="type deepseek_v4 are supported in MLX's formats, and unquantized"):
        make_plan(CONFIGURATIONS["deepseek_v4"] | {"quantization_config": {"quant_method": "fp8"}})


def test_a_file_that_a_config_names_is_not_read(tmp_path: Path) -> None:
    """Of n-gram embeddings: mlx-vlm would map it, wherever it is."""
    secret = tmp_path / "secret"
    secret.write_text("{}")
    config = CONFIGURATIONS["qwen4_exp"]
    text = config["text_config"] | {"ple_storage": {"manifest": str(secret)}}
    with pytest.raises(ModelUnsupported, match="n-gram embeddings in a file of another format") as raised:
        make_plan(config | {"text_config": text})
    assert "secret" not in str(raised.value)


def test_quantized_kv_is_refused() -> None:
    with pytest.raises(ModelUnsupported, match="KV of this step3p7 model cannot be in 8 bits"):
        make_plan(CONFIGURATIONS["step3p7"], kv_bits=8)


def test_as_much_is_sent_as_is_chosen() -> None:
    """Layers share what they choose of a long context; the dry run chooses less."""
    config = CONFIGURATIONS["glm5_next/shared"]
    plan = make_plan(config | {"text_config": config["text_config"] | {"index_topk": 2048}})
    assert [shape[-1] for shape in plan.shapes_at(2, 1, 5)] == [64, 2048 + 3]


def test_hunyuan_chooses_as_mlx_vlm_does_in_its_first_context() -> None:
    """And in further ones, where mlx-vlm's own function is wrong: once it is not, ours is needless."""
    mlx_vlm.vlm_model("hy_v4")
    spec = importlib.util.find_spec("mlx_vlm.models.hy_v4.indexer")
    assert spec
    assert spec.loader
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    choose, wanted = theirs._partition_scores(8, masked=True), mlx_vlm._choice(8, True)
    for length in (20, 400):
        keys = mx.random.split(mx.random.key(length), 3)
        q, k = (mx.random.normal((1, heads, length, 16), key=key) for heads, key in zip((2, 1), keys[:2], strict=True))
        weights, mask = (
            mx.random.uniform(shape=(1, length, 2), key=keys[2]),
            mx.tril(mx.ones((length, length), mx.bool_)),
        )
        got, expected = (each(q, k, weights, mask)[0, 0, -1, -8:] for each in (choose, wanted))
        scores = (mx.maximum(q[0, :, -1] @ k[0, 0].T, 0) * weights[0, -1][:, None]).sum(axis=0)
        assert set(expected.tolist()) == set(mx.argsort(scores)[-8:].tolist())
        is_same = set(got.tolist()) == set(expected.tolist())
        assert is_same or length > 20
        assert is_gpu() or not is_same or length == 20, "a GPU sorts them all"


@pytest.mark.parametrize("name", ["deepseek_v4", "glm5_next", "hy_v4", "qwen4_exp"])
def test_a_long_context_in_chunks_of_any_length(name: str) -> None:
    """Of more tokens than the longest pool has in a row: 128."""
    directory = shared_model(CONFIGURATIONS[name])
    plan, whole = plan_of(directory), Whole(directory)
    ring = Stages(directory).ring(0, 1, 2, plan.layers)
    tokens = prompt(290)
    for begin, end in pairwise((0, 3, 130, 131, 139, 280, 285, 290)):
        expected = whole.step(tokens[:, begin:end])
        assert same(ring.step(tokens[:, begin:end]), expected), f"tokens {begin} to {end} differ"
    for step in range(6):
        token = likeliest(expected)
        expected = whole.step(token)
        assert same(ring.step(token), expected), f"token {step} differs"


@pytest.mark.parametrize("name", sorted(OF_MLX_VLM))
def test_kv_takes_no_more_than_the_plan_says(name: str) -> None:
    directory = shared_model(CONFIGURATIONS[name])
    plan = plan_of(directory)
    for length in (5, 200, 2000):
        ring = Stages(directory).ring(0, 2 if 2 in plan.cuts else plan.cuts[0], plan.layers)
        for _ in range(0, length, 200):
            mx.eval(ring.step(prompt(min(length, 200))))
        for stage in ring.stages:
            promised = sum(cost.bytes_for(length) for cost in plan.kv[stage.start : stage.end])
            assert 0 < stage.lanes.kv_bytes <= promised


@pytest.mark.parametrize("wrong", [-1, 4, 2**30])
def test_experts_of_tokens_beyond_those_that_there_are(wrong: int) -> None:
    tables = {"model.layers.0.ffn.gate.tid2eid": mx.array([[0, 3], [1, 2]]), "model.norm.weight": mx.array([9.0])}
    load._check_tables(tables, {"n_routed_experts": 4})
    tables["model.layers.1.ffn.gate.tid2eid"] = mx.array([[0, wrong]])
    with pytest.raises(ModelBroken, match=r"layers\.1.*names experts beyond the 4"):
        load._check_tables(tables, {"n_routed_experts": 4})


@pytest.mark.parametrize("wrong", [0, -1])
def test_sizes_by_which_nothing_can_be_divided(wrong: int) -> None:
    path = "language_model.model.layers.0.ple.ple_embedding.ngram_heads_vocab_sizes"
    load._check_tables({path: mx.array([53, 59])}, {})
    with pytest.raises(ModelBroken, match=f"layers\\.0.*has a size of {wrong}"):
        load._check_tables({path: mx.array([53, wrong])}, {})


@pytest.mark.parametrize("name", sorted(OF_MLX_VLM))
def test_a_conversion_for_text_only_has_null_for_a_tower(name: str) -> None:
    config = CONFIGURATIONS[name]
    assert make_plan({**config, "vision_config": None}).layers == make_plan(config).layers


def test_layers_of_a_tower_are_bounded() -> None:
    with pytest.raises(ModelBroken, match="depth of 20000"):
        make_plan({**CONFIGURATIONS["glm5_next"], "vision_config": {"depth": 20000}})
