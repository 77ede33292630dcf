"""Weights of mlx-lm's and mlx-vlm's own models in the format of Hugging Face's checkpoints: the inverse of their `sanitize`.

A rule changes names or layouts; FORMATS lists the rules for the checkpoint of each architecture.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import mlx.core as mx

QUANTIZATION = {"gpt_oss": {"quantization_config": {"quant_method": "mxfp4"}}}

Weights = dict[str, mx.array]
Rule = Callable[[Weights], Weights]


def experts(to: str = "experts", parts: Mapping[str, str] | None = None, of: str = "switch_mlp") -> Rule:
    """Separate tensors for each expert, in `to`, with the names in `parts`."""
    stacked = re.compile(rf"(.*\.){of}\.(\w+)\.(weight|scales|biases|bias)")

    def rule(weights: Weights) -> Weights:
        out: Weights = {}
        for name, value in weights.items():
            match = stacked.fullmatch(name)
            if match is None or value.ndim < 2 + (match[3] != "bias"):
                out[name] = value
                continue
            part = (parts or {}).get(match[2], match[2])
            out |= {f"{match[1]}{to}.{k}.{part}.{match[3]}": one for k, one in enumerate(value)}
        return out

    return rule


W123 = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def renamed(*pairs: tuple[str, str]) -> Rule:
    """Replace the first pattern that matches in each name."""

    def rule(weights: Weights) -> Weights:
        out = {}
        for name, value in weights.items():
            new = next((re.sub(old, by, name) for old, by in pairs if re.search(old, name)), name)
            out[new] = value
        return out

    return rule


def changed(pattern: str, change: Callable[[mx.array], mx.array]) -> Rule:
    """Change the tensors whose names match."""

    def rule(weights: Weights) -> Weights:
        return {name: change(value) if re.search(pattern, name) else value for name, value in weights.items()}

    return rule


def joined(first: str, second: str, to: str, axis: int, *, swap: bool = False) -> Rule:
    """Join two tensors, the `first` before the `second`, optionally with the last two axes swapped."""

    def rule(weights: Weights) -> Weights:
        out = {}
        for name, value in weights.items():
            if name.endswith(first):
                both = mx.concatenate([value, weights[name.removesuffix(first) + second]], axis)
                out[name.removesuffix(first) + to] = both.swapaxes(-1, -2) if swap else both
            elif not name.endswith(second):
                out[name] = value
        return out

    return rule


def parted(whole: str, **parts: int) -> Rule:
    """Divide the rows of a tensor whose name ends with `whole` among so many rows of each of its parts."""

    def rule(weights: Weights) -> Weights:
        out: Weights = {}
        for name, value in weights.items():
            if not name.endswith(f".{whole}.weight"):
                out[name] = value
                continue
            ends = [sum(list(parts.values())[:k]) for k in range(1, len(parts))]
            rows = mx.split(value, ends)
            out |= {name.replace(f".{whole}.", f".{part}."): each for part, each in zip(parts, rows, strict=True)}
        return out

    return rule


def absorbed(weights: Weights) -> Weights:
    """MLA: one matrix for the projections of keys and values from the latents."""
    out = {}
    for name, value in weights.items():
        if name.endswith("embed_q.weight"):
            up = weights[name.replace("embed_q", "unembed_out")]
            both = mx.concatenate([value.swapaxes(-1, -2), up], axis=1)
            out[name.replace("embed_q", "kv_b_proj")] = both.flatten(0, 1)
        elif not name.endswith("unembed_out.weight"):
            out[name] = value
    return out


def with_more(*names: str) -> Rule:
    """Add tensors that mlx-lm drops."""
    return lambda weights: weights | {name: mx.ones((2, 2)) for name in names}


def without(pattern: str) -> Rule:
    return lambda weights: {name: value for name, value in weights.items() if not re.search(pattern, name)}


def _experts_of_dbrx(weights: Weights) -> Weights:
    out: Weights = {}
    for name, value in weights.items():
        match = re.fullmatch(r"(.*experts)\.(\d+)\.(w1|v1|w2)\.weight", name)
        if match is None:
            out[name] = value
        elif match[2] == "0":
            each = [weights[f"{match[1]}.{k}.{match[3]}.weight"] for k in range(4)]
            out[f"{match[1]}.mlp.{match[3]}"] = mx.concatenate([v.T if match[3] == "w2" else v for v in each])
    return out


def _mxfp4(weights: Weights) -> Weights:
    """gpt_oss: experts in blocks of 4 bits, with the rows of gate and up interleaved."""
    out = {}
    for name, value in weights.items():
        match = re.fullmatch(r"(.*\.experts\.)(gate|down)_proj\.(weight|bias)", name)
        if match is None:
            if ".experts.up_proj." not in name:
                out[name] = value
            continue
        to = f"{match[1]}{'gate_up' if match[2] == 'gate' else 'down'}_proj"
        each = [value, weights[name.replace("gate_proj", "up_proj")]] if match[2] == "gate" else [value]
        both = mx.stack(each, axis=2).flatten(1, 2)
        if match[3] == "bias":
            out[f"{to}_bias"] = both
        else:
            packed, scales = mx.quantize(both, group_size=32, bits=4, mode="mxfp4")
            out[f"{to}_blocks"] = packed.view(mx.uint8).reshape(*scales.shape, 16)
            out[f"{to}_scales"] = scales
    return out


def _fp8(weights: Weights) -> Weights:
    """Matrices of layers in 8 bits, with one scale per block of 128 by 128."""
    out = {}
    for name, value in weights.items():
        if re.search(r"layers\..*(proj|w\d)\.weight", name) and value.ndim == 2:
            out[name] = mx.to_fp8(value)
            out[name + "_scale_inv"] = mx.full([(size + 127) // 128 for size in value.shape], 0.5)
        else:
            out[name] = value
    return out


def _halves(weights: Weights) -> Weights:
    """hy_v4: gates and what they gate in tensors of their own."""
    out: Weights = {}
    for name, value in weights.items():
        if name.endswith("switch_mlp.gate_up_proj.weight"):
            gate, up = mx.split(value, 2, axis=1)
            out |= {name.replace("gate_up_proj", "gate_proj"): gate, name.replace("gate_up_proj", "up_proj"): up}
        else:
            out[name] = value
    return out


CONV = changed(r"conv1d\.weight|conv_1d\.weight|conv\.weight", lambda value: value.moveaxis(1, 2))
EXPERTS = experts()
BLOCK_SPARSE = experts("experts", W123)
NESTED = renamed((r"^language_model\.model\.", "model.language_model."), (r"^language_model\.lm_head", "lm_head"))
FUSED = joined(".gate_proj.weight", ".up_proj.weight", ".gate_up_proj", -2)
FUSED_EXPERTS = joined("switch_mlp.gate_proj.weight", "switch_mlp.up_proj.weight", "experts.gate_up_proj", -2)
DOWN = renamed((r"switch_mlp\.down_proj\.weight$", "experts.down_proj"))
TOWER = with_more("vision_tower.patch_embed.weight", "vision_tower.layers.0.w")
FREQUENCIES = with_more("model.layers.1.self_attn.rotary_emb.inv_freq")

BARE = renamed((r"^language_model\.", ""))

FORMATS: dict[str, tuple[Rule, ...]] = {
    "Klear": (experts(of="experts"),),
    "afmoe": (experts(of="experts"), FREQUENCIES),
    "bailing_hybrid": (EXPERTS, absorbed, renamed((r"gate\.gate_proj", "gate")), with_more("model.layers.4.a.weight")),
    "bailing_moe": (EXPERTS, renamed((r"gate\.gate_proj", "gate"))),
    "bailing_moe_linear": (EXPERTS, renamed((r"gate\.gate_proj", "gate"))),
    "bailing_moe_v3": (EXPERTS, absorbed, CONV),
    "cohere2_moe": (BARE, EXPERTS),
    "dbrx": (_experts_of_dbrx,),
    "deepseek": (EXPERTS,),
    "deepseek_v2": (EXPERTS,),
    "deepseek_v3": (EXPERTS, absorbed, FREQUENCIES, with_more("model.layers.61.a.weight")),
    "deepseek_v32": (EXPERTS, absorbed, with_more("model.layers.4.a.weight")),
    "deepseek_v4": (
        BLOCK_SPARSE,
        BARE,
        renamed((r"^model\.embed_tokens", "embed"), (r"^lm_head", "head"), (r"^model\.hc_head\.", "hc_head_"), (r"^model\.", "")),
        renamed((r"\.(attn|ffn)_hc\.", r".hc_\1_"), (r"gate\.e_score_correction_bias", "gate.bias")),
        renamed(*((rf"shared_experts\.{name}", f"shared_experts.{to}") for name, to in W123.items())),
        changed(r"wo_a\.weight", lambda value: value.flatten(0, 1)),
        with_more("mtp.0.attn.a.weight"),
    ),
    "dots1": (experts(of="experts"),),
    "ernie4_5_moe": (EXPERTS, with_more("model.mtp_block.0.a.weight")),
    "exaone_moe": (EXPERTS, with_more("mtp.layers.0.a.weight")),
    "falcon_h1": (CONV,),
    "gemma3": (TOWER,),
    "gemma3_text": (without(r"lm_head"),),
    "gemma4": (renamed((r"^language_model\.model\.", "model.language_model.")), TOWER),
    "gemma4_text/moe": (
        joined("switch_glu.gate_proj.weight", "switch_glu.up_proj.weight", "gate_up_proj", -2),
        renamed((r"switch_glu\.down_proj\.weight$", "down_proj")),
    ),
    "glm4_moe": (EXPERTS, with_more("model.layers.4.a.weight")),
    "glm4_moe_lite": (EXPERTS, absorbed, with_more("model.layers.4.a.weight")),
    "glm5_next": (
        parted("qkv_proj", q_proj=64, k_proj=64, v_proj=64),
        parted("fbg_a_proj", f_a_proj=32, b_proj=2, g_a_proj=32),
        parted("qkv_conv.conv", q_conv1d=64, k_conv1d=64, v_conv1d=64),
        changed(r"_conv1d\.weight", lambda value: value.moveaxis(1, 2)),
        parted("qkv_a_proj", q_a_proj=16, kv_a_proj_with_mqa=16),
        parted("mlp.gate_up_proj", **{"mlp.gate_proj": 128, "mlp.up_proj": 128}),
        parted("shared_experts.gate_up_proj", **{"shared_experts.gate_proj": 32, "shared_experts.up_proj": 32}),
        EXPERTS,
        absorbed,
        renamed((r"\.(attn|ffn)_hc\.", r".hc_\1_")),
        NESTED,
        with_more("model.visual.blocks.0.w", "model.language_model.layers.4.a.weight"),
    ),
    "gpt2": (
        changed(r"(c_attn|c_proj|c_fc)\.weight", lambda value: value.T),
        renamed((r"^model\.", "")),
        with_more("h.1.attn.bias"),
    ),
    "gpt_neox": (renamed((r"^model\.h\.", "gpt_neox.layers."), (r"^model\.", "gpt_neox.")),),
    "gpt_oss": (_mxfp4,),
    "gptj": (renamed((r"^model\.", "transformer.")), with_more("transformer.h.1.attn.bias")),
    "granitemoe": (
        joined("switch_mlp.gate_proj.weight", "switch_mlp.up_proj.weight", "input_linear.weight", 1),
        renamed((r"switch_mlp\.down_proj", "output_linear")),
    ),
    "granitemoehybrid": (
        CONV,
        joined("switch_mlp.gate_proj.weight", "switch_mlp.up_proj.weight", "input_linear.weight", 1),
        renamed((r"switch_mlp\.down_proj", "output_linear")),
    ),
    "hunyuan": (EXPERTS,),
    "hy_v4": (BARE, _halves, EXPERTS, with_more("model.mtp.layers.0.w")),
    "jamba": (EXPERTS, CONV),
    "k2_horizon": (BARE,),
    "kimi_k25": (EXPERTS, absorbed, TOWER),
    "kimi_linear": (
        experts("experts", W123),
        renamed((r"\.mlp\.(experts|shared_experts|gate\.)", r".block_sparse_moe.\1")),
        absorbed,
        CONV,
        renamed((r"([qkv])_conv\.conv\.", r"\1_conv1d.")),
    ),
    "kimi_vl": (EXPERTS, TOWER),
    "kolibri1": (BARE, EXPERTS),
    "laguna": (EXPERTS, renamed((r"gate\.proj\.weight", "gate.weight"))),
    "lfm2": (CONV,),
    "lfm2_moe": (CONV, experts("experts", W123), renamed((r"(feed_forward\.)gate_proj", r"\1w1"))),
    "llama": (FREQUENCIES,),
    "llama/sliding": (with_more("lm_head.weight"),),
    "llama4": (
        joined("experts.gate_proj.weight", "experts.up_proj.weight", "experts.gate_up_proj", -2, swap=True),
        changed(r"experts\.down_proj\.weight", lambda value: value.swapaxes(1, 2)),
        renamed((r"experts\.down_proj\.weight$", "experts.down_proj")),
    ),
    "longcat_flash": (EXPERTS, absorbed),
    "longcat_flash_ngram": (EXPERTS, absorbed, renamed((r"ngram_embeddings\.word_embeddings", "embed_tokens"))),
    "mamba": (CONV,),
    "mamba2": (CONV,),
    "mellum": (EXPERTS,),
    "mimo_v2": (BARE, EXPERTS, with_more("audio_encoder.w", "speech_embeddings.0.weight", "visual.blocks.0.w")),
    "mimo_v2_flash": (EXPERTS, with_more("model.mtp.layers.0.a.weight")),
    "minicpm": (without(r"lm_head"),),
    "minimax": (BLOCK_SPARSE, _fp8),
    "minimax_m3": (BARE, BLOCK_SPARSE),
    "minimax_m3_vl": (BLOCK_SPARSE, TOWER),
    "mistral3": (NESTED, TOWER),
    "mistral4": (FUSED_EXPERTS, DOWN, absorbed),
    "mixtral": (BLOCK_SPARSE,),
    "muse_glimmer": (renamed((r"^model\.", "model.language_model.")), TOWER),
    "nemotron_h": (CONV, experts("experts", {"fc1": "up_proj", "fc2": "down_proj"}), with_more("mtp.layers.0.w")),
    "olmo_hybrid": (CONV,),
    "olmoe": (EXPERTS,),
    "phimoe": (BLOCK_SPARSE,),
    "phixtral": (experts("mlp"),),
    "plamo2": (CONV,),
    "qwen2_moe": (EXPERTS,),
    "qwen2_vl": (renamed((r"^language_model\.", "")), with_more("visual.blocks.0.w")),
    "qwen3_5": (NESTED, CONV, with_more("mtp.fc.weight")),
    "qwen3_5_moe": (FUSED_EXPERTS, DOWN, NESTED, CONV, with_more("mtp.fc.weight")),
    "qwen3_moe": (EXPERTS,),
    "qwen3_next": (EXPERTS, CONV, with_more("mtp.fc.weight")),
    "qwen3_vl": (NESTED, with_more("visual.blocks.0.w")),
    "qwen3_vl_moe": (
        joined("switch_mlp.gate_proj.weight", "switch_mlp.up_proj.weight", "experts.gate_up_proj", -2, swap=True),
        changed(r"switch_mlp\.down_proj", lambda value: value.swapaxes(1, 2)),
        DOWN,
        NESTED,
        with_more("visual.blocks.0.w"),
    ),
    "qwen4_exp": (
        FUSED_EXPERTS,
        DOWN,
        NESTED,
        changed(r"conv1d\.weight", lambda value: value.moveaxis(1, 2)),
        renamed((r"ngram_embedding\.shards\.(\d+)", r"ngram_embedding.shard_\1")),
        with_more("mtp.fc.weight", "model.visual.blocks.0.w"),
    ),
    "recurrent_gemma": (CONV,),
    "rwkv7": (changed(r"k_k|k_a|g_norm", lambda value: value.flatten()),),
    "spark2_5": (renamed((r"model\.embedding\.", "model.embed_tokens.")), FREQUENCIES),
    "step3p5": (
        renamed(
            (r"\.mlp\.switch_mlp\.", ".moe."),
            (r"\.mlp\.gate\.gate\.", ".moe.gate."),
            (r"\.mlp\.gate\.router_bias", ".moe.router_bias"),
            (r"\.mlp\.share_expert\.", ".share_expert."),
        ),
        with_more("model.layers.4.a.weight"),
    ),
    "step3p7": (
        renamed((r"^language_model\.model\.", "model.language_model."), (r"^language_model\.", "")),
        renamed(
            (r"\.mlp\.switch_mlp\.", ".moe."),
            (r"\.mlp\.gate\.gate\.", ".moe.gate."),
            (r"\.mlp\.gate\.router_bias", ".moe.router_bias"),
            (r"\.mlp\.share_expert\.", ".share_expert."),
        ),
        with_more("model.vision_model.w"),
    ),
    "xing4_0": (BARE, EXPERTS, absorbed),
}  # fmt: skip
"""Rules by configuration. All others have the same format at Hugging Face, or formats that can't be told apart."""


def to_checkpoint(directory: Path, name: str) -> None:
    """Rewrite the single weight file of the model in `directory` as a checkpoint of that configuration."""
    path, config = directory / "model.safetensors", directory / "config.json"
    weights = dict(mx.load(str(path)))
    mx.eval(weights)
    for rule in FORMATS[name]:
        weights = rule(weights)
    mx.save_safetensors(str(path), weights)
    config.write_text(json.dumps(json.loads(config.read_text()) | QUANTIZATION.get(name, {})))
