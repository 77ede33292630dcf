#!/usr/bin/env python3
"""Writes a model of a real shape with random weights, in Hugging Face format, for tests and benchmarks.

    scripts/make_model.py --preset 25m --out /tmp/25m
    scripts/make_model.py --preset qwen3-0.6b --out /tmp/qwen --dtype bf16 --quantize 4 --shards 3
    scripts/make_model.py --preset 25m --out /tmp/25m-mtp --mtp 0.8    # with an MTP layer that is right for 80 % of the tokens
    scripts/make_model.py --preset tiny-mistral3 --out /tmp/pictures   # takes pictures

The tokenizer is that of the built-in model. If the real vocabulary is larger, generated words fill it, because random
weights sample any token and each needs a text.
"""

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import get_total_parameters, quantize_model, save_config

from node.engine.model_classes import model_classes
from node.engine.tower import Tower
from node.model.picture_form import picture_form

DEMO = Path(__file__).resolve().parent.parent / "node" / "builtin" / "pippin-demo"
TEMPLATE = "chat_template.jinja"
TOKENIZER_FILES = ("tokenizer_config.json", "generation_config.json")
MTP_FILE = "mtp.safetensors"
DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16, "f16": mx.float16}
Config = dict[str, Any]


def llama(shape: tuple[int, int, int, int, int], vocab: int = 2048, **more: Any) -> Config:
    """The shape is (hidden size, layers, heads, KV heads, size of the MLP)."""
    hidden, layers, heads, kv_heads, inner = shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "head_dim": hidden // heads,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        **more,
    }


def qwen3(shape: tuple[int, int, int, int, int], vocab: int = 2048, **more: Any) -> Config:
    kind = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 40960}
    return llama(shape, vocab, **{**kind, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, **more})


def mistral3(text: Config, vision: Config, **more: Any) -> Config:
    """A text model behind a tower for pictures, as Mistral's."""
    return {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "text_config": text,
        "vision_config": {"model_type": "pixtral", "num_channels": 3, "rope_theta": 10000.0, **vision},
        "image_token_index": text["vocab_size"] - len(PICTURE_TOKENS),
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "vision_feature_layer": -1,
        **more,
    }


def pixtral(text: Config, vision: Config) -> Config:
    kind = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "pixtral", "spatial_merge_size": 1}
    return mistral3(text, vision, **kind)


PICTURE_TOKENS = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
LLAMA3_ROPE = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
MINISTRAL3_ROPE = {
    "rope_theta": 1000000.0,
    "rope_type": "default",
    "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 8192,
}


def qwen_vl(kind: str, text: Config, vision: Config) -> Config:
    """A text model behind a tower for pictures, as Qwen's, whose pictures have positions in three axes."""
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": kind,
        "text_config": {**rope, **text, "model_type": f"{kind}_text"},
        "vision_config": {"model_type": kind, "in_channels": 3, "spatial_merge_size": 2, **vision},
        **{name: text["vocab_size"] - 5 + k for k, name in enumerate(QWEN_TOKENS)},
    }


QWEN_TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "vision_token_id": "<|vision_pad|>",
}


def gemma3(text: Config, vision: Config) -> Config:
    """A text model behind a tower for pictures, as Gemma's, whose pictures' places see each other."""
    places = (vision["image_size"] // vision["patch_size"] // 2) ** 2
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            **text,
            "model_type": "gemma3_text",
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "sliding_window": 24,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": text["head_dim"],
            "mm_tokens_per_image": places,
        },
        "vision_config": {"model_type": "siglip_vision_model", **vision},
        "mm_tokens_per_image": places,
        "image_token_index": text["vocab_size"] - 2,
        "vocab_size": text["vocab_size"],
    }


def gemma4(text: Config, vision: Config, **more: Any) -> Config:
    """As Gemma's, where a picture has as many places as fit, which see each other in layers with a window."""
    layers = ["sliding_attention", "full_attention"] * (text["num_hidden_layers"] // 2)
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": {
            **text,
            "model_type": "gemma4_text",
            "layer_types": layers,
            "sliding_window": 80,
            "global_head_dim": 2 * text["head_dim"],
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "use_bidirectional_attention": "vision",
            "rope_parameters": {
                "full_attention": {
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 1000000.0,
                    "rope_type": "proportional",
                },
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
            **more,
        },
        "vision_config": {"model_type": "gemma4_vision", **vision},
        "image_token_id": text["vocab_size"] - 2,
        "vocab_size": text["vocab_size"],
    }


def glm5(text: Config, vision: Config) -> Config:
    """As GLM-5-Next's: layers with linear attention and one with sparse attention, behind a tower."""
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "text_config": {
            **text,
            "model_type": "glm5_next_text",
            "num_key_value_heads": text["num_attention_heads"],
            "moe_intermediate_size": 64,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "linear_num_heads": 2,
            "linear_head_dim": 32,
            "index_head_dim": 16,
            "index_n_heads": 4,
            "tie_word_embeddings": False,
        },
        "vision_config": {"model_type": "glm5_next_vision", "out_hidden_size": text["hidden_size"], **vision},
        "image_token_id": text["vocab_size"] - 2,
    }


def kimi(text: Config, vision: Config) -> Config:
    """As Kimi-VL's: a DeepSeek behind a tower."""
    mla: Config = {
        "kv_lora_rank": 16,
        "q_lora_rank": None,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
    }
    mla |= {
        "num_key_value_heads": text["num_attention_heads"],
        "model_type": "deepseek_v3",
        "tie_word_embeddings": False,
    }
    return {
        "architectures": ["KimiVLForConditionalGeneration"],
        "model_type": "kimi_vl",
        "text_config": {**text, **mla},
        "vision_config": {"model_type": "moonvit", **vision},
        "media_placeholder_token_id": text["vocab_size"] - 1,
    }


def llama4(text: Config, vision: Config) -> Config:
    """As Llama 4's: chunks of attention and experts, behind a tower that sees tiles."""
    return {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "text_config": {
            **text,
            "model_type": "llama4_text",
            "attention_bias": False,
            "attention_chunk_size": 56,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 128,
            "num_experts_per_tok": 1,
            "num_local_experts": 4,
            "rope_scaling": None,
            "use_qk_norm": True,
            "tie_word_embeddings": False,
        },
        "vision_config": {
            "model_type": "llama4_vision_model",
            "initializer_range": 0.02,
            "norm_eps": 1e-5,
            "num_channels": 3,
            "pixel_shuffle_ratio": 0.5,
            "projector_dropout": 0.0,
            "rope_theta": 10000,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "default",
            **vision,
        },
        "image_token_index": text["vocab_size"] - 1,
    }


LLAMA4_TOKENS = {
    "start": "<|image_start|>",
    "end": "<|image_end|>",
    "x": "<|tile_x_separator|>",
    "y": "<|tile_y_separator|>",
    "image": "<|image|>",
    "patch": "<|patch|>",
}
GLM_TOKENS = {"start": "<|begin_of_image|>", "image": "<|image|>", "end": "<|end_of_image|>"}
KIMI_TOKENS = {"image": "<|media_pad|>"}
GEMMA4_TOKENS = {"boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>"}
GEMMA_TOKENS = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
QWEN35_TEXT: Config = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.5,
        "mrope_interleaved": True,
        "mrope_section": [3, 3, 2],
    },
}
QWEN4_TEXT: Config = {
    "eos_token_id": 2,
    "hc_count": 2,
    "hc_lowrank": 16,
    "ple_layer_ids": [1, 3],
    "ple_embed_dim": 64,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 500,
    "split_ngram_parts": 4,
    "indexer_n_heads": 2,
    "indexer_head_dim": 32,
    "indexer_budget": 64,
    "indexer_kv_heads": 1,
    "indexer_compress_ratio": 4,
}
QWEN3_TOWER = {
    "hidden_size": 64,
    "out_hidden_size": 64,
    "depth": 4,
    "num_heads": 2,
    "intermediate_size": 128,
    "patch_size": 4,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [],
}
QWEN3_VL_TEXT: Config = {
    "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [3, 3, 2]}
}
DEEP_TOWER = {**QWEN3_TOWER, "deepstack_visual_indexes": [1, 2]}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}
TINY_TOWER = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "patch_size": 4,
    "image_size": 64,
}
TOWER = {
    "hidden_size": 384,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "head_dim": 64,
    "intermediate_size": 1024,
    "patch_size": 14,
    "image_size": 448,
}
TINY_GEMMA4_TOWER = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "position_embedding_size": 256,
    "default_output_length": 70,
}
DEEPSEEK_V4: Config = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 32,
    "index_n_heads": 2,
    "index_head_dim": 32,
    "index_topk": 8,
    "compress_ratios": [0, 4, 128, 4],
    "sliding_window": 16,
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_hash_layers": 1,
    "tie_word_embeddings": False,
}
PRESETS: dict[str, Config] = {
    "tiny": llama((64, 4, 4, 2, 160)),
    "tiny-qwen3": qwen3((64, 4, 4, 2, 160)),
    "tiny-deepseek-v4": llama((64, 4, 4, 1, 160), **DEEPSEEK_V4),
    "tiny-mistral3": mistral3(
        llama(
            (64, 4, 4, 2, 160),
            2056,
            model_type="ministral3",
            rope_parameters=MINISTRAL3_ROPE,
            tie_word_embeddings=False,
        ),
        TINY_TOWER,
    ),
    "25m-mistral3": mistral3(
        llama(
            (384, 14, 6, 2, 1152),
            2056,
            model_type="ministral3",
            rope_parameters=MINISTRAL3_ROPE,
            tie_word_embeddings=False,
        ),
        TOWER,
    ),
    "tiny-pixtral": pixtral(
        llama((64, 4, 4, 2, 160), 2056, model_type="mistral", tie_word_embeddings=False), TINY_TOWER
    ),
    "tiny-qwen2.5-vl": qwen_vl(
        "qwen2_5_vl",
        llama((64, 4, 4, 2, 160), 2056),
        {
            "hidden_size": 64,
            "out_hidden_size": 64,
            "depth": 3,
            "num_heads": 2,
            "intermediate_size": 128,
            "patch_size": 4,
            "spatial_patch_size": 4,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
    ),
    "tiny-qwen2-vl": qwen_vl(
        "qwen2_vl",
        llama((64, 4, 4, 2, 160), 2056),
        {"embed_dim": 64, "hidden_size": 64, "depth": 2, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4},
    ),
    "tiny-gemma3": gemma3(
        llama((64, 4, 4, 2, 160), 2056),
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 128,
            "patch_size": 4,
            "image_size": 32,
        },
    ),
    "tiny-gemma4": gemma4(llama((64, 4, 2, 1, 160), 2056), TINY_GEMMA4_TOWER),
    "tiny-gemma4-e": gemma4(
        llama((64, 4, 4, 2, 160), 2056),
        TINY_GEMMA4_TOWER,
        hidden_size_per_layer_input=16,
        vocab_size_per_layer_input=2056,
        use_bidirectional_attention=None,
    ),
    "tiny-qwen3.5": qwen_vl("qwen3_5", qwen3((64, 4, 4, 2, 160), 2056, **QWEN35_TEXT), QWEN3_TOWER),
    "tiny-qwen3.5-moe": qwen_vl("qwen3_5_moe", qwen3((64, 4, 4, 2, 160), 2056, **QWEN35_TEXT, **EXPERTS), QWEN3_TOWER),
    "tiny-qwen3-vl": qwen_vl("qwen3_vl", qwen3((64, 4, 4, 2, 160), 2056, **QWEN3_VL_TEXT), DEEP_TOWER),
    "tiny-qwen3-vl-moe": qwen_vl(
        "qwen3_vl_moe",
        qwen3((64, 4, 4, 2, 160), 2056, **QWEN3_VL_TEXT, **EXPERTS, mlp_only_layers=[], tie_word_embeddings=False),
        DEEP_TOWER,
    ),
    "tiny-qwen4": {
        **qwen_vl("qwen4_exp", qwen3((64, 4, 4, 2, 160), 2056, **QWEN35_TEXT, **EXPERTS, **QWEN4_TEXT), QWEN3_TOWER),
        "eos_token_id": QWEN4_TEXT["eos_token_id"],
    },
    "tiny-glm5": glm5(
        llama((64, 4, 4, 4, 160), 2056),
        {
            "hidden_size": 64,
            "depth": 2,
            "num_heads": 2,
            "intermediate_size": 128,
            "projection_intermediate_size": 128,
            "patch_size": 4,
        },
    ),
    "tiny-kimi-vl": kimi(
        llama((64, 4, 4, 4, 160), 2056),
        {"hidden_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 2, "intermediate_size": 128, "patch_size": 4},
    ),
    "tiny-llama4": llama4(
        llama((64, 4, 4, 2, 160), 2056),
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 256,
            "patch_size": 4,
            "image_size": 32,
            "projector_input_dim": 64,
            "projector_output_dim": 64,
            "vision_output_dim": 64,
        },
    ),
    "25m": llama((384, 14, 6, 2, 1152)),
    "110m": llama((768, 14, 12, 4, 2048), 32000),
    "400mb": llama((768, 16, 12, 4, 2048)),
    "qwen3-0.6b": qwen3((1024, 28, 16, 8, 3072), 151936, head_dim=128),
    "llama-1b": llama(
        (2048, 16, 32, 8, 8192), 128256, rope_theta=500000.0, rope_scaling=LLAMA3_ROPE, max_position_embeddings=131072
    ),
}


def build(config: Config, dtype: mx.Dtype, seed: int) -> Module:
    """Build the model with random weights. The layers outweigh the embedding, so the output does
    not repeat the input.
    """
    mx.random.seed(seed)
    model_class, arguments = model_classes(config)
    model: Module = model_class(arguments.from_dict(config))
    if config["model_type"] == "gemma3":
        model.language_model.sanitize({})  # without weights of an LM head, the embedding is it, as in published models

    def spread(path: str, value: mx.array) -> mx.array:
        if not mx.issubdtype(value.dtype, mx.floating):
            if not path.endswith("tid2eid"):  # a table of experts
                return value
            return mx.random.randint(0, config["n_routed_experts"], value.shape).astype(value.dtype)
        if "norm" in path:
            return mx.ones(value.shape, dtype)
        return mx.random.normal(value.shape, scale=1.5 / value.shape[-1] ** 0.5).astype(dtype)

    model.update(tree_map_with_path(spread, model.parameters()))  # type: ignore[no-untyped-call]
    return model


def tower(config: Config, dtype: mx.Dtype) -> dict[str, mx.array]:
    """Random weights of the tower for pictures and of what is behind it, named as mlx-vlm's conversions name them."""
    form = picture_form(config, {})
    if form is None:
        raise SystemExit(f"Pippin knows no tower of {config['model_type']} models.")

    def drawn(name: str, shape: tuple[int, ...]) -> mx.array:
        if len(shape) == 1:
            return mx.zeros(shape, dtype) if name.endswith("bias") else mx.ones(shape, dtype)
        return mx.random.normal(shape, scale=1.5 / math.prod(shape[1:]) ** 0.5).astype(dtype)

    leaves: Any = tree_flatten(Tower(config, form).vlm.parameters())
    return {name: drawn(name, weight.shape) for name, weight in leaves}


def build_foretold(config: Config, dtype: mx.Dtype, seed: int, right: float) -> tuple[Module, dict[str, mx.array]]:
    """Build a Llama whose next token depends on the last one alone, and its MTP layer, which knows it for the share `right` of
    the tokens. Their layers add nothing, but take the time of others.

    The tokens follow each other in one cycle: the row of the LM head for a token is the embedding of the one before it. The first
    number of an embedding marks the tokens after which the MTP layer is wrong; the LM head does not read it.
    """
    model = build(config, dtype, seed)
    vocab, width = config["vocab_size"], config["hidden_size"]
    weights = weights_of(model)
    for name, value in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = mx.zeros_like(value)
    embedding = mx.random.normal((vocab, width))
    embedding = embedding / mx.linalg.norm(embedding, axis=1, keepdims=True)
    after = mx.random.permutation(vocab)  # the order of the cycle
    plain = embedding * (mx.arange(width) > 0)
    head = mx.zeros_like(plain)
    head[mx.roll(after, -1)] = plain[after]
    embedding[:, 0] = mx.where(mx.random.uniform(shape=(vocab,)) < right, 0.0, 1.0)
    weights |= {"model.embed_tokens.weight": embedding.astype(dtype), "lm_head.weight": 30 * head.astype(dtype)}
    model.load_weights(list(weights.items()))
    layer = {name.partition("layers.0.")[2]: value for name, value in weights.items() if "layers.0." in name}
    fc = mx.concatenate([mx.eye(width), mx.zeros((width, width))], axis=1)
    fc[:, 0] = 4 * head[0]
    ones = mx.ones((width,), dtype)
    norms = {f"mtp.{name}.weight": ones for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    return model, {f"mtp.layers.0.{name}": value for name, value in layer.items()} | norms | {
        "mtp.fc.weight": fc.astype(dtype)
    }


def add_mtp(tensors: dict[str, mx.array], out: Path) -> None:
    """Save the tensors of an MTP layer in a file of their own, which mlx-lm does not read, as its Llama takes none."""
    mx.save_safetensors(str(out / MTP_FILE), tensors, metadata={"format": "mlx"})
    path = out / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    places = {name: file for name, file in index["weight_map"].items() if file != MTP_FILE}
    index["weight_map"] = dict(sorted({**places, **dict.fromkeys(tensors, MTP_FILE)}.items()))
    path.write_text(json.dumps(index, indent=2) + "\n")


def weights_of(model: Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))  # type: ignore[no-untyped-call]


def split_weights(weights: dict[str, mx.array], shards: int) -> list[dict[str, mx.array]]:
    """Divide the weights into files of similar size, in the order of the layers, as published models do."""
    total = sum(value.nbytes for value in weights.values())
    files: list[dict[str, mx.array]] = [{} for _ in range(shards)]
    before = 0
    for name, value in weights.items():
        files[min(before * shards // total, shards - 1)][name] = value
        before += value.nbytes
    return [file for file in files if file]


def save_weights(model: Module, out: Path, shards: int = 1, **more: mx.array) -> None:
    """Save as mlx_lm.utils.save_model does, which can't make files smaller than a gigabyte; with `more` weights by name."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("model*.safetensors*"):
        old.unlink()
    files = split_weights(weights_of(model) | more, shards)
    places = {}
    for i, file in enumerate(files, 1):
        name = f"model-{i:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else "model.safetensors"
        mx.save_safetensors(str(out / name), file, metadata={"format": "mlx"})
        places.update(dict.fromkeys(file, name))
    size = sum(value.nbytes for file in files for value in file.values())
    metadata = {"total_size": size, "total_parameters": get_total_parameters(model)}
    index = {"metadata": metadata, "weight_map": dict(sorted(places.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def copy_tokenizer(config: Config, out: Path) -> None:
    for name in TOKENIZER_FILES:
        shutil.copyfile(DEMO / name, out / name)
    # Unlike the built-in model, these have room for dozens of tools.
    (out / TEMPLATE).write_text("{%- set all_tools = true -%}\n" + (DEMO / TEMPLATE).read_text())
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    size = config.get("text_config", config)["vocab_size"]
    # No merge produces these tokens, so only the model writes them. "Ġ" is the byte-level form of a space.
    marks, mark = marks_of(config) if "vision_config" in config else ([], "")
    vocabulary.update({f"Ġw{i}": i for i in range(len(vocabulary), size - len(marks))})
    if marks:
        add_pictures(config, marks, mark, tokenizer, out)
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    demo = json.loads((DEMO / "config.json").read_text())
    config.update({key: demo[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})


def marks_of(config: Config) -> tuple[list[str], str]:
    """The tokens of a family's pictures, and what its templates write for one."""
    qwens = "".join(QWEN_TOKENS[f"{name}_token_id"] for name in ("vision_start", "image", "vision_end"))
    families = {
        "gemma3": (GEMMA_TOKENS, GEMMA_TOKENS["boi_token"]),
        "gemma4": (GEMMA4_TOKENS, GEMMA4_TOKENS["image_token"]),
        "glm5_next": (GLM_TOKENS, "".join(GLM_TOKENS.values())),
        "kimi_vl": (KIMI_TOKENS, KIMI_TOKENS["image"]),
        "llama4": (LLAMA4_TOKENS, LLAMA4_TOKENS["image"]),
        "mistral3": (PICTURE_TOKENS, PICTURE_TOKENS["image_token"]),
        "pixtral": (PICTURE_TOKENS, PICTURE_TOKENS["image_token"]),
    }
    tokens, mark = families.get(config["model_type"], (QWEN_TOKENS, qwens))
    return list(tokens.values()), mark


def add_pictures(config: Config, marks: list[str], mark: str, tokenizer: Config, out: Path) -> None:
    """The tokens, the template and the settings with which pictures are taken, as the family's models have them."""
    for number, text in enumerate(marks, len(tokenizer["model"]["vocab"])):
        tokenizer["model"]["vocab"][text] = number
        tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": number, "content": text})
    template = (out / "chat_template.jinja").read_text()
    part = "for part in content if part.type == 'text' -%}{{- part.text -}}"
    either = f"for part in content -%}}{{{{- '{mark}' if part.type == 'image' else part.text -}}}}"
    if part not in template:
        raise SystemExit("The built-in model's template has changed: see add_pictures.")
    (out / "chat_template.jinja").write_text(template.replace(part, either))
    settings = {
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "patch_size": config["vision_config"]["patch_size"],
        "resample": 3,
        "rescale_factor": 1 / 255,
        **settings_of(config, config["vision_config"]),
    }
    (out / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    if "spatial_merge_size" in config:
        names = {"patch_size": settings["patch_size"], "spatial_merge_size": config["spatial_merge_size"]}
        (out / "processor_config.json").write_text(json.dumps(names | PICTURE_TOKENS, indent=2) + "\n")


def settings_of(config: Config, vision: Config) -> Config:
    """Of preprocessor_config.json."""
    kind: Config
    match config["model_type"]:
        case "gemma3" | "llama4" as name:
            halves, side = [0.5, 0.5, 0.5], vision["image_size"]
            size = {"height": side, "width": side}
            kind = {"image_processor_type": f"{name.title()}ImageProcessor", "image_mean": halves, "image_std": halves}
            return kind | {"resample": 2, "size": size} | ({"max_patches": 6} if name == "llama4" else {})
        case "gemma4":
            kind = {"image_processor_type": "Gemma4ImageProcessor", "do_normalize": False, "max_soft_tokens": 70}
            return kind | {"pooling_kernel_size": vision["pooling_kernel_size"]}
        case "glm5_next":
            kind = {"image_processor_type": "Glm5NextImageProcessor", "merge_size": 2}
            return kind | {"min_image_tokens": 4, "max_image_tokens": 64}
        case "kimi_vl":
            return {"image_processor_type": "KimiVLImageProcessor", "pad_input": True, "in_token_limit": 256}
        case "mistral3" | "pixtral":
            return {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": vision["image_size"]}}
        case _:
            return {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 16 * 16, "max_pixels": 64 * 64}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write a model of a real shape with random weights.")
    parser.add_argument("--preset", choices=PRESETS, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--quantize", type=int, choices=(4, 8), help="bits per weight")
    parser.add_argument(
        "--mtp", type=float, metavar="SHARE", help="add an MTP layer that is right so often; a Llama, not quantized"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1, help="number of weight files")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    config: Config = json.loads(json.dumps(PRESETS[args.preset]))
    dtype = DTYPES[args.dtype]
    config["torch_dtype"] = str(dtype).removeprefix("mlx.core.")
    args.out.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(config, args.out)
    if args.mtp is None:
        model = build(config, dtype, args.seed)
    else:
        config["tie_word_embeddings"] = False
        model, mtp = build_foretold(config, dtype, args.seed, args.mtp)
    parameters = get_total_parameters(model)
    if args.quantize:
        group = 32 if args.preset.startswith("tiny") else 64
        model, config = quantize_model(model, config, group_size=group, bits=args.quantize)
    save_weights(model, args.out, args.shards, **tower(config, dtype) if "vision_config" in config else {})
    if args.mtp is not None:
        add_mtp(mtp, args.out)
    save_config(config, args.out / "config.json", keep_vision_config=True)
    size = sum(file.stat().st_size for file in args.out.glob("*.safetensors"))
    text = config.get("text_config", config)
    kind = f"{args.quantize} bits" if args.quantize else args.dtype
    print(f"{args.out}: {args.preset}, {text['num_hidden_layers']} layers, {parameters / 1e6:.1f} M parameters, "
          f"{kind}, {size / 1e6:.0f} MB in {len(list(args.out.glob('*.safetensors')))} file(s)")  # fmt: skip


if __name__ == "__main__":
    main()
