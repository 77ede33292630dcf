"""How large the models and prompts of a check are."""

from dataclasses import dataclass
from typing import Any

DENSE = "check-dense"
"""A model like Llama, in 4 bits with heads of 128: mlx-lm's kernels for most models that people run."""
VOCABULARY = 2048
"""That of the built-in model's tokenizer."""
HEAD = 128
"""Size of the heads, for which MLX has fused attention."""


@dataclass(frozen=True, slots=True)
class Size:
    layers: int
    heads: int
    inner: int
    context: int
    """How many tokens the long prompt has."""
    tokens: int
    """How many tokens an answer has that is measured."""
    pool_tokens: int
    """How many tokens an answer has before MLX's free buffers are measured."""
    busy_s: float
    """Seconds of two streams at once."""

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """Of the models, by name."""
        dense = COMMON | {
            "model_type": "llama",
            "hidden_size": self.heads * HEAD,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": max(self.heads // 2, 1),
            "head_dim": HEAD,
            "intermediate_size": self.inner,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
        }
        return {DENSE: dense, **SMALL}


GPU = Size(layers=16, heads=16, inner=8192, context=8192, tokens=256, pool_tokens=4000, busy_s=180)
"""1 G parameters, 0.6 GB: fits every Mac."""
CPU = Size(layers=4, heads=4, inner=1536, context=1024, tokens=64, pool_tokens=600, busy_s=30)
QUICK = Size(layers=2, heads=2, inner=512, context=96, tokens=16, pool_tokens=40, busy_s=2)

COMMON: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "intermediate_size": 512,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
SMALL: dict[str, dict[str, Any]] = {
    "check-delta": COMMON
    | {
        "model_type": "qwen3_next",
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": HEAD,
        "linear_value_head_dim": HEAD,
        "linear_conv_kernel_dim": 4,
        "num_experts": 0,
        "num_experts_per_tok": 0,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 0,
        "mlp_only_layers": [],
        "moe_intermediate_size": 0,
    },
    "check-state": COMMON
    | {
        "model_type": "mamba2",
        "num_heads": 8,
        "head_dim": 64,
        "state_size": 128,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": [0.001, 100.0],
        "time_step_rank": "auto",
    },
    "check-wkv": COMMON
    | {
        "model_type": "rwkv7",
        "head_dim": 64,
        "norm_eps": 1e-5,
        "a_low_rank_dim": 64,
        "v_low_rank_dim": 64,
        "gate_low_rank_dim": 64,
        "decay_low_rank_dim": 64,
    },
}
"""A small model for each of mlx-lm's own Metal kernels: gated delta rule, state space model, WKV."""
