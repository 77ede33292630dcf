"""A tiny model of every architecture that Pippin supports: the contents of config.json, by name.

BASE has the common keys; each entry adds its own. Windows have 8 tokens, so that they fill and wrap. States that mlx-lm's
Metal kernels compute have a size of 32, as these kernels divide it among 32 lanes. A name is the model_type, followed by
`/variant` if one type can be built in several ways.
"""

from collections.abc import Container, Iterable
from typing import Any

import pytest

Config = dict[str, Any]

LAYERS = 4
FULL, SLIDING, LINEAR, CONV = "full_attention", "sliding_attention", "linear_attention", "conv"

BASE: Config = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "use_bias": False,
    "sliding_window": 8,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
}
MLA: Config = {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
    "num_key_value_heads": 4,
}  # fmt: skip
SWITCHED = [SLIDING, FULL, SLIDING, FULL]
DELTA: Config = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
GRANITE: Config = {
    "logits_scaling": 2.0, "attention_multiplier": 0.25, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
}  # fmt: skip
GPT: Config = {"n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_inner": 128, "n_positions": 512, "n_ctx": 512}
YARN: Config = {
    "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1,
    "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 10000.0,
}  # fmt: skip
NAS_FULL: Config = {
    "attention": {"n_heads_in_group": 2, "no_op": False, "replace_with_linear": False},
    "ffn": {"ffn_mult": 1.3125, "no_op": False, "replace_with_linear": False},
}
NAS_LINEAR: Config = {
    "attention": {"n_heads_in_group": None, "no_op": False, "replace_with_linear": True},
    "ffn": {"ffn_mult": None, "no_op": False, "replace_with_linear": True},
}
NAS_NONE: Config = {
    "attention": {"n_heads_in_group": None, "no_op": True, "replace_with_linear": False},
    "ffn": {"ffn_mult": 1.3125, "no_op": False, "replace_with_linear": False},
}
GLM5: Config = {
    "model_type": "glm5_next_text",
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 0,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "index_topk": 8,
    "index_kpool": 4,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "linear_attn_config": {"num_heads": 2, "head_dim": 32, "short_conv_kernel_size": 4},
    "layer_types": [LINEAR, FULL, LINEAR, FULL],
}
QWEN4: Config = DELTA | {
    "model_type": "qwen4_exp_text", "eos_token_id": 2, "layer_types": [LINEAR, FULL, LINEAR, FULL],
    "hc_count": 2, "hc_lowrank": 16, "ple_layer_ids": [1, 3], "ple_embed_dim": 32, "heads_per_ngram": 2,
    "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 4,
    "indexer_n_heads": 2, "indexer_head_dim": 16, "indexer_budget": 16, "indexer_compress_ratio": 4,
    "rope_parameters": {"type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}  # fmt: skip
HY4: Config = MLA | {
    "qk_nope_head_dim": 16, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8, "hc_mult": 2,
    "indexer_types": ["full", "full", "full", "full"],
}  # fmt: skip
LINEAR_ATTENTION: Config = {"num_heads": 4, "head_dim": 32, "kda_layers": [1, 3], "short_conv_kernel_size": 4}


def _text(**own: Any) -> Config:
    """A multimodal wrapper's config, with the language model's inside."""
    return {"text_config": BASE | own}


_OWN: dict[str, Config] = {
    "Klear": {"decoder_sparse_step": 2, "mlp_only_layers": [0], "num_key_value_heads": 4},
    "afmoe": {"layer_types": [SLIDING, FULL, SLIDING, FULL], "num_dense_layers": 1},
    "apertus": {"post_norm": True, "qk_norm": True},
    "baichuan_m1": {"sliding_window_layers": [0, 2], "conv_window": 2},
    "bailing_hybrid": MLA | {"layer_group_size": 2, "group_norm_size": 1},
    "bailing_moe": {"first_k_dense_replace": 2, "topk_group": 1},
    "bailing_moe_linear": {"layer_group_size": 2, "group_norm_size": 1, "num_key_value_heads": 4},
    "bailing_moe_v3": MLA | {"layer_group_size": 2, "moe_shared_expert_intermediate_size": 32, "head_dim": 32},
    "cohere": {"logit_scale": 0.5},
    "cohere2": {"sliding_window_pattern": 2},
    "cohere2_moe": {"sliding_window_pattern": 2, "rms_norm_eps": None},
    "dbrx": {
        "d_model": 64, "n_heads": 4, "n_layers": LAYERS,
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek": {"num_key_value_heads": 4},
    "deepseek_v2": MLA | {"rope_scaling": YARN},
    "deepseek_v3": MLA | {"rope_scaling": YARN},
    "deepseek_v32": MLA | {"index_head_dim": 16, "index_n_heads": 4, "index_topk": 8},
    "deepseek_v4": {
        "compress_ratios": [0, 4, 128, 4], "num_key_value_heads": 1, "q_lora_rank": 16, "qk_rope_head_dim": 8,
        "o_groups": 2, "o_lora_rank": 16, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 2, "num_hash_layers": 2,
    },
    "deepseek_v4/local": {
        "compress_ratios": [0, 0, 0, 4], "num_key_value_heads": 1, "q_lora_rank": 16, "qk_rope_head_dim": 8,
        "o_groups": 2, "o_lora_rank": 16, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 512, "num_hash_layers": 0,
        "hc_mult": 2,
    },
    "dots1": {},
    "ernie4_5": {"tie_word_embeddings": True},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_layer_start_index": 1, "moe_intermediate_size": 32, "moe_k": 2,
                     "moe_num_shared_experts": 1},
    "exaone": {"num_layers": LAYERS},
    "exaone4": {"sliding_window_pattern": "LLGL", "rope_scaling": None},
    "exaone4/global": {"sliding_window": None, "sliding_window_pattern": None, "rope_scaling": None},
    "exaone_moe": {"layer_types": SWITCHED, "is_moe_layer": [False, True, True, True]},
    "falcon_h1": {
        "mamba_d_conv": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_d_state": 32, "mamba_n_heads": 4,
        "mamba_chunk_size": 8,
    },
    "gear": {"layer_types": ["conv_mixer", SLIDING, "conv_mixer", FULL], "query_pre_attn_scalar": 16.0},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 16.0},
    "gemma3": _text(model_type="gemma3_text", sliding_window_pattern=2),
    "gemma3_text": {"sliding_window_pattern": 2},
    "gemma3n": _text(
        model_type="gemma3n", num_hidden_layers=6, num_kv_shared_layers=2, vocab_size_per_layer_input=128,
        rope_local_base_freq=100.0, final_logit_softcapping=30.0,
        layer_types=[SLIDING, FULL, SLIDING, FULL, SLIDING, FULL], activation_sparsity_pattern=[0.5, 0.5, 0, 0, 0, 0],
        hidden_size_per_layer_input=16, altup_num_inputs=4, altup_coef_clip=120.0, altup_correct_scale=True,
        altup_active_idx=0, laurel_rank=8,
    ),
    "gemma4": _text(
        model_type="gemma4_text", num_kv_shared_layers=0, hidden_size_per_layer_input=0, layer_types=SWITCHED,
        global_head_dim=32,
    ),
    "gemma4_text": {
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 128,
        "layer_types": SWITCHED, "global_head_dim": 32,
    },
    "gemma4_text/shared": {
        "num_hidden_layers": 6, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 128, "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
        "global_head_dim": 32,
    },
    "gemma4_text/moe": {
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "layer_types": SWITCHED, "global_head_dim": 32,
        "enable_moe_block": True, "top_k_experts": 2,
    },
    "glm": {},
    "glm4": {"partial_rotary_factor": 0.5},
    "glm4_moe": {"partial_rotary_factor": 0.5, "rope_scaling": None, "use_qk_norm": True},
    "glm4_moe_lite": MLA,
    "glm5_next": _text(**GLM5) | {"vision_config": {"depth": 1}},
    "glm5_next/shared": _text(
        **GLM5 | {"layer_types": [LINEAR, FULL, FULL, FULL], "indexer_types": ["full", "full", "shared", "full"]},
    ) | {"vision_config": {"depth": 1}},
    "glm_moe_dsa": MLA | {
        "index_head_dim": 16, "index_n_heads": 4, "index_topk": 8, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.5, "num_key_value_heads": None},
    "gpt_oss": {"layer_types": SWITCHED},
    "gptj": GPT | {"rotary_dim": 8},
    "granite": GRANITE,
    "granitemoe": GRANITE,
    "granitemoehybrid": GRANITE | {
        "layer_types": ["mamba", "attention", "mamba", "attention"], "shared_intermediate_size": 64,
        "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_proj_bias": False, "mamba_d_state": 32, "mamba_d_conv": 4,
        "mamba_n_groups": 1, "mamba_conv_bias": True,
    },
    "helium": {},
    "hy_v4": HY4,
    "hy_v4/shared": HY4 | {"indexer_types": ["full", "shared", "full", "shared"]},
    "hunyuan": {
        "moe_topk": 2, "num_shared_expert": 1, "use_mixed_mlp_moe": True, "use_qk_norm": True, "use_cla": True,
        "cla_share_factor": 2, "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    },
    "hunyuan/no_cla": {
        "moe_topk": 2, "num_shared_expert": 1, "use_mixed_mlp_moe": True, "use_qk_norm": True, "use_cla": False,
        "cla_share_factor": 2, "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    },
    "hunyuan_v1_dense": {"rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}},
    "internlm2": {},
    "internlm3": {},
    "jamba": {
        "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2,
        "mamba_d_conv": 4, "mamba_d_state": 8, "mamba_expand": 2, "num_hidden_layers": 4,
    },
    "kimi_k25": _text(**MLA),
    "kimi_k3": _text(
        linear_attn_config=LINEAR_ATTENTION, attn_res_block_size=2, num_experts_per_token=2, hidden_act="situ",
        activation_situ_beta=1.0, **MLA,
    ),
    "kimi_linear": MLA | {
        "linear_attn_config": LINEAR_ATTENTION, "model_max_length": 512, "num_experts_per_token": 2, "head_dim": 16,
    },
    "kimi_vl": _text(**MLA),
    "k2_horizon": {},
    "kolibri1": {"layer_types": SWITCHED},
    "laguna": {
        "layer_types": SWITCHED, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            SLIDING: {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 1.0},
        },
    },
    "lfm2": {
        "conv_bias": False, "conv_L_cache": 3, "block_dim": 64, "block_ff_dim": 128, "block_multiple_of": 4,
        "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True, "layer_types": [CONV, FULL, CONV, FULL],
    },
    "lfm2-vl": _text(
        model_type="lfm2", conv_bias=False, conv_L_cache=3, block_dim=64, block_ff_dim=128, block_multiple_of=4,
        block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=True, layer_types=[CONV, CONV, FULL, CONV],
    ),
    "lfm2_moe": {
        "conv_bias": False, "conv_L_cache": 3, "use_expert_bias": True, "num_dense_layers": 1,
        "layer_types": [CONV, FULL, CONV, FULL],
    },
    "lille-130m": {"block_size": 512, "n_embd": 64, "n_head": 4, "n_kv_heads": 2, "n_layer": LAYERS},
    "llama": {},
    "llama/sliding": {"layer_types": SWITCHED, "tie_word_embeddings": True},
    "llama4": _text(
        model_type="llama4_text", attention_chunk_size=8, interleave_moe_layer_step=2, intermediate_size_mlp=128,
        use_qk_norm=True, rope_scaling=None, num_experts_per_tok=1,
    ),
    "llama4_text": {"intermediate_size_mlp": 128, "no_rope_layers": [0, 1, 0, 1], "use_qk_norm": True},
    "longcat_flash": MLA | {
        "attention_method": "MLA", "zero_expert_type": "identity", "ffn_hidden_size": 128, "moe_topk": 2,
        "expert_ffn_hidden_size": 32, "zero_expert_num": 2, "num_layers": LAYERS, "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "longcat_flash_ngram": MLA | {
        "ffn_hidden_size": 128, "moe_topk": 2, "expert_ffn_hidden_size": 32, "zero_expert_num": 2, "num_layers": LAYERS,
        "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "ngram_vocab_size_ratio": 4, "emb_neighbor_num": 3,
        "emb_split_num": 2,
    },
    "mamba": {
        "state_size": 8, "conv_kernel": 4, "use_conv_bias": True, "time_step_rank": 4, "intermediate_size": 128,
        "tie_word_embeddings": True,
    },
    "mamba2": {
        "num_heads": 8, "state_size": 32, "conv_kernel": 4, "n_groups": 2, "use_conv_bias": True,
        "time_step_limit": [0.01, 10.0], "time_step_rank": "auto",
    },
    "mellum": {
        "layer_types": SWITCHED,
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 10000.0},
            SLIDING: {"rope_type": "default", "rope_theta": 1000.0},
        },
    },
    "mimo": {},
    "mimo_v2": {
        "hybrid_layer_pattern": [0, 1, 0, 1], "moe_layer_freq": [0, 1, 1, 1], "sliding_window_size": 8,
        "layernorm_epsilon": 1e-5, "swa_rope_theta": 1000.0, "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2, "v_head_dim": 16, "swa_head_dim": 16, "swa_v_head_dim": 16,
        "partial_rotary_factor": 0.5, "n_shared_experts": None,
        "vision_config": {"depth": 1}, "audio_config": {"input_local_layers": 1},
    },
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 0, 1], "moe_layer_freq": [0, 1, 1, 1], "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "sliding_window_size": 8, "topk_method": "noaux_tc",
        "scoring_func": "sigmoid", "layernorm_epsilon": 1e-5, "swa_rope_theta": 1000.0, "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2, "v_head_dim": 16, "swa_head_dim": 16, "swa_v_head_dim": 16,
        "partial_rotary_factor": 0.5,
    },
    "minicpm": {"dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 12.0},
    "minicpm3": MLA | {
        "dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 12.0,
        "rope_scaling": {
            "type": "longrope", "long_factor": [1.0] * 4, "short_factor": [1.0] * 4,
            "original_max_position_embeddings": 128,
        },
    },
    "minimax": {"rotary_dim": 8, "shared_intermediate_size": 32},
    "minimax_m3": {
        "moe_layer_freq": [0, 1, 1, 1], "dense_intermediate_size": 64, "shared_intermediate_size": 32,
        "sparse_attention_config": {"use_sparse_attention": False},
    },
    "minimax_m3/sparse": {  # where it is as wide, the shared expert is one of the others
        "moe_layer_freq": [0, 1, 1, 1], "dense_intermediate_size": 64, "shared_intermediate_size": 32, "intermediate_size": 32,
        "sparse_attention_config": {
            "use_sparse_attention": True, "sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_block_size": 4,
            "sparse_topk_blocks": 2, "sparse_local_block": 1, "sparse_attention_freq": [0, 1, 0, 1],
        },
    },
    "minimax_m3_vl": _text(
        model_type="minimax_m3", moe_layer_freq=[0, 1, 1, 1], dense_intermediate_size=64, shared_intermediate_size=32,
    ),
    "minimax_m3_vl/sparse": _text(
        model_type="minimax_m3", moe_layer_freq=[0, 1, 1, 1], dense_intermediate_size=64, shared_intermediate_size=32,
        sparse_attention_config={
            "sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_block_size": 4, "sparse_topk_blocks": 2,
            "sparse_local_block": 1, "sparse_attention_freq": [0, 1, 0, 1],
        },
    ),
    "ministral3": {
        "layer_types": SWITCHED,
        "rope_parameters": {"rope_theta": 10000.0, "type": "default", "llama_4_scaling_beta": 0.1,
                            "original_max_position_embeddings": 128},
    },
    "mistral3": _text(
        model_type="ministral3", layer_types=[FULL] * LAYERS,
        rope_parameters={"rope_theta": 10000.0, "type": "default", "llama_4_scaling_beta": 0.1,
                         "original_max_position_embeddings": 128},
    ),
    "mistral3/llama": _text(model_type="llama"),
    "mistral_large3": _text(**MLA, model_type="mistral_large3", n_routed_experts=4) | {"vision_config": {"num_hidden_layers": 1}},
    "mistral4": MLA | {
        "rope_parameters": YARN | {"llama_4_scaling_beta": 0.1}, "qk_head_dim": 16, "head_dim": 16,
    },
    "mixtral": {},
    "muse_glimmer": {"layer_types": SWITCHED, "post_norm_eps": 1e-6},
    "nanochat": {"num_key_value_heads": 4},
    "nemotron": {"hidden_act": "relu2", "partial_rotary_factor": 0.5},
    "nemotron-nas": {"block_configs": [NAS_FULL, NAS_LINEAR, NAS_FULL, NAS_NONE]},
    "nemotron-nas/first": {"block_configs": [NAS_NONE, NAS_FULL, NAS_FULL, NAS_LINEAR]},
    "nemotron_h": {
        "mamba_num_heads": 4, "mamba_head_dim": 16, "mamba_proj_bias": False, "ssm_state_size": 32, "conv_kernel": 4,
        "n_groups": 2, "time_step_limit": [0.0, 10.0], "use_conv_bias": True, "num_hidden_layers": 6,
        "hybrid_override_pattern": ["M", "*", "-", "M", "E", "*"], "moe_shared_expert_intermediate_size": 32,
    },
    "olmo2": {},
    "olmo3": {"layer_types": SWITCHED},
    "olmo_hybrid": DELTA | {
        "linear_allow_neg_eigval": True, "layer_types": [LINEAR, FULL, LINEAR, FULL], "linear_num_key_heads": 4,
        "rope_parameters": None,
    },
    "olmoe": {},
    "openelm": {
        "num_transformer_layers": LAYERS, "model_dim": 64, "ffn_dim_divisor": 16, "num_query_heads": [4, 4, 8, 8],
        "num_kv_heads": [1, 2, 2, 4], "ffn_multipliers": [1.0, 1.5, 2.0, 2.5],
    },
    "phi": {"partial_rotary_factor": 0.5, "num_key_value_heads": 4},
    "phi3": {},
    "phi3small": {
        "dense_attention_every_n_layers": 2, "ff_intermediate_size": 128, "gegelu_limit": 20.0,
        "blocksparse_block_size": 64,
        "vocab_size": 100352,  # its code bans tokens up to 100351 by number, whatever the size
    },
    "phimoe": {
        "rope_scaling": {
            "type": "longrope", "long_factor": [1.0] * 8, "short_factor": [1.0] * 8, "long_mscale": 1.2,
            "short_mscale": 1.2, "original_max_position_embeddings": 4096,
        },
    },
    "phixtral": {"num_vocab": 128, "model_dim": 64, "num_heads": 4, "num_layers": LAYERS, "rotary_dim": 8},
    "pixtral": _text(model_type="llama"),
    "plamo": {"n_shared_head": 2},
    "plamo2": {
        "hidden_size_per_head": 16, "attention_window_size": 8, "mamba_d_state": 32, "mamba_num_heads": 4,
        "mamba_step": 2, "num_hidden_layers": 4,
    },
    "plamo3": {"window_size": 8, "sliding_window_pattern": 2},
    "qwen": {"kv_channels": 16, "intermediate_size": 256},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2_moe": {},
    "qwen2_vl": _text(model_type="qwen2"),
    "qwen3": {},
    "qwen3_5": _text(model_type="qwen3_5_text", full_attention_interval=2, num_experts=0, **DELTA),
    "qwen3_5_moe": _text(model_type="qwen3_5_moe_text", full_attention_interval=2, **DELTA),
    "qwen3_moe": {},
    "qwen3_next": DELTA | {"full_attention_interval": 2, "partial_rotary_factor": 0.5},
    "qwen3_vl": _text(model_type="qwen3"),
    "qwen3_vl_moe": _text(model_type="qwen3_moe"),
    "recurrent_gemma": {
        "conv1d_width": 4, "logits_soft_cap": 30.0, "attention_window_size": 8, "num_key_value_heads": 1,
        "block_types": ["recurrent", "recurrent", "attention"], "num_hidden_layers": 6,
    },
    "rwkv7": {
        "a_low_rank_dim": 8, "v_low_rank_dim": 8, "gate_low_rank_dim": 8, "decay_low_rank_dim": 8, "head_dim": 32,
    },
    "qwen4_exp": _text(**QWEN4) | {"eos_token_id": 2, "vision_config": {"depth": 1}},
    "seed_oss": {},
    "smollm3": {"no_rope_layer_interval": 2},
    "solar_open": {"partial_rotary_factor": 0.5},
    "spark2_5": {
        "layer_types": SWITCHED,
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 10000.0},
            SLIDING: {"rope_type": "default", "rope_theta": 1000.0},
        },
    },
    "stablelm": {"use_qkv_bias": True, "partial_rotary_factor": 0.5},
    "starcoder2": {"tie_word_embeddings": True},
    "step3p5": {
        "num_attention_groups": 2, "layer_types": SWITCHED, "moe_num_experts": 4, "moe_top_k": 2,
        "share_expert_dim": 32, "moe_layers_enum": "1,2,3",
    },
    "step3p7": {
        "text_config": BASE | {
            "model_type": "step3p5", "num_attention_groups": 2, "layer_types": SWITCHED, "moe_num_experts": 4,
            "moe_top_k": 2, "share_expert_dim": 32, "moe_layers_enum": [1, 2, 3], "use_head_wise_attn_gate": True,
            "swiglu_limits": [0, 0, 0, 7.0],
        },
        "vision_config": {"width": 32, "layers": 1, "heads": 2},
    },
    "talkie": {},
    "telechat3": {},
    "xing4_0": MLA,
    "youtu_llm": MLA,
}  # fmt: skip

CONFIGURATIONS: dict[str, Config] = {
    name: BASE | {"model_type": name.partition("/")[0]} | own for name, own in _OWN.items()
}

REFUSED: dict[str, Config] = {
    name: BASE | {"model_type": name} | own
    for name, own in {
        "afm7": {"hidden_dim": 64, "num_layers": 4, "num_kv_reuse_layers": 2, "num_heads": 4, "num_kv_heads": 2},
        "bitnet": {},
        "deepseek_v41": {},
        "iquestloopcoder": {"loop_window_size": 8},
        "muse_spark": _text(),
        "nanbeige": {"num_loops": 2},
        "olmo": {},
        "prism_hadamard_qwen35": _text(),
    }.items()
}

TYPICAL = ("llama", "qwen3_moe", "gemma3_text", "gemma3n", "gpt_oss", "deepseek_v3", "qwen3_next", "mamba2")
"""Full attention, experts, sliding windows, shared KV, attention sinks, latent KV, hybrids, states."""


def each(names: Iterable[str], typical: Container[str] = TYPICAL) -> list[Any]:
    """Parameters of a test, marked as slow except for the typical ones."""
    return [pytest.param(name, marks=() if name in typical else pytest.mark.slow) for name in names]
