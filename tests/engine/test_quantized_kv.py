"""KV in 8 or 4 bits: the same as mlx-lm's own where mlx-lm has it, and with batches, windows and prefixes, too."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from node.core.errors import ModelUnsupported
from node.core.frames import Filter, Held, Keep, Merge, Open, Reuse
from node.engine.architectures import UNQUANTIZABLE, why_unquantizable
from node.engine.caches import empty_caches
from node.engine.plan import UNFUSED_CHUNK, build, make_plan
from node.engine.quantized_kv import QuantizedKv
from tests.engine.configurations import CONFIGURATIONS, each
from tests.engine.models import Stages, Whole, likeliest, plan_of, prompt, same, shared_model
from tests.engine.test_kept import succeed
from tests.engine.test_lanes import merged, prefilled

HEADS = {"head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
"""MLX quantizes groups of at least 32 numbers."""
MLA = {"qk_nope_head_dim": 24, "v_head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
OTHER_HEADS = {
    **dict.fromkeys(("deepseek_v2", "minicpm3", "youtu_llm"), MLA),
    **{key: {"n_head": 2} for key in ("gpt2", "gpt_bigcode", "gptj")},
    "dbrx": {"n_heads": 2, "attn_config": CONFIGURATIONS["dbrx"]["attn_config"] | {"kv_n_heads": 1}},
    "lille-130m": {"n_head": 2, "n_kv_heads": 1},
    "phimoe": HEADS
    | {
        "rope_scaling": CONFIGURATIONS["phimoe"]["rope_scaling"]
        | {"long_factor": [1.0] * 16, "short_factor": [1.0] * 16}
    },
    "qwen": {"num_attention_heads": 2, "kv_channels": 32},
}
SHARED = "gemma4_text/shared"
TYPICAL = ("llama/sliding", "qwen3_next")
POSSIBLE = [n for n in CONFIGURATIONS if not why_unquantizable(n.partition("/")[0]) and n != SHARED]


def config(name):
    own = OTHER_HEADS.get(name, HEADS)
    whole = CONFIGURATIONS[name]
    return whole | own | ({"text_config": whole["text_config"] | own} if "text_config" in whole else {})


def ours(bits):
    return lambda model: empty_caches(model, bits)


def stock(bits):
    """Caches as mlx-lm makes them for `--kv-bits`."""

    def make(model):
        caches = make_prompt_cache(model)
        return [c.to_quantized(group_size=32, bits=bits) if type(c) is KVCache else c for c in caches]

    return make


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", each(("llama", "qwen3", "qwen3_next", "olmoe", "nemotron_h"), ("llama", "qwen3_next")))
def test_it_equals_that_of_mlx_lm(name, bits):
    directory = shared_model(config(name))
    plan = plan_of(directory, bits)
    ring, whole, plain = (
        Stages(directory, bits).ring(0, 1, plan.layers),
        Whole(directory, stock(bits)),
        Whole(directory),
    )
    tokens = prompt(9)
    differs = False
    for _ in range(6):
        logits, exact = whole.step(tokens), plain.step(tokens)
        assert same(ring.step(tokens), logits)
        differs |= not mx.allclose(logits, exact, atol=1e-6)
        assert mx.max(mx.abs(logits - exact)) < (0.5 if bits == 8 else 2) * mx.std(exact)
        tokens = likeliest(logits)
    assert differs


@pytest.mark.parametrize("name", each(POSSIBLE, TYPICAL))
def test_cut_models_equal_whole_ones_alone_and_in_batches(name):
    directory = shared_model(config(name))
    plan = plan_of(directory, 8)
    assert plan.batchable == make_plan(config(name)).batchable
    whole = Whole(directory, ours(8))
    ring = Stages(directory, 8).ring(0, plan.cuts[len(plan.cuts) // 2], plan.layers)
    wholes, tokens = prefilled(whole, ring)  # compares them
    if not plan.batchable:
        return
    batch = whole.fresh()
    batch.caches = merged([one.caches for one in wholes[:2]])
    for cache, other in zip(batch.caches, merged([wholes[2].caches]), strict=True):
        cache.extend(other)
    ring.apply(Merge(9, 1), Merge(9, 2), Merge(9, 3))
    step = mx.concatenate(tokens)
    for _ in range(4):
        got = ring.step(step, lane=9)
        assert same(got, batch.step(step))
        solo = [one.step(step[row : row + 1])[0] for row, one in enumerate(wholes)]
        assert mx.allclose(got, mx.stack(solo), atol=2e-3)
        step = likeliest(got)
    ring.apply(Filter(9, (2, 1)))
    wholes = [wholes[2], wholes[1]]
    got = ring.step(step[mx.array([2, 1])], lane=9)
    assert mx.allclose(
        got, mx.stack([one.step(step[row : row + 1])[0] for one, row in zip(wholes, (2, 1), strict=True)]), atol=2e-3
    )


def test_prompts_of_different_lengths_in_one_step():
    directory = shared_model(config("llama/sliding"))
    ring, lengths = Stages(directory, 8).ring(0, 2, 4), (9, 4)
    ring.apply(Open(1), Open(2), Merge(1, 2))
    rows = [prompt(length, seed=length) for length in lengths]
    padded = mx.concatenate([mx.pad(row, [(0, 0), (0, 9 - row.shape[1])]) for row in rows])
    got = ring.step(padded, lane=1, lengths=lengths, every=False)
    step = likeliest(got[:, None])
    after = ring.step(step, lane=1)
    for row, tokens in enumerate(rows):
        whole = Whole(directory, ours(8))
        assert mx.allclose(got[row], whole.step(tokens)[0, -1], atol=2e-3)
        assert mx.allclose(after[row], whole.step(step[row : row + 1])[0], atol=2e-3)


@pytest.mark.parametrize(("name", "reused"), [("llama", 6), ("qwen3_next", 9), ("gemma3_text", 9)])
def test_prefixes_are_kept_and_reused(name, reused):
    directory = shared_model(config(name))
    ring = Stages(directory, 8).ring(0, 1, 4)
    ring.step(prompt(9))
    ring.apply(Keep(0, 0, prefix=5, tokens=9))
    ring.step(prompt(4, seed=2))
    for lane in (1, 2):
        ring.apply(Reuse(lane, prefix=5, tokens=reused))
        whole = Whole(directory, ours(8))
        whole.step(prompt(9)[:, :reused])
        assert same(ring.step(prompt(2, seed=3), lane=lane), whole.step(prompt(2, seed=3)))


def test_the_next_ring_takes_it_over():
    directory = shared_model(config("llama"))
    ring = Stages(directory, 8).ring(0, 1, 4)
    ring.apply(Open(1), Open(2))
    tokens = [likeliest(ring.step(prompt(4 * k, seed=k), lane=k)) for k in (1, 2)]
    ring.apply(Merge(7, 1), Merge(7, 2))
    ring.step(mx.concatenate(tokens), lane=7)
    for stage in ring.stages:
        assert succeed(stage, [Held(1, 9), Held(2, 9)]) == (Held(1, 5), Held(2, 9))
    for number, count in ((1, 5), (2, 7)):
        ring.apply(Reuse(20, number, count))
        whole = Whole(directory, ours(8))
        whole.step(mx.concatenate([prompt(4 * number, seed=number), tokens[number - 1]], axis=1)[:, :count])
        assert mx.allclose(ring.step(prompt(2), lane=20), whole.step(prompt(2)), atol=2e-3)


def test_the_plan_counts_its_bytes():
    directory = shared_model(config("llama/sliding"))
    for bits in (8, 4):
        ring = Stages(directory, bits).ring(0, 4)
        ring.step(prompt(5))
        (stage,) = ring.stages
        # keys and values of one head of 32 dimensions, with a scale and a bias in float32 for each 32
        assert {cost.per_token for cost in stage.plan.kv} == {2 * (32 * bits // 8 + 2 * 4)}
        assert [cost.window for cost in stage.plan.kv] == [8, 0, 8, 0]
        assert 0 < stage.lanes.kv_bytes <= sum(cost.bytes_for(5) for cost in stage.plan.kv)
    large = {"head_dim": 128, "torch_dtype": "bfloat16"}
    costs = [make_plan(config("llama") | large, None, bits).kv[0].per_token for bits in (0, 8, 4)]
    assert costs == [512, 272, 144]  # 64 numbers share a scale and a bias
    assert make_plan(config("llama") | large, None, 8).max_chunk == UNFUSED_CHUNK  # its attention is not fused
    assert make_plan(config("llama") | large).max_chunk == 0


def test_windows_and_parts_of_other_caches_are_quantized_and_states_are_not():
    found = [type(cache).__name__ for cache in empty_caches(_model("qwen3_next"), 8)]
    assert set(found) == {"ArraysCache", "QuantizedKv"}
    windows = [cache for cache in empty_caches(_model("gemma3_text"), 4) if isinstance(cache, QuantizedKv)]
    assert RotatingKVCache in {type(cache.caches[0]) for cache in windows}
    mixed = empty_caches(_model("falcon_h1"), 8)[0]
    assert [type(part).__name__ for part in mixed.caches] == ["ArraysCache", "QuantizedKv"]


def _model(name):
    return build(config(name))


@pytest.mark.parametrize("name", UNQUANTIZABLE)
def test_architectures_that_cannot_have_it(name):
    with pytest.raises(ModelUnsupported, match=f"in 8 bits: {UNQUANTIZABLE[name]}") as refused:
        make_plan(CONFIGURATIONS[name], None, 8)
    assert "--kv-bits" in refused.value.hint


@pytest.mark.parametrize(
    ("config", "cause"),
    [(CONFIGURATIONS["llama"], "quantization group size"), (CONFIGURATIONS[SHARED] | HEADS, "incompatible")],
)
def test_models_that_cannot_have_it(config, cause):
    with pytest.raises(ModelUnsupported, match=f"in 8 bits: the size of its heads .*{cause}"):
        make_plan(config, None, 8)
