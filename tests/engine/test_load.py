"""Loading: only the tensors that a stage needs, all of them, and clear errors."""

import json
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from node.core.errors import ModelBroken, ModelUnsupported
from node.engine.device import release_memory
from node.engine.graph import weights_in
from node.engine.load import _read, load_stage
from node.engine.plan import UNFUSED_CHUNK, make_plan
from node.engine.sampling import begin_draw
from node.engine.stage import Stage
from tests.engine.configurations import BASE, CONFIGURATIONS
from tests.engine.models import Ring, Whole, at_a_stretch, load, pieces, prompt, same, write_model


def test_a_stage_holds_its_own_weights_only(tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    weights = mx.load(str(directory / "model.safetensors"))
    total = sum(weight.nbytes for weight in weights.values())
    parts = [load(directory, start, end).weight_bytes for start, end in ((0, 1), (1, 3), (3, 4))]
    assert sum(parts) == total
    assert parts[1] == 2 * parts[2]
    assert parts[0] == parts[2] + sum(w.nbytes for name, w in weights.items() if ".layers." not in name)


@pytest.mark.parametrize("first", [(0, 2), (2, 4), (0, 4)])
def test_a_stage_takes_the_weights_that_another_has(tmp_path, first):
    """They are read once, and stay when the other stage is unloaded. The last layers and the ends are read by nobody else."""
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    before = held_by_mlx()
    other = load(directory, *first)
    taken = at_a_stretch(pieces(directory, 0, 4, loaded=[other]))
    weights = dict(weights_in(taken.model))
    assert {*other.weights.values()} <= {*taken.weights.values()}
    assert all(value is weights[name] for name, value in weights_in(other.model) if name in other.weights)
    assert {weight.layer for weight in taken.weights.values()} == {None, 0, 1, 2, 3}
    del weights
    assert held_by_mlx() < before + 1.1 * taken.weight_bytes
    whole = Whole(directory)
    at_a_stretch(release_memory([other.model]))
    del other
    tokens = prompt(5)
    assert same(Ring([taken]).step(tokens), whole.step(tokens))


def held_by_mlx():
    at_a_stretch(release_memory([]))
    return mx.get_active_memory()


def allocated(nbytes):
    """Memory of a buffer of this size: on a GPU, sizes are rounded up."""
    before = held_by_mlx()
    buffer = mx.zeros(nbytes, mx.uint8)
    mx.eval(buffer)
    return mx.get_active_memory() - before


def test_a_stage_that_nobody_holds_gives_its_memory_back(tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    before = held_by_mlx()
    size = load(directory, 0, BASE["num_hidden_layers"]).weight_bytes
    assert mx.get_active_memory() >= before + size
    assert held_by_mlx() < before + size // 10


def test_an_unloaded_stage_gives_its_memory_back_tensor_by_tensor(tmp_path, monkeypatch):
    monkeypatch.setattr("node.engine.device.PIECE_S", 0)
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    weights = mx.load(str(directory / "model.safetensors")).values()
    most = allocated(max(weight.nbytes for weight in weights))
    before = held_by_mlx()
    stage = load(directory, 0, 4)
    held = [mx.get_active_memory()] + [mx.get_active_memory() for _ in release_memory([stage.model])]
    assert held == sorted(held, reverse=True)
    assert max(more - less for more, less in pairwise(held)) <= most
    assert held[-1] < before + stage.weight_bytes // 10


def test_it_is_read_tensor_by_tensor_and_warmed_up_layer_by_layer(tmp_path, monkeypatch):
    monkeypatch.setattr("node.engine.load._MAX_GROUP", 1)
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    weights = mx.load(str(directory / "model.safetensors")).values()
    most = allocated(max(weight.nbytes for weight in weights))
    shares, held = [], []
    for share in pieces(directory, 0, 4):
        shares.append(share)
        held.append(mx.get_active_memory())
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 0.99)
    assert len(shares) == 2 + len(weights) + 4 + 1  # the plan, the headers; the layers, the head
    assert max(after - before for before, after in pairwise(held[2:])) <= most + 4096  # and never a whole layer at once


def test_tensors_are_read_in_groups_which_are_smaller_on_a_slow_disk(monkeypatch):
    time, speed, groups = [0.0], [1e12], []

    def read(group):
        groups.append([weight.nbytes for weight in group])
        time[0] += sum(groups[-1]) / speed[0]

    monkeypatch.setattr("node.engine.load.time.perf_counter", lambda: time[0])
    monkeypatch.setattr(mx, "eval", read)
    weights = [mx.zeros(size << 20, mx.uint8) for size in (100, 1, 2, 30, *[5] * 200)]  # not evaluated
    total = sum(weight.nbytes for weight in weights)
    for speed[0], most in ((1e12, 256 << 20), (400e6, 32 << 20)):
        groups.clear()
        shares = [share for share, *_ in _read(dict(enumerate(weights)), Path("m"), None)]
        assert [size for group in groups for size in group] == [weight.nbytes for weight in weights]
        assert groups[0] == [100 << 20]  # more than the first group may have
        assert max(map(sum, groups[1:])) <= most
        assert sum(groups[-2]) > most // 3
        assert shares[0] == (100 << 20) / total


def test_the_first_prompt_finds_its_kernels_compiled(tmp_path, monkeypatch):
    steps, samplings = [], []

    def run(stage, lane, tokens, *rest):
        steps.append((stage.start, *tokens.shape))
        return stepped(stage, lane, tokens, *rest)

    def record(logits, draws):
        samplings.append((logits.shape[0], draws[0].sampling.temperature))
        return begin_draw(logits, draws)

    stepped = Stage.run
    monkeypatch.setattr(Stage, "run", run)
    monkeypatch.setattr("node.engine.warm_up.begin_draw", record)
    monkeypatch.setattr("node.engine.warm_up.probe_tokens", lambda: 64)
    load(write_model(tmp_path, CONFIGURATIONS["llama"]), 0, 2)
    first = [*(2 * [(0, 1, 64), (0, 1, 1)]), (0, 2, 1)]  # two sessions, one after the other, then together
    assert steps == [*first, (1, 1, 1)], "layers of one kind have the same kernels"
    assert samplings == [(rows, temperature) for rows in (1, 2) for temperature in (0, 1)]


@pytest.mark.parametrize(("lent", "head"), [((0, 2), False), ((1, 3), True)])
def test_what_another_stage_has_run_is_warm(lent, head, tmp_path, monkeypatch):
    steps, samplings = [], []

    def run(stage, lane, tokens, *rest):
        steps.append((stage.start, *tokens.shape))
        return stepped(stage, lane, tokens, *rest)

    def record(logits, draws):
        samplings.append(draws)
        return begin_draw(logits, draws)

    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    other, stepped = load(directory, *lent), Stage.run
    monkeypatch.setattr(Stage, "run", run)
    monkeypatch.setattr("node.engine.warm_up.begin_draw", record)
    at_a_stretch(pieces(directory, 0, 4, loaded=[other]))
    assert steps == [(layer, 1, 1) for layer in range(4) if not lent[0] <= layer < lent[1]]
    assert bool(samplings) == head


def test_layers_are_not_warm_as_others_with_another_kv_have_run(tmp_path, monkeypatch):
    config = CONFIGURATIONS["llama"] | {"hidden_size": 128, "head_dim": 32, "intermediate_size": 256}
    directory = write_model(tmp_path, config)
    other, stepped, steps = load(directory, 0, 2), Stage.run, []

    def run(stage, lane, tokens, *rest):
        steps.append(stage.start)
        return stepped(stage, lane, tokens, *rest)

    monkeypatch.setattr(Stage, "run", run)
    at_a_stretch(pieces(directory, 0, 2, 8, loaded=[other]))
    assert set(steps) == {0, 1}


def test_a_config_that_only_the_first_step_refuses_is_a_broken_model(tmp_path, monkeypatch):
    """A GPU tells a damaged group size only when it computes."""

    def refuse(*_):
        raise IndexError("vector::_M_range_check")

    monkeypatch.setattr(Stage, "run", refuse)
    before = held_by_mlx()
    with pytest.raises(ModelBroken, match="ayers 1-2 of .* cannot be computed: IndexError"):
        load(write_model(tmp_path, CONFIGURATIONS["llama"]), 1, 3)
    assert held_by_mlx() == before


def test_a_load_that_is_broken_off_gives_its_memory_back(tmp_path, monkeypatch):
    monkeypatch.setattr("node.engine.load._MAX_GROUP", 1)
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    size = (directory / "model.safetensors").stat().st_size
    before = held_by_mlx()
    begun = pieces(directory, 0, 4)
    while next(begun) < 0.5:
        pass
    assert mx.get_active_memory() > before + size // 3
    begun.close()
    assert mx.get_active_memory() < before + size // 10


@pytest.mark.parametrize(("start", "end"), [(0, 3), (1, 2), (2, 4)])
def test_a_missing_tensor_is_named(start, end, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    path = directory / "model.safetensors"
    weights = mx.load(str(path))
    mx.eval(weights)
    del weights["model.layers.1.mlp.up_proj.weight"], weights["model.norm.weight"]
    mx.save_safetensors(str(path), weights)
    with pytest.raises(ModelBroken, match="lacks 2 of .*model.layers.1.mlp.up_proj.weight, model.norm.weight"):
        load(directory, start, end)  # neither tensor belongs to the last stage, but mlx-lm refuses the model, too


def test_a_missing_file_is_named(tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"], layer_files=True)
    (directory / "model-2.safetensors").unlink()
    with pytest.raises(ModelBroken, match=r"model-2.safetensors is missing"):
        load(directory, 2, 4)


@pytest.mark.parametrize("keep", [0, 4, 100, -1, -1000])
def test_a_truncated_file_is_named(keep, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelBroken, match=r"model\.safetensors"):
        load(directory, 0, 4)


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\x02" + b"\0" * 7 + b"[]", b"\x09" + b"\0" * 7 + b'{"a": {}}'])
def test_a_corrupt_header_is_named(garbage, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    (directory / "model.safetensors").write_bytes(garbage)
    with pytest.raises(ModelBroken, match=r"model\.safetensors of "):
        load(directory, 0, 4)


def test_a_tensor_of_another_shape_is_named(tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
    with pytest.raises(ModelBroken, match=r"mlp.* has shape \(.*128.*\) instead of \(.*96.*\)"):
        load(directory, 0, 4)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"model_type": 3}', b"\xff\xfe"])
def test_a_bad_config_is_named(text, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    (directory / "config.json").write_bytes(text)
    with pytest.raises(ModelBroken, match=r"config\.json"):
        load(directory, 0, 4)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_config_that_has_no_end(name, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to("/dev/zero")
    with pytest.raises(ModelBroken, match=f"{name} is not a regular file"):
        load(directory, 0, 4)


def test_no_config(tmp_path):
    with pytest.raises(ModelBroken, match=r"no config\.json"):
        at_a_stretch(load_stage(tmp_path / "nowhere", 0, 4, {}))


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": 1}', '{"weight_map": {"a": 1}}'])
def test_a_bad_index_is_named(index, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    (directory / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelBroken, match=r"index\.json"):
        load(directory, 0, 4)


@pytest.mark.parametrize(("start", "end"), [(0, 5), (-1, 2), (2, 2), (3, 1), (4, 4)])
def test_impossible_stages(start, end, tmp_path):
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    with pytest.raises(ModelUnsupported, match="no stage") as caught:
        load(directory, start, end)
    assert caught.value.hint == "It can be cut before layers 1-3."


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "no_such_type"}, "no_such_type are not supported"),
        ({"model_type": "../os"}, "not supported"),
        (BASE | {"model_type": "llama", "model_file": "evil.py"}, "code of its own"),
        ({"model_type": "llama"}, "cannot build"),
        (BASE | {"model_type": "llama", "num_attention_heads": 3}, "does not run"),
        (BASE | {"model_type": "llama", "num_hidden_layers": 0}, "llama"),
        ({"hidden_size": 64}, "no model_type"),
        (CONFIGURATIONS["mellum"] | {"layer_types": ["sliding_attention"] * 4}, "StopIteration"),
        (BASE | {"model_type": "llama", "architectures": 3}, "cannot build"),
        (BASE | {"model_type": "llama", "architectures": [["x"]]}, "cannot build"),
        (BASE | {"model_type": "llama", "num_hidden_layers": "4"}, "cannot build"),
    ],
)
def test_configs_that_cannot_be_planned(config, message):
    with pytest.raises(ModelUnsupported, match=message):
        make_plan(config)


def test_aliases_are_known():
    for architectures in (None, "MistralForCausalLM", ["x"]):
        assert make_plan(BASE | {"model_type": "mistral", "architectures": architectures}).model_type == "llama"


def test_planning_a_large_model_takes_no_memory():
    config = BASE | {
        "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    plan = make_plan(config)
    assert mx.get_peak_memory() - before < 100_000_000
    assert plan.cuts == tuple(range(1, 80))
    assert plan.kv[0].per_token == 2 * 8 * 128 * 2
    assert (plan.width, plan.vocabulary, plan.max_context) == (8192, 128256, 512)
    assert not plan.reads_tokens
    assert not plan.shared


@pytest.mark.parametrize(
    ("name", "own", "heads"),
    [
        ("llama", {"head_dim": 128}, 0),
        ("llama", {"head_dim": 192}, 4),
        ("llama", {"head_dim": 256, "num_attention_heads": 6}, 6),
        ("gemma2", {"head_dim": 128}, 4),  # it caps its scores
        ("deepseek_v3", {"kv_lora_rank": 64, "qk_rope_head_dim": 32}, 4),  # keys and values differ in size
        ("gemma3", {}, 4),  # its config is that of the text model in it
        ("openelm", {}, 8),  # of the layer with the most
        ("mamba2", {}, 0),
    ],
)
def test_scores_that_attention_keeps_in_memory(name, own, heads):
    plan = make_plan(CONFIGURATIONS[name] | own)
    assert plan.score_bytes == heads * 4 * UNFUSED_CHUNK
    assert plan.max_chunk == (UNFUSED_CHUNK if heads else 0)
    half = make_plan(CONFIGURATIONS[name] | own | {"torch_dtype": "bfloat16"})
    assert half.score_bytes in (plan.score_bytes // 2, plan.score_bytes)  # the dtype may be the text model's


def test_what_layers_read_beside_their_input_is_found():
    gemma = make_plan(CONFIGURATIONS["gemma4_text"])
    assert gemma.reads_tokens
    assert "model.embed_tokens_per_layer" in gemma.shared
    assert make_plan(CONFIGURATIONS["gemma4_text/shared"]).cuts == (1, 2)
    assert set(make_plan(CONFIGURATIONS["rwkv7"]).carried.values()) == {(0, 1), (0,)}
    assert make_plan(CONFIGURATIONS["mamba2"]).kv[0].per_token == 0
    assert make_plan(CONFIGURATIONS["mamba2"]).kv[0].fixed > 0
    assert make_plan(CONFIGURATIONS["llama4"]).batchable is False
    assert len(tree_flatten(list(make_plan(CONFIGURATIONS["gemma3n"]).shapes.values()))) > 0


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
@pytest.mark.parametrize("metal", [False, True])
def test_kernels_that_were_never_tested_are_warned_of_on_metal(name, metal, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("node.engine.load.is_metal", lambda: metal)
    directory = write_model(tmp_path / "tiny", CONFIGURATIONS[name])
    next(pieces(directory, 0, 2))
    told = "tiny (qwen3_next) computes with a Metal kernel of its own (gated delta rule)"
    assert (told in caplog.text) == (metal and name == "qwen3_next")


def test_the_warm_up_takes_the_dtype_that_the_stage_before_sends(tmp_path):
    """The embedding is in float32, and so are all activations, but most weights are not. On a CPU, MLX computes experts in
    float32 only.
    """
    directory = write_model(tmp_path, CONFIGURATIONS["Klear"], dtype=mx.float16)
    file = str(directory / "model.safetensors")
    weights = mx.load(file)
    mx.eval(weights)
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"].astype(mx.float32)
    mx.save_safetensors(file, weights)
    whole = Whole(directory).step(prompt(4))
    assert same(Ring([load(directory, 0, 2), load(directory, 2, 4)]).step(prompt(4)), whole)
